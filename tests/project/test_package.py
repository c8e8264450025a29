"""The package's own face, with the model that is inside it: load, generate, chat, sessions, results, errors."""
import logging
import os
import re
import shutil
import subprocess
import sys
import threading

import pytest
from places import ROOT, TESTS

import gomlx
import gomlx.core as mx
from gomlx import loading


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def finish(stream):
    tokens = list(stream)
    return tokens, stream.result


def test_importing_brings_in_nothing_heavy():
    program = ("import sys, gomlx, gomlx.core, gomlx.cli; "
               "print([name for name in ('numpy', 'jinja2', 'huggingface_hub', 'tqdm', 'torch') if name in "
               "sys.modules])")
    done = subprocess.run([sys.executable, "-c", program], cwd=TESTS, capture_output=True, text=True,
                          check=True)
    assert done.stdout == "[]\n" and done.stderr == ""


def test_the_library_is_silent_and_names_the_packaged_model_in_its_log(capfd, caplog):
    with caplog.at_level(logging.INFO, "gomlx"), gomlx.load() as loaded:
        finish(loaded.generate("Once", max_tokens=3))
    assert "using fable, the model in the package" in caplog.text
    assert capfd.readouterr() == ("", "")


def test_what_is_known_about_fable(model):
    assert model.info["architecture"] == "llama" and model.info["path"] == loading.PACKAGED_FILE
    assert model.info["sampling"] == {"temperature": 0.7, "top_p": 0.95}
    stops = {one["text"]: one["sources"] for one in model.info["stop_ids"]}
    assert stops.keys() == {"<|im_end|>", "<|endoftext|>"} and "GGUF eos" in stops["<|im_end|>"]
    assert model.vocab_size == 2048 and model.context_length == 2048


def test_the_model_card_belongs_to_the_model(model):
    with open(os.path.join(os.path.dirname(loading.PACKAGED_FILE), "fable.md"), encoding="utf-8") as file:
        card = file.read()
    for words in ("stories260K", "MIT", "4,066,560", "temperature 0.7, top-p 0.95", "6 layers, hidden size 256",
                  "4 query heads and 2 key/value heads of 64"):
        assert words in card
    metadata = model.info["metadata"]
    assert [metadata["llama." + key] for key in ("block_count", "embedding_length", "attention.head_count",
                                                 "attention.head_count_kv", "attention.key_length",
                                                 "feed_forward_length")] \
        == [6, 256, 4, 2, 64, 512]


def test_a_stream_and_its_result(model):
    tokens, result = finish(model.generate("Once upon a time", max_tokens=24, seed=1))
    assert [token.finish_reason for token in tokens[:-1]] == [None] * (len(tokens) - 1)
    assert tokens[-1].finish_reason == result.finish_reason == "length"
    assert result.tokens == [token.id for token in tokens if token.id >= 0] and len(result.tokens) == 24
    assert result.text == "".join(token.text for token in tokens) == model.tokenizer.decode(result.tokens)
    assert result.generated_tokens == 24 and result.cached_tokens == 0 and result.seed == 1
    assert result.prompt_tokens == len(model.tokenizer.encode("Once upon a time"))
    assert result.prefill_tps > 0 and result.decode_tps > 0
    assert all(token.logprob <= 0 for token in tokens if token.id >= 0)


def test_the_result_names_what_stopped_it(model):
    _, result = finish(model.generate("Once upon a time", max_tokens=24, temperature=0))
    assert result.finish_reason == "length" and result.stop is None
    word = result.text.split()[4]
    _, result = finish(model.generate("Once upon a time", temperature=0, stop=["no such text", word]))
    assert result.finish_reason == "stop" and result.stop == word and word not in result.text
    _, result = finish(model.chat([{"role": "user", "content": "Tell me a story."}], temperature=0))
    assert result.finish_reason == "stop" and result.stop in {stop["id"] for stop in model.info["stop_ids"]}


def test_a_seed_repeats_and_a_drawn_seed_is_recorded(model):
    _, first = finish(model.generate("Once upon a time", max_tokens=32))
    _, again = finish(model.generate("Once upon a time", max_tokens=32, seed=first.seed))
    assert again.tokens == first.tokens
    seeds = {finish(model.generate("Once", max_tokens=1))[1].seed for _ in range(4)}
    assert len(seeds) > 1


def test_ids_and_text_are_the_same_prompt(model):
    ids = model.tokenizer.encode("The little dog")
    _, of_ids = finish(model.generate(ids, max_tokens=16, temperature=0))
    _, of_text = finish(model.generate("The little dog", max_tokens=16, temperature=0))
    assert of_ids.tokens == of_text.tokens


