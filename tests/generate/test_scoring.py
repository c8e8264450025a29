"""classify, score and embed against the logits that they stand for."""
import json

import numpy as np
import pytest

import gomlx
import gomlx.core as mx
from gomlx._generation.scoring import stated_pooling

PROMPTS = ["Once upon a time", "The cat", "Tom went to the", "One day, a little girl named Lily found a", "A"]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as made:
        yield made


def test_a_rows_logsumexp_does_not_depend_on_others():
    for width in (2048, 70000, 140000, 300000):
        rows = np.random.default_rng(0).normal(size=(300000 * 8 // width, width)).astype("f4") * 3
        whole = np.asarray(mx.logsumexp(mx.array(rows), axis=-1))
        for n in (1, 2, 5, 17, 146, 512):
            np.testing.assert_array_equal(np.asarray(mx.logsumexp(mx.array(rows[:n]), axis=-1)), whole[:n])


def logprobs_of(model, ids):
    logits = np.asarray(model.logits(ids)).astype("f8")
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


def test_classify_is_the_last_row_of_the_logits(model):
    found = model.classify(PROMPTS, return_logits=True)
    assert len(found) == len(PROMPTS)
    assert found.prompt_tokens == sum(len(model.tokenizer.encode_prompt(p)) for p in PROMPTS)
    assert found.tokens_per_second == pytest.approx(found.prompt_tokens / found.seconds)
    for prompt, one in zip(PROMPTS, found, strict=True):
        logits = np.asarray(model.logits(model.tokenizer.encode_prompt(prompt)))[-1]
        np.testing.assert_array_equal(np.asarray(one.logits), logits)
        assert one.token == logits.argmax() and one.label is None
        stream = model.generate(prompt, max_tokens=1, temperature=0).read()
        assert [one.token] == stream.tokens and one.logprob == pytest.approx(stream.logprobs[0], abs=1e-5)


def test_labels_are_scored_whole(model):
    labels = [" dog", " was a boy who had a cat", " cat", 17, "!"]
    found = model.classify(PROMPTS, labels=labels)
    for prompt, one in zip(PROMPTS, found, strict=True):
        ids = model.tokenizer.encode_prompt(prompt)
        for label in labels:
            tokens = [label] if isinstance(label, int) else model.tokenizer.encode(label, add_special_tokens=False)
            logprobs = logprobs_of(model, ids + tokens)
            want = sum(logprobs[len(ids) - 1 + k, token] for k, token in enumerate(tokens))
            assert one.label_logprobs[label] == pytest.approx(want, abs=2e-4)
        assert sum(one.probabilities.values()) == pytest.approx(1)
        assert one.label == max(labels, key=lambda name: one.label_logprobs[name])
        a, b = labels[0], labels[2]
        assert one.probabilities[a] / one.probabilities[b] == pytest.approx(
            np.exp(one.label_logprobs[a] - one.label_logprobs[b]))


def test_prompts_do_not_change_each_other(model):
    """More rows than a pass has, labels longer than a pass: the same bits alone."""
    rng = np.random.default_rng(1)
    prompts = [[int(i) for i in rng.integers(10, 400, n)] for n in (600, 1, 40, 520, 2, 7)]
    labels = [int(i) for i in (20, 30)]
    together = model.classify(prompts, labels=labels, return_logits=True)
    for prompt, one in zip(prompts, together, strict=True):
        alone = model.classify([prompt], labels=labels, return_logits=True)[0]
        np.testing.assert_array_equal(np.asarray(one.logits), np.asarray(alone.logits))
        assert one.label_logprobs == alone.label_logprobs
    engine = model._engine
    long = [[int(i) for i in rng.integers(10, 400, n)] for n in (700, 1, 3)]
    _, sums = engine.score("last", prompts[2:3], long)
    for label, total in zip(long, sums[0], strict=True):
        assert total == pytest.approx(sum(model.score(prompts[2] + label).logprobs[40:]), abs=1e-3 * len(label) ** 0.5)


def test_score_is_the_logprob_of_each_token(model):
    texts = ["Once upon a time there was a cat.", "The", "Tom and the dog ran."]
    for text, one in zip(texts, model.score(texts), strict=True):
        ids = model.tokenizer.encode_prompt(text)
        logprobs = logprobs_of(model, ids)
        assert one.tokens == ids and one.logprobs[0] is None
        np.testing.assert_allclose(one.logprobs[1:], logprobs[np.arange(len(ids) - 1), ids[1:]], atol=1e-5)
        assert one.total == pytest.approx(sum(one.logprobs[1:]))
        assert one.perplexity == (None if len(ids) == 1 else pytest.approx(np.exp(-one.total / (len(ids) - 1))))
        assert model.score(text) == one == model.score(ids)
    long = list(range(10, 400)) * 3
    assert model.score([long, long])[1].logprobs == model.score(long).logprobs


def test_embeddings(model):
    hidden = np.asarray(model._engine.score("hidden", [model.tokenizer.encode_prompt(p) for p in PROMPTS])[3])
    last = np.asarray(model.embed(PROMPTS))
    assert last.shape == (len(PROMPTS), model.info["hidden_size"])
    np.testing.assert_array_equal(last[3], hidden[-1])
    mean = np.asarray(model.embed(PROMPTS[3], pooling="mean"))
    np.testing.assert_allclose(mean, hidden.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(model.embed(PROMPTS, pooling="cls"))[3], hidden[0])
    np.testing.assert_allclose(np.linalg.norm(np.asarray(model.embed(PROMPTS, normalize=True)), axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(np.asarray(model.embed(PROMPTS[1])), last[1])
    assert model.embed([]).shape == (0, model.info["hidden_size"])


def test_hidden_states_are_what_the_head_takes():
    with gomlx.load(activations="float32") as model:
        ids = list(range(30, 50))
        hidden = np.asarray(model._engine.score("hidden", [ids])[0]).astype("f8")
        names = model._engine.weight_names()
        name = "lm_head.weight" if "lm_head.weight" in names else "model.embed_tokens.weight"
        head = np.asarray(model._engine.weight(name))
        np.testing.assert_allclose(hidden @ head.T.astype("f8"), np.asarray(model.logits(ids)), rtol=1e-4, atol=1e-4)


def test_what_the_files_say_of_pooling(tmp_path):
    assert stated_pooling(str(tmp_path), {}) == {}
    (tmp_path / "1_Pooling").mkdir()
    file = tmp_path / "1_Pooling" / "config.json"
    file.write_text(json.dumps({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}))
    assert stated_pooling(str(tmp_path), {}) == {"pooling": "last", "normalize": False, "source": str(file)}
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "sentence_transformers.models.Normalize"}]))
    assert stated_pooling(str(tmp_path), {})["normalize"]
    file.write_text(json.dumps({"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}))
    assert stated_pooling(str(tmp_path), {}) == {}
    assert stated_pooling("x.gguf", {"qwen3.pooling_type": 1})["pooling"] == "mean"


def test_wrong_arguments(model):
    for prompts in (["a", ""], [[10 ** 6]], [[-1]]):
        with pytest.raises(ValueError):
            model.classify(prompts)
    with pytest.raises(TypeError, match="str or token ids"):
        model.classify([3])
    for labels in ("yes", [], ["a", "a"], [""]):
        with pytest.raises(TypeError if labels == "yes" else ValueError, match="labels"):
            model.classify(["a"], labels=labels)
    with pytest.raises(ValueError, match="too few positions for a label"):
        model.classify([[20] * 2040], labels=[" one of the many days that they had in the forest"])
    with pytest.raises(ValueError, match="pooling is 'max'"):
        model.embed("a", pooling="max")
    with pytest.raises(ValueError, match="kind is 'all'"):
        model._engine.score("all", [[1]])
    with pytest.raises(ValueError, match="labels"):
        model._engine.score("logits", [[1]], [[2]])
    assert model.score([]) == [] and len(model.classify([])) == 0


def test_classify_draws_what_generate_would(model):
    options = {"temperature": 1.3, "top_k": 20, "repetition_penalty": 1.5}
    found = model.classify(PROMPTS, seed=7, return_logits=True, **options)
    for i, (prompt, one) in enumerate(zip(PROMPTS, found, strict=True)):
        want = model.generate(prompt, max_tokens=1, seed=7 + i, ignore_eos=True, **options).read()
        assert [one.token] == want.tokens and one.logprob == pytest.approx(want.logprobs[0], abs=1e-5)
        assert one.text == model.tokenizer.decode([one.token])
    drawn = {model.classify(PROMPTS[:1], sampling=gomlx.Sampling(temperature=2.0), seed=i)[0].token for i in range(20)}
    assert len(drawn) > 1
    assert model.classify(PROMPTS[:1], temperature=0)[0].token == model.classify(PROMPTS[:1])[0].token
    labelled = model.classify(PROMPTS, labels=["a", "b"], seed=7, **options)
    assert [one.token for one in labelled] == [one.token for one in found] and labelled[0].label in ("a", "b")
    for wrong, kind in (({"seed": 3}, ValueError), ({"sampling": 5}, TypeError), ({"temprature": 1}, TypeError),
                        ({"temperature": -1.0}, ValueError), ({"temperature": 1.0, "seed": -1}, ValueError)):
        with pytest.raises(kind):
            model.classify(PROMPTS, **wrong)
