"""What ends a generation: stop texts wherever tokens end, stop ids and where they come from, minimum and maximum."""
import json
import os
import random

import pytest

import gomlx
from gomlx._generation import defaults

PROMPT = [50, 60, 70]
TEXT = ("Once upon a time, a dög named 你好 ran ... ran ran away!\n\nThe end? aabaabaac ababab. 🐶🐶🐱 é e\u0301 naïve "
        "\"quotes\" the the then. \t<|im_end|> tabs")


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as loaded:
        yield loaded


def finish(stream):
    tokens = list(stream)
    return tokens, stream.result


def say(model, ids, **options):
    """A generation whose tokens are these ids."""
    left = list(ids)

    def processor(_, logits):
        logits[left.pop(0)] = 1e9

    return finish(model.generate(PROMPT, temperature=0, logits_processors=[processor],
                                 **({"max_tokens": len(ids), "ignore_eos": True} | options)))


def pieces(model, text, draw):
    """Ids of the text, cut in places that no tokenizer would choose."""
    ids, at = [], 0
    while at < len(text):
        length = draw.choice((1, 1, 2, 3, 8, 30))
        ids += model.tokenizer.encode(text[at:at + length], add_special_tokens=False)
        at += length
    return [i for i in ids if not model.tokenizer.is_special(i)]