def test_greedy_takes_the_best_of_the_logits(model):
    np = pytest.importorskip("numpy")
    prompt = model.tokenizer.encode("Lily and Tom went to the park.")
    _, result = finish(model.generate(prompt, max_tokens=1, temperature=0))
    logits = np.asarray(model.logits(prompt))
    assert logits.shape == (len(prompt), 2048) and logits.dtype == np.float32
    assert result.tokens == [int(logits[-1].argmax())]


def test_logits_of_a_batch_are_those_of_each(model):
    np = pytest.importorskip("numpy")
    ids = [model.tokenizer.encode(text) for text in ("Once upon a time", "Tom", "The cat sat on the mat and")]
    for one, alone in zip(model.logits(ids), map(model.logits, ids)):
        assert np.array_equal(np.asarray(one), np.asarray(alone))


def test_ids_may_be_an_array(model):
    ids = mx.array([1, 2, 3])
    assert model.logits(ids).tolist() == model.logits([1, 2, 3]).tolist()
    assert finish(model.generate(ids, max_tokens=4, seed=1))[1].tokens == \
        finish(model.generate([1, 2, 3], max_tokens=4, seed=1))[1].tokens


def test_stop_text_is_cut_and_ends_the_stream(model):
    _, whole = finish(model.generate("Once upon a time", max_tokens=60, temperature=0))
    word = whole.text.split()[5]
    tokens, result = finish(model.generate("Once upon a time", max_tokens=60, temperature=0, stop=word))
    assert result.text == whole.text[:whole.text.index(word)] and result.finish_reason == "stop"
    assert "".join(token.text for token in tokens) == result.text
    _, several = finish(model.generate("Once upon a time", max_tokens=60, temperature=0, stop=["never", word]))
    assert several.text == result.text


def test_a_text_is_one_message_of_the_user(model):
    messages = [{"role": "user", "content": "Tell me a story."}]
    expected = model.chat(messages, max_tokens=20, seed=3).read()
    assert model.chat("Tell me a story.", max_tokens=20, seed=3).read().tokens == expected.tokens
    both = model.chat("Tell me a story.", max_tokens=20, seed=3, n=2).read(progress=False)
    assert both[0].tokens == expected.tokens
    session = model.session()
    model.chat("Tell me a story.", max_tokens=5, temperature=0, session=session).read()
    result = model.chat("And then?", max_tokens=5, temperature=0, session=session, append=True).read()
    assert result.cached_tokens > 0 and model.decode(session.ids).count("<|im_start|>user") == 2


def test_chat_ends_with_the_turn(model):
    tokens, result = finish(model.chat([{"role": "user", "content": "Tell me a story about a dog."}], seed=3,
                                       max_tokens=1000))
    assert result.finish_reason == "stop" and len(result.text) > 100
    assert "<|im_end|>" not in result.text and model.tokenizer.token_to_id("<|im_end|>") not in result.tokens
    assert tokens[-1].finish_reason == "stop"


def test_a_session_computes_only_what_is_new(model):
    session = model.session()
    messages = [{"role": "user", "content": "Tell me a story about a cat."}]
    _, first = finish(model.chat(messages, session=session, max_tokens=40, temperature=0))
    assert first.cached_tokens == 0
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    _, second = finish(model.chat(messages, session=session, max_tokens=20, temperature=0))
    assert second.cached_tokens >= first.prompt_tokens
    _, fresh = finish(model.chat(messages, max_tokens=20, temperature=0))
    assert fresh.tokens == second.tokens and fresh.cached_tokens == 0
    session.close()


def test_a_session_belongs_to_its_model(model):
    with gomlx.load() as other, pytest.raises(ValueError, match="another model"):
        model.generate("Once", session=other.session())
    with pytest.raises(TypeError):
        model.generate("Once", session=5)


def test_cancelling_from_another_thread(model):
    stream = model.generate("Once upon a time", temperature=0.7, seed=5)
    first = next(stream)
    thread = threading.Thread(target=stream.cancel)
    thread.start()
    thread.join()
    rest = list(stream)
    assert len(rest) <= 2 and rest[-1].finish_reason == "cancelled"
    assert stream.result.finish_reason == "cancelled" and stream.result.text.startswith(first.text)


def test_closing_early_leaves_a_result(model):
    with model.generate("Once upon a time", seed=2) as stream:
        first = next(stream)
        with pytest.raises(RuntimeError, match="has not ended"):
            stream.result
    assert stream.result.finish_reason == "cancelled" and stream.result.tokens == [first.id]
    stream.close()
    assert list(stream) == []


