"""The prompt cache and state bundles: what is not computed again, and that the bits stay the same."""
import functools
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import gomlx
from gomlx import _gomlx
from gomlx._generation.prompt_cache import common_length, packed

TEXT = "Once upon a time there was a little dog who lived in a big house with a small girl and her mom. " * 30


@pytest.fixture
def model():
    with gomlx.load(prompt_cache=gomlx.PromptCache(entries=2, min_tokens=32), context_length=1024) as loaded:
        yield loaded


def said(model, prompt, **options):
    return model.generate(prompt, **({"max_tokens": 12, "temperature": 0.9, "seed": 3} | options)).read()


def test_a_prompt_with_the_same_beginning_is_computed_from_there(model):
    ids = model.tokenizer.encode_prompt(TEXT)[:300]
    with gomlx.load(prompt_cache=False, context_length=1024) as cold:
        first, again = said(model, ids), said(model, ids)
        assert (first.cached_tokens, again.cached_tokens) == (0, 299)
        other = said(model, [*ids[:200], *ids[10:60]])
        assert other.cached_tokens >= 200
        for mine, prompt in ((first, ids), (again, ids), (other, [*ids[:200], *ids[10:60]])):
            want = said(cold, prompt)
            assert want.cached_tokens == 0 and mine.tokens == want.tokens and mine.logprobs == want.logprobs
        assert said(cold, ids).cached_tokens == 0
    stats = model.prompt_cache.stats
    assert stats.hits == 2 and stats.misses == 1 and stats.hit_rate == pytest.approx(2 / 3)
    assert stats.entries >= 1 and stats.bytes > 0 and stats.hit_tokens >= 499


def test_a_conversation_goes_on_where_it_was(model):
    messages = [{"role": "user", "content": "Tell me a story about a cat. " * 8}]
    first = model.chat(messages, max_tokens=20, temperature=0).read()
    after = model.chat([*messages, first.message, {"role": "user", "content": "And then?"}], max_tokens=5,
                       temperature=0).read()
    assert after.cached_tokens > first.prompt_tokens - 4


def test_short_prompts_and_old_ones_are_not_kept(model):
    said(model, "Once upon a time")
    assert model.prompt_cache.stats.entries == 0
    ids = model.tokenizer.encode_prompt(TEXT)
    for i in range(4):
        said(model, ids[7 * i:7 * i + 50], max_tokens=1)
    assert model.prompt_cache.stats.entries == 2
    model.prompt_cache.clear()
    assert model.prompt_cache.stats.entries == 0


def test_warmed_prompts_stay(model):
    ids = model.tokenizer.encode_prompt(TEXT)
    assert model.warm_prompt_cache(ids[:20]) == 20          # shorter than min_tokens, and still
    for i in range(4):
        said(model, ids[7 * i + 1:7 * i + 50], max_tokens=1)
    result = said(model, ids[:24])
    assert result.cached_tokens == 20
    with gomlx.load(prompt_cache=False) as cold:
        assert said(cold, ids[:24]).tokens == result.tokens


def test_batches_and_samples_take_from_it(model):
    ids = model.tokenizer.encode_prompt(TEXT)[:100]
    model.warm_prompt_cache(ids)
    stream = model.generate_batch([[*ids, 5], [*ids, 6, 7]], max_tokens=4, temperature=0)
    assert [one.cached_tokens for one in stream.read()] == [100, 100]
    for one in model.generate([*ids, 9], n=2, max_tokens=4, seed=1, temperature=1.0).read():
        assert one.error is None


def test_closing_the_model_closes_the_entries():
    model = gomlx.load(prompt_cache=gomlx.PromptCache(min_tokens=4))
    stream = model.generate("Once upon a time there was", max_tokens=50)
    next(stream)
    said(model, "Once upon a time there was a dog")
    model.close()
    stream.close()
    assert model.prompt_cache.stats.entries == 0