def cut(text, stops):
    """The text before the stop that is complete first, the longest of those, and that stop."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[:end - len(stop)], stop
    return text, None


@pytest.mark.parametrize("seed", range(60))
def test_stop_texts_wherever_tokens_end(model, seed):
    draw = random.Random(seed)
    ids = pieces(model, TEXT, draw)
    _, plain = say(model, ids)
    start = len(model.tokenizer.decode(PROMPT))
    assert plain.text == model.tokenizer.decode(PROMPT + ids)[start:] and "你好" in plain.text
    stops = ["never in it", "ran away?", "🐱🐶"]
    for _ in range(draw.randint(1, 6)):
        at = draw.randrange(len(plain.text))
        stops.append(plain.text[at:at + draw.choice((1, 2, 3, 5, 9, 40))])
    draw.shuffle(stops)
    want, stop = cut(plain.text, stops)
    tokens, result = say(model, ids, stop=stops)
    assert result.text == want and result.stop == stop and result.finish_reason == "stop"
    assert "".join(token.text for token in tokens) == want
    assert tokens[-1].finish_reason == "stop" and all(token.finish_reason is None for token in tokens[:-1])


@pytest.mark.parametrize("stops, want", [
    (["aab", "aabaac"], "The end? "), (["aabaac", "abaab"], "The end? a"), (["aabaac"], "The end? aab"),
    (["bab."], "The end? aabaabaac aba"), (["ab", "abab"], "The end? a"), (["baa", "aba", "ba"], "The end? a"),
    (["\n\nThe end"], None)])
def test_overlapping_stops(model, stops, want):
    for seed in range(5):
        _, result = say(model, pieces(model, TEXT, random.Random(seed)), stop=stops)
        before = result.text[result.text.index("!") + 1:]
        assert before == ("" if want is None else "\n\n" + want)


def test_what_was_held_back_comes_at_the_end(model):
    ids = model.tokenizer.encode("The dog ran awa", add_special_tokens=False)
    tokens, result = say(model, ids, stop=["ran away", "awake"])
    assert result.text.endswith("ran awa") and result.finish_reason == "length" and result.stop is None
    assert "ran" not in "".join(token.text for token in tokens[:-1])


def test_the_text_of_a_special_token_is_its_id(model):
    """Special tokens have no text in the output; asked for by their text they end it all the same."""
    special = model.tokenizer.token_to_id("<|im_end|>")
    ids = model.tokenizer.encode("a dog", add_special_tokens=False) + [special] + [90, 91]
    _, result = say(model, ids, stop="<|im_end|>")
    assert result.finish_reason == "stop" and result.stop == special and result.tokens == ids[:-3]
    _, result = say(model, ids)
    assert result.tokens == ids and result.finish_reason == "length"


def test_stop_ids(model):
    _, plain = finish(model.generate("Once upon a time", max_tokens=20, temperature=0))
    third = plain.tokens[2]
    tokens, result = finish(model.generate("Once upon a time", max_tokens=20, temperature=0, stop_ids=[third, 7]))
    assert result.stop == third and result.finish_reason == "stop" and third not in result.tokens
    assert result.tokens == plain.tokens[:plain.tokens.index(third)]
    for wrong in (-1, model.vocab_size):
        with pytest.raises(ValueError, match="stop id"):
            model.generate("x", stop_ids=[wrong])
    with pytest.raises(TypeError):
        model.generate("x", stop_ids=[1.5])


def test_ignoring_the_end_goes_on(model):
    ids = model.tokenizer.encode("Tell me a story.")
    end = model.info["stop_ids"][0]["id"]
    _, stopped = say(model, [5, end, 6], ignore_eos=False)
    assert stopped.tokens == [5] and stopped.stop == end
    _, through = say(model, [5, end, 6])
    assert through.tokens == [5, end, 6]
    _, asked = say(model, [5, end, 6], stop_ids=[end])
    assert asked.tokens == [5]
    assert len(finish(model.generate(ids, max_tokens=400, temperature=0, ignore_eos=True))[1].tokens) == 400


@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 3}], ids=str)
def test_no_stop_before_the_minimum(model, options):
    wish = {one["id"]: 50.0 for one in model.info["stop_ids"]}
    for least in (0, 1, 7):
        _, result = finish(model.generate("Once", max_tokens=30, min_tokens=least, logit_bias=wish, **options))
        assert len(result.tokens) == least and result.finish_reason == "stop"
    for wrong in ({"min_tokens": -1}, {"min_tokens": 5, "max_tokens": 4}):
        with pytest.raises(ValueError, match="min_tokens"):
            model.generate("Once", **wrong)
    only = {"min_tokens": 2, "suppress_tokens": set(range(model.vocab_size)) - wish.keys()}
    with pytest.raises(ValueError, match="no token is left"):
        finish(model.generate("Once", **only, **options))


def test_no_tokens_asked_for_computes_the_prompt(model):
    ids = model.tokenizer.encode("Once upon a time there was a little girl")
    session = model.session()
    tokens, result = finish(model.generate(ids, max_tokens=0, session=session))
    assert [token.id for token in tokens] == [-1] and result.tokens == [] and result.text == ""
    assert result.finish_reason == "length" and result.prefill_tps > 0 and session.length == len(ids)
    _, again = finish(model.generate(ids + [5], max_tokens=4, temperature=0, session=session))
    session.close()
    assert again.cached_tokens == len(ids)
    assert again.tokens == finish(model.generate(ids + [5], max_tokens=4, temperature=0))[1].tokens
    assert finish(model.generate("Once", max_tokens=0))[1].finish_reason == "length"


# ---- what a model's files say ----

@pytest.mark.parametrize("generation, ignored", [
    ({}, {}),
    ({"temperature": 0.7, "top_k": 20, "do_sample": True, "eos_token_id": [1], "transformers_version": "5",
      "_from_model_config": True}, {}),
    ({"temperature": 0.7, "do_sample": False, "repetition_penalty": 1.1}, {"temperature": 0.7}),
    ({"num_beams": 4, "max_length": 2048, "no_repeat_ngram_size": 0, "epsilon_cutoff": 0.1, "length_penalty": 1.0},
     {"num_beams": 4, "max_length": 2048, "epsilon_cutoff": 0.1}),
])
def test_what_is_not_applied_of_generation_config_is_told(generation, ignored):
    assert defaults.sampling_ignored_in_config(generation, defaults.sampling_from_config(generation)) == ignored


def test_lists_in_generation_config():
    found = defaults.sampling_from_config({"suppress_tokens": [1, 2], "bad_words_ids": [[3], [4, 5]], "typical_p": 0.9})
    assert found == {"temperature": 1.0, "typical_p": 0.9, "suppress_tokens": [1, 2], "bad_words": [[3], [4, 5]]}
    greedy = {"do_sample": False, "suppress_tokens": [1, 2], "bad_words_ids": []}
    assert defaults.sampling_from_config(greedy) == {"suppress_tokens": [1, 2]}
    for wrong in ({"suppress_tokens": 5}, {"suppress_tokens": [True]}, {"bad_words_ids": [5]}, {"bad_words_ids": "abc"},
                  {"bad_words_ids": [[-1]]}, {"suppress_tokens": [2**31]}):
        with pytest.raises(gomlx.Error, match=next(iter(wrong))):
            defaults.sampling_from_config(wrong)


@pytest.mark.parametrize("key, value, words", [
    ("temperature", "hot", "a number"), ("temperature", -1, "temperature is -1, expected 0 or more"),
    ("temperature", float("nan"), "a number"), ("temperature", True, "a number"), ("temperature", [0.7], "a number"),
    ("temperature", 1e39, "a number"), ("top_p", 1.5, "up to 1"), ("top_p", 0, "more than 0"),
    ("top_k", -3, "0 .off. or more"), ("top_k", 1.5, "a whole number"), ("top_k", "40", "a whole number"),
    ("min_p", 2, "0 to 1"), ("typical_p", -0.1, "more than 0"), ("repetition_penalty", 0, "more than 0"),
    ("do_sample", "yes", "true or false"), ("do_sample", 1, "true or false"), ("suppress_tokens", [2048], "below 2048"),
    ("suppress_tokens", {}, "token ids"), ("bad_words_ids", [[5, 2048]], "below 2048"),
    ("bad_words_ids", "ab", "token ids"), ("eos_token_id", "x", "a token id or a list"),
    ("eos_token_id", [1, "x"], "a token id"), ("eos_token_id", 1.0, "a token id"),
    ("eos_token_id", False, "a token id"), ("eos_token_id", {"a": 1}, "a token id"),
])
def test_what_cannot_be_used_of_generation_config_fails_when_it_is_loaded(shared, tmp_path, key, value, words):
    source = os.path.join(shared, "data", "models", "fable")
    for name in os.listdir(source):
        if name != "generation_config.json":
            os.symlink(os.path.join(source, name), tmp_path / name)
    (tmp_path / "generation_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(gomlx.Error, match=f"{tmp_path}/generation_config.json: {key}.*{words}"):
        gomlx.load(tmp_path)


def test_stop_ids_that_are_none(model):
    for files in ({"config": {"eos_token_id": "x"}}, {"config": {"text_config": {"eos_token_id": [[1]]}}}):
        with pytest.raises(gomlx.Error, match="^f/config.json.*: eos_token_id is"):
            defaults.stop_ids(model.tokenizer, where="f", **files)
    with pytest.raises(gomlx.Error, match="^a.gguf: tokenizer.ggml.eot_token_id is 'x', expected a token id$"):
        defaults.stop_ids(model.tokenizer, metadata={"tokenizer.ggml.eot_token_id": "x"}, where="a.gguf")
    assert defaults.stop_ids(model.tokenizer, config={"eos_token_id": [10**6, -1]}).keys() == \
        defaults.stop_ids(model.tokenizer).keys()                   # they cannot come


@pytest.mark.parametrize("metadata, words", [
    ({"temp": -1.0}, "temperature is -1"), ({"top_k": "x"}, "a whole number"), ({"penalty_last_n": -2}, "-1 .all."),
    ({"xtc_threshold": 0.9}, "up to 0.5"), ({"mirostat": 2, "mirostat_tau": -4.0}, "0 .off. or more")])
def test_what_cannot_be_used_of_gguf(metadata, words):
    with pytest.raises(gomlx.Error, match=f"^a.gguf: general.sampling.*{words}"):
        defaults.sampling_from_gguf({f"general.sampling.{key}": value for key, value in metadata.items()}, "a.gguf")


def test_sampling_in_gguf():
    key = "general.sampling."
    metadata = {key + "temp": 0.5, key + "xtc_probability": 0.25, key + "penalty_last_n": 64,
                key + "penalty_repeat": 1.1, key + "mirostat": 2, key + "mirostat_tau": 4.0, "general.name": "x"}
    found = defaults.sampling_from_gguf(metadata)
    assert found == {"temperature": 0.5, "xtc_probability": 0.25, "penalty_last_n": 64, "repetition_penalty": 1.1,
                     "mirostat_tau": 4.0} and defaults.sampling_ignored_in_gguf(metadata, found) == {}
    metadata |= {key + "mirostat": 1, key + "sequence": "kpt"}
    found = defaults.sampling_from_gguf(metadata)
    assert "mirostat_tau" not in found and defaults.sampling_ignored_in_gguf(metadata, found) == {
        key + "mirostat": 1, key + "mirostat_tau": 4.0, key + "sequence": "kpt"}
    gomlx.Sampling(**found)


def test_a_model_s_defaults_are_applied_and_the_rest_is_told(shared, tmp_path):
    source = os.path.join(shared, "data", "models", "fable")
    for name in os.listdir(source):
        os.symlink(os.path.join(source, name), tmp_path / name)
    os.remove(tmp_path / "generation_config.json")
    (tmp_path / "generation_config.json").write_text(json.dumps(
        {"do_sample": True, "temperature": 0.4, "top_k": 9, "suppress_tokens": [300], "num_beams": 3,
         "eos_token_id": [2, 77]}))
    with gomlx.load(tmp_path) as loaded:
        assert loaded.sampling == gomlx.Sampling(temperature=0.4, top_k=9, suppress_tokens=[300])
        assert loaded.info["sampling_ignored"] == {"num_beams": 3}
        sources = {one["id"]: one["sources"] for one in loaded.info["stop_ids"]}
        assert sources[77] == ["generation_config.json"]
        _, result = finish(loaded.generate("Once", max_tokens=20, logit_bias={300: 60.0}, seed=1))
        assert 300 not in result.tokens