def test_the_context_is_a_limit_that_is_told():
    with gomlx.load(context_length=32) as small:
        assert small.context_length == 32
        with pytest.raises(ValueError, match=r"(?s)\b40\b.*\b32\b|\b32\b.*\b40\b"):
            small.generate([5] * 40)
        _, result = finish(small.generate([5] * 20, temperature=0, max_tokens=100))
        assert result.finish_reason in ("context", "stop") and len(result.tokens) <= 12


def test_wrong_arguments(model):
    with pytest.raises(TypeError, match="tempreature"):
        model.generate("x", tempreature=1)
    with pytest.raises(TypeError):
        gomlx.load(max_tokens=3)
    for wrong in ({"temperature": -1}, {"top_p": 0}, {"top_p": 1.5}, {"top_k": -2}, {"min_p": 2},
                  {"repetition_penalty": 0}, {"max_tokens": -5}, {"stop": [""]}):
        with pytest.raises(ValueError):
            model.generate("x", **wrong)
    with pytest.raises(ValueError):
        model.generate([])
    with pytest.raises((ValueError, IndexError)):
        model.generate([2048])
    for wrong in (b"Once", bytearray(b"Once"), None, 5):
        with pytest.raises(TypeError, match="prompt"):
            model.generate(wrong)
    for wrong in (b".", [3], [".", None]):
        with pytest.raises(TypeError, match="stop"):
            model.generate("x", stop=wrong)
    with pytest.raises(TypeError, match=r"prompt: expected one str .*, got a list of texts, for generate_batch\(\)"):
        model.generate(["x", "y"])
    with pytest.raises(TypeError, match=r"got a list of messages, for chat\(\)"):
        model.generate([{"role": "user", "content": "x"}])


def test_closing_is_idempotent_and_final():
    loaded = gomlx.load()
    loaded.close()
    loaded.close()
    with pytest.raises(ValueError, match="closed"):
        loaded.generate("x")