def test_a_beginning_shorter_than_a_block_is_computed_once():
    """One after another, as a server's clients with one system prompt come."""
    with gomlx.load(context_length=256) as model, gomlx.load(context_length=256, prompt_cache=False) as cold:
        system = model.tokenizer.encode_prompt(TEXT)[:100]
        for i in range(6):
            mine, want = (said(one, [*system, 10 + i, 20 + i]) for one in (model, cold))
            assert mine.cached_tokens == (100 if i else 0)
            assert (mine.tokens, mine.logprobs) == (want.tokens, want.logprobs)


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3", "gpt_oss", "gemma4"])
def test_of_entries_the_one_that_can_go_back_is_taken(shared, name):
    """A recurrent layer goes back to its checkpoints alone: an entry that shares less may have more to give."""
    path = os.path.join(shared, "data", "models", name)
    with gomlx.load(path, prompt_cache=gomlx.PromptCache(min_tokens=16)) as model, \
            gomlx.load(path, prompt_cache=False) as cold:
        ids = [10 + i * 7 % 200 for i in range(150)]
        for prompt in (ids[:110], [*ids[:70], 5]):
            said(model, prompt, ignore_eos=True)
        for end, there in ((40, 0), (90, 70), (40, 40)):    # the first that shared 40 can go back there
            mine, want = (said(one, [*ids[:end], 6 + there, 7], ignore_eos=True)
                          for one in (model, cold))
            assert mine.cached_tokens == (there if name == "qwen3_5" else end)
            assert (mine.tokens, mine.logprobs) == (want.tokens, want.logprobs)