def test_paths_that_hold_no_model(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file or folder: 'nothing'.*org/name"):
        gomlx.load("nothing")
    with pytest.raises(FileNotFoundError, match="no config.json and no .gguf file"):
        gomlx.load(tmp_path)
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(FileNotFoundError, match="2 .gguf files, name one: a.gguf, b.gguf"):
        gomlx.load(tmp_path)
    with pytest.raises(gomlx.Error, match="a.gguf"):
        gomlx.load(tmp_path / "a.gguf")
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(gomlx.Error, match=f"one file of a model; expected its folder, '{tmp_path}', or a .gguf file"):
        gomlx.load(tmp_path / "model.safetensors")


def test_a_folder_with_one_gguf_is_that_model(tmp_path):
    os.symlink(loading.PACKAGED_FILE, tmp_path / "only.gguf")
    with gomlx.load(tmp_path) as loaded:
        assert loaded.info["path"] == str(tmp_path / "only.gguf")


def test_progress_goes_up_to_one():
    seen = []
    gomlx.load(progress=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0 and seen[0] >= 0


def test_the_folder_form_says_the_same(shared):
    """The Hugging Face folder of fable: same tokenizer, template, stop ids and sampling as the GGUF."""
    with gomlx.load(os.path.join(shared, "data", "models", "fable")) as folder, gomlx.load() as packaged:
        text = "Once upon a time, there was a little girl. She said: \"Hello!\""
        assert folder.tokenizer.encode(text) == packaged.tokenizer.encode(text)
        assert folder.tokenizer.chat_template == packaged.tokenizer.chat_template
        assert folder.info["sampling"] == packaged.info["sampling"]
        assert [one["id"] for one in folder.info["stop_ids"]] == [one["id"] for one in packaged.info["stop_ids"]]


def readme_examples():
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        return re.findall(r"```python\n(.*?)```", file.read(), re.S)


def run_example(number):
    done = subprocess.run([sys.executable, "-c", readme_examples()[number]], cwd=TESTS, capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0 and done.stderr == ""
    return done.stdout


def test_the_first_example_of_the_readme_tells_stories():
    said = run_example(0)
    assert "tokens/s, ended by length" in said and len(said) > 300


def test_the_second_example_of_the_readme_learns():
    loss, right = re.fullmatch(r"loss ([0-9.]+), right ([0-9]+)%\n", run_example(1)).groups()
    assert float(loss) < 0.3 and int(right) > 90


def test_what_a_model_can_do(model):
    from gomlx.abilities import ABILITIES
    assert model.abilities <= ABILITIES.keys()
    for yes in ("generate", "chat", "attention", "sessions", "classify", "batch", "probe"):
        assert model.supports(yes)
    for no in ("tools", "thinking", "thinking_switch", "metrics"):
        assert not model.supports(no)
    for wrong in ("attentions", "", "supports"):
        with pytest.raises(ValueError, match="unknown ability.*expected one of generate"):
            model.supports(wrong)
    with pytest.raises(TypeError):
        model.supports(3)


@pytest.mark.parametrize("name, able", [
    ("qwen3", {"chat", "tools", "thinking", "thinking_switch"}), ("llama3_2", {"chat", "tools"}), ("gemma3", {"chat"}),
    ("mistral_nemo", {"chat", "tools"}), ("gpt2", set())])
def test_what_templates_can_do(shared, name, able):
    from gomlx import abilities
    assert abilities.of_chat(gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", name))) == able


def test_streams_say_where_they_are(model):
    stream = model.generate("Once", max_tokens=3, temperature=0)
    assert repr(stream) == "<gomlx.TokenStream not ended, iterate over it or read() it: 0 tokens>"
    stream.read()
    assert repr(stream) == "<gomlx.TokenStream ended by length after 3 tokens>"
    batch = model.generate_batch(["Once", "The"], max_tokens=2)
    assert repr(batch) == "<gomlx.BatchStream of 2, not ended, iterate over it or read() it>"
    batch.read(progress=False)
    assert repr(batch) == "<gomlx.BatchStream of 2, ended>"


def test_modules_are_attributes_without_being_imported():
    code = ("import gomlx, sys; assert 'gomlx.nn' not in sys.modules; "
            "print(gomlx.core.array(1).item(), gomlx.nn.Linear(1, 2).weight.shape, gomlx.optimizers.SGD.__name__, "
            "gomlx.utils.tree_map.__name__, [one for one in ('Any', 'LATER', 'nn') if one in dir(gomlx)])")
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "1 (2, 1) SGD tree_map ['nn']\n"


def test_conveniences(model):
    assert model.encode("Once upon") == model.tokenizer.encode_prompt("Once upon")
    assert model.decode(model.encode("Once upon")) == "Once upon"
    assert model.decode(model.encode("Once")[0]) == "Once"
    assert mx.array_equal(model.logits("Once upon"), model.logits(model.encode("Once upon")))
    several = model.logits(["Once upon", "The"])
    assert [one.shape[0] for one in several] == [2, 1] and mx.array_equal(several[1], model.logits("The"))
    assert model.num_layers == model.info["n_layers"]
    assert (model.info["quant_bits"], model.info["quant_group"], model.info["quant_type"]) == (8, 32, "Q8_0")


@pytest.mark.parametrize("form, want", [("mlx-4", (4, 64, "affine")), ("mxfp4", (4, 32, "mxfp4")),
                                        ("bf16", (None, None, "BF16"))])
def test_info_says_how_weights_are_quantised(tmp_path, form, want):
    made = tmp_path / "made"
    gomlx.convert(gomlx.loading.PACKAGED_FILE, made, form)
    with gomlx.load(made) as model:
        assert (model.info["quant_bits"], model.info["quant_group"], model.info["quant_type"]) == want
        [found] = gomlx.discover(made)
        assert (found.quant_bits, found.quant_group, found.quant_type) == want


def test_without_the_extension_a_sentence_says_what_is_missing(tmp_path):
    """As on a system for which there is no wheel."""
    shutil.copytree(os.path.dirname(gomlx.__file__), tmp_path / "gomlx",
                    ignore=shutil.ignore_patterns("*.so", "models", "__pycache__"))
    done = subprocess.run([sys.executable, "-S", "-P", "-c", "import gomlx"],
                          env=os.environ | {"PYTHONPATH": str(tmp_path)},
                          cwd=tmp_path, capture_output=True, text=True)
    assert "ImportError: gomlx's extension is not installed for Linux" in done.stderr
    # A clone of the sources, in which nothing was built, is found before what is installed.
    (tmp_path / "csrc").mkdir()
    (tmp_path / "csrc" / "gomlx.h").touch()
    done = subprocess.run([sys.executable, "-S", "-c", "import gomlx"], cwd=tmp_path, capture_output=True, text=True)
    assert f"ImportError: Python found gomlx's sources, {tmp_path}, whose extension is not built" in done.stderr
    assert "python -P" in done.stderr and "pip install -e ." in done.stderr