def test_memory_that_entries_share_counts_once(model):
    """Two that share a block, beside one that does not, in room for one of its own and what they share."""
    ids = model.tokenizer.encode_prompt(TEXT)
    said(model, ids[:300], max_tokens=1)
    alone = model.prompt_cache.stats.bytes
    said(model, [*ids[:299], 7], max_tokens=1)
    assert model.prompt_cache.stats.entries == 2 and model.prompt_cache.stats.bytes == alone * 3 // 2
    with gomlx.load(prompt_cache=gomlx.PromptCache(max_bytes=alone * 3 // 2), context_length=1024) as other:
        for prompt in (ids[:300], [*ids[:299], 7]):
            said(other, prompt, max_tokens=1)
        assert other.prompt_cache.stats.entries == 2
        said(other, ids[20:320], max_tokens=1)
        assert other.prompt_cache.stats.entries == 1 and other.prompt_cache.stats.bytes == alone
    with gomlx.load(prompt_cache=gomlx.PromptCache(max_bytes=alone // 2), context_length=1024) as warm:
        warm.warm_prompt_cache(ids[:300])
        said(warm, [*ids[:299], 7], max_tokens=1)                # it needs one block beside that of the warmed one
        assert warm.prompt_cache.stats.entries == 2


def test_bytes_of_sessions(model):
    with pytest.raises(TypeError, match="sequence of sessions"):
        _gomlx.session_bytes([1])
    session = model.session()
    session.append([5, 6, 7])
    fork = session.fork()
    assert _gomlx.session_bytes(iter([session, fork])) == session.nbytes == fork.nbytes > 0
    assert _gomlx.session_bytes([]) == 0
    fork.close()
    with pytest.raises(ValueError, match="closed"):
        _gomlx.session_bytes([session, fork])
    assert session.append([8]) == 1                              # what failed left no session in use


@pytest.mark.parametrize("options", [{"entries": -1}, {"min_tokens": 0}, {"max_bytes": -1}])
def test_sizes_of_the_cache(options):
    with pytest.raises(ValueError, match=str(next(iter(options.values())))):
        gomlx.PromptCache(**options)


def test_common_beginnings():
    rng = np.random.default_rng(0)
    for _ in range(300):
        a = rng.integers(0, 2, rng.integers(0, 12)).tolist()
        b = rng.integers(0, 2, rng.integers(0, 12)).tolist()
        want = len(os.path.commonprefix([a, b]))
        assert common_length(packed(a), packed(b)) == want


# ---- state bundles ----

CONTINUE = """
import sys, gomlx
from gomlx import StateBundle
with gomlx.load() as model:
    session = StateBundle.load(sys.argv[1]).restore(model)
    ids = [int(one) for one in sys.argv[2].split(",")]
    print(model.generate(ids, max_tokens=20, temperature=0.8, seed=5, session=session).read().logprobs)
"""


def test_a_bundle_goes_on_in_another_process(tmp_path):
    path = tmp_path / "story.json"
    with gomlx.load() as model:
        ids = model.tokenizer.encode_prompt(TEXT)[:500]
        session = model.session()
        model.generate(ids, max_tokens=0, session=session).read()
        model.bundle(session, prompt="a story", meta={"chapter": 1}).save(path)
        want = model.generate([*ids, 7], max_tokens=20, temperature=0.8, seed=5, session=session).read()
    assert sorted(os.listdir(tmp_path)) == ["story.json", "story.json.kv"]
    assert os.stat(path).st_mode & 0o777 == os.stat(str(path) + ".kv").st_mode & 0o777 == 0o600
    known = json.loads(path.read_text())
    assert known["kind"] == "gomlx/state-bundle" and known["version"] == 1 and known["meta"] == {"chapter": 1}
    assert known["prompt"]["token_count"] == 500 and known["model"]["architecture"] == "llama"
    made = subprocess.run([sys.executable, "-P", "-c", CONTINUE, path, ",".join(map(str, [*ids, 7]))],
                          capture_output=True, text=True, check=True)
    assert json.loads(made.stdout) == want.logprobs


def test_bundles_that_do_not_belong(tmp_path):
    path = tmp_path / "b.json"
    with gomlx.load() as model:
        session = model.session()
        model.generate("Once upon a time", max_tokens=0, session=session).read()
        bundle = model.bundle(session)
        bundle.save(path)
        good, kv = path.read_text(), (tmp_path / "b.json.kv").read_bytes()
        for change, words in (({"version": 9}, "version 9"), ({"kind": "x"}, "'x'"), ({"model": 3}, "model is int"),
                              ({"kv_path": "../../etc/passwd"}, "kv_path"), ({"kv_path": 3}, "kv_path")):
            path.write_text(json.dumps(json.loads(good) | change))
            with pytest.raises(gomlx.Error, match=words):
                gomlx.StateBundle.load(path)
        path.write_text(good)
        (tmp_path / "b.json.kv").write_bytes(kv[:-1] + bytes([kv[-1] ^ 1]))
        with pytest.raises(gomlx.Error, match="SHA-256"):
            gomlx.StateBundle.load(path)
        other = gomlx.StateBundle(**{**vars(bundle), "model": bundle.model | {"hash": "0"}})
        with pytest.raises(ValueError, match="hash"):
            other.restore(model)
        with pytest.raises(FileNotFoundError):
            gomlx.StateBundle.load(tmp_path / "none.json")


# ---- warmed beginnings that cannot miss ----

@pytest.fixture
def plain():
    """Where nothing but what is warmed is kept."""
    with gomlx.load(prompt_cache=gomlx.PromptCache(entries=0), context_length=1024) as loaded:
        yield loaded


@pytest.mark.parametrize("end", ["", " ", "  ", "\n", ".", " do", "\n\n", "'", "<|im_", " 12"])
def test_a_warmed_text_is_taken_whole_whatever_comes_after_it(plain, end):
    prefix = TEXT[:240].rstrip() + end
    kept = plain.warm_prompt_cache(prefix)
    assert kept >= len(plain.tokenizer.encode_prompt(TEXT[:240].rstrip())) - 2
    for after in ("g", "The", " cat", "  x", "\n", "\n\nNo", ".", "...", "34", "'s", "start|>user", "é"):
        result = said(plain, prefix + after, max_tokens=1)
        assert result.cached_tokens in (kept, result.prompt_tokens - 1), (end, after)


def test_no_continuation_changes_the_ids_that_are_kept(shared):
    from gomlx._generation.prefixes import of_text
    rng = np.random.default_rng(0)
    with open(os.path.join(shared, "data", "text", "stories.txt"), encoding="utf-8") as file:
        text = file.read(100000)
    folder = os.path.join(shared, "data", "tokenizers")
    for name in sorted(os.listdir(folder)):
        tok = gomlx.Tokenizer.from_file(os.path.join(folder, name))
        lost = 0
        for begin in rng.integers(0, 99000, 100).tolist():
            cut = begin + int(rng.integers(1, 200))
            whole = tok.encode_prompt(text[begin:cut + int(rng.integers(0, 60))])
            ids = of_text(tok, text[begin:cut])
            assert whole[:len(ids)] == ids
            lost += len(tok.encode_prompt(text[begin:cut])) - len(ids)
        assert lost < 200                        # of each two at most


def test_parts_of_a_warmed_prompt_are_taken(plain):
    ids = plain.tokenizer.encode_prompt(TEXT)[:200]
    plain.warm_prompt_cache(ids)
    assert said(plain, [*ids[:40], 5, 6]).cached_tokens == 40
    assert said(plain, [*ids[:10], 5, 6]).cached_tokens == 0


TOOLS = [{"type": "function", "function": {"name": f"look_up_{i}", "description": "Finds a thing.", "parameters": {
    "type": "object", "properties": {"name": {"type": "string"}}}}} for i in range(3)]


SYSTEM = {"role": "system", "content": "You are a careful assistant that answers in one short sentence. " * 4}


def test_messages_are_warmed(plain):
    with gomlx.load(prompt_cache=False) as cold:
        kept = plain.warm_prompt_cache(messages=[SYSTEM])
        assert kept > 40
        for content in ("Why?", " a", "\nx", "12", "(b)"):
            asked = [SYSTEM, {"role": "user", "content": content}]
            got, want = (one.chat(asked, max_tokens=4, temperature=0).read() for one in (plain, cold))
            assert got.cached_tokens >= kept and (got.tokens, got.logprobs) == (want.tokens, want.logprobs)
        asked = [SYSTEM, {"role": "user", "content": "Why?"}]
        more = plain.warm_prompt_cache(messages=asked)
        assert more > kept
        for options in ({}, {"n": 2}):
            assert plain.chat(asked, max_tokens=1, **options).read() is not None
        assert plain.chat(asked, max_tokens=1).read().cached_tokens == more


@pytest.mark.parametrize("name, takes_tools", [("gemma3", False), ("llama3_2", True), ("qwen3", True),
                                               ("mistral_nemo", True)])
def test_what_conversations_begin_with(shared, name, takes_tools):
    """Templates of real models; Gemma's knows no system turn by itself."""
    from gomlx._generation.prefixes import of_messages
    tok = gomlx.Tokenizer.from_file(os.path.join(shared, "data", "tokenizers", name))
    for tools in (None, *[TOOLS] * takes_tools):
        for messages in ([SYSTEM], [], [SYSTEM, {"role": "user", "content": "Hello"},
                                        {"role": "assistant", "content": "Hi."}],
                         [{"role": "user", "content": "Hello"}]):
            ids = of_messages(tok, functools.partial(tok.apply_chat_template, tools=tools), messages)
            asks = not messages or messages[-1]["role"] != "user"
            for content in ("Why is that so?", "a", "12 of them", "'s", "\u00e9"):
                more = [{"role": "user" if asks else "assistant", "content": content}]
                whole = tok.apply_chat_template(messages + more, tools=tools, tokenize=True)
                assert whole[:len(ids)] == ids
            text = tok.decode(ids, False)
            if name == "mistral_nemo":           # it puts tools and system into the last turn of the user
                continue
            assert all(one["content"].strip()[:-8] in text for one in messages)
            assert tools is None or all(one["function"]["name"] in text for one in tools)


def test_where_nothing_can_be_kept_the_log_says_so(plain, caplog):
    for prefix in ("", " ", "O"):
        assert plain.warm_prompt_cache(prefix) == 0
        assert "nothing is kept" in caplog.text
        caplog.clear()
    assert plain.prompt_cache.stats.entries == 0
    for wrong in ({}, {"prefix": "a", "messages": []}, {"prefix": "a", "tools": TOOLS}):
        with pytest.raises(ValueError, match="either a prefix, or messages"):
            plain.warm_prompt_cache(**wrong)
    with pytest.raises(TypeError, match="chat_format: only with"):
        plain.warm_prompt_cache("a", chat_format="chatml")
    with pytest.raises(ValueError, match="takes none"):
        plain.warm_prompt_cache(tools=TOOLS)


def test_benchmarks_leave_what_is_warmed_alone(plain):
    ids = plain.tokenizer.encode_prompt(TEXT)[:100]
    plain.warm_prompt_cache(ids)
    cache = plain.prompt_cache
    report = gomlx.bench(plain, prompt=16, generate=2, repeat=1, kv_restore=False, state_bundle=False, probes=False)
    assert report["prompt_cache"]["hits"] == 1 and plain.prompt_cache is cache and cache.stats.entries == 1
    assert said(plain, [*ids, 5]).cached_tokens == 100
