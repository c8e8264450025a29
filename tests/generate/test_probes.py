"""Steered generations, and the events that a probe is told."""
import numpy as np
import pytest

import gomlx
from gomlx import Patch, Probe, PromptCache, Recorder, Steer

PROMPT = "Once upon a time there was a little fox"


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as model:
        yield model


@pytest.fixture(scope="module")
def vector(model):
    return 3 * np.random.default_rng(0).normal(size=model.activation_names()["embedding"][1]).astype(np.float32)


def result(model, n=12, **options):
    return model.generate(PROMPT, **{"max_tokens": n, "temperature": 0.0, "ignore_eos": True} | options).read()


def bits(one):
    return one.tokens, np.array(one.logprobs, np.float32).tobytes()


def test_zero_changes_no_bit(model, vector):
    plain = bits(result(model))
    for edit in (Steer("layers.*.residual", 0 * vector), Steer("layers.*.mlp", vector, scale=0),
                 Steer("logits", np.zeros(model.vocab_size)), Steer("layers.1.input", vector, positions=slice(0, 0))):
        assert bits(result(model, steer=[edit])) == plain


def test_a_steered_generation_is_that_of_steered_passes(model, vector):
    """Every token is the likeliest of a whole pass over what is before it, with the same edits."""
    n_prompt = len(model.tokenizer.encode_prompt(PROMPT))
    for positions in (None, "prompt", "new", slice(3, n_prompt + 4)):
        edit = Steer("layers.1.residual", vector, positions=positions)
        made = result(model, steer=[edit], n=8)
        assert bits(made)[1] != bits(result(model, n=8))[1]
        ids = model.tokenizer.encode_prompt(PROMPT) + made.tokens
        fixed = n_prompt if positions == "prompt" else None
        whole = Steer(edit.name, vector, positions=slice(n_prompt, None) if positions == "new"
                      else slice(0, fixed) if fixed else positions)
        logits = np.asarray(model.inspect(ids, "logits", [whole])["logits"])
        assert logits[n_prompt - 1:-1].argmax(-1).tolist() == made.tokens
        lengths = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True)) \
            - logits.max(-1, keepdims=True)
        np.testing.assert_allclose([lengths[n_prompt - 1 + i, one] for i, one in enumerate(made.tokens)], made.logprobs,
                                   atol=1e-4)


@pytest.mark.parametrize("name", ["qwen3_5", "gemma4", "gpt_oss", "mistral"])
def test_passes_of_their_own_have_the_same_bits(shared, name):
    """Of architectures with states, shared keys, experts and windows; in whole prompts and token by token."""
    with gomlx.load(f"{shared}/data/models/{name}") as model:
        width = model.activation_names()["embedding"][1]
        ids = np.random.default_rng(2).integers(0, model.vocab_size, 600).tolist()
        options = {"max_tokens": 6, "temperature": 0.0, "ignore_eos": True}
        plain = bits(model.generate(ids, **options).read())
        zero = Steer("layers.*.residual", np.zeros(width))
        for more in ({"steer": zero}, {"steer": zero, "prefill": "token"}, {"probe": Recorder()}):
            assert bits(model.generate(ids, **options, **more).read()) == plain
        edit = Steer("layers.0.attention_output", np.ones(width, np.float32), positions=slice(10, 500))
        steered = bits(model.generate(ids, steer=edit, **options).read())
        assert steered != plain and bits(model.generate(ids, steer=edit, prefill="token", **options).read()) == steered


def test_logits_can_be_put_in_their_place(model):
    wanted = np.zeros(model.vocab_size, np.float32)
    wanted[7] = 20
    assert result(model, n=3, steer=[Patch("logits", wanted)]).tokens == [7, 7, 7]


def test_a_session_keeps_nothing_of_what_was_steered(model, vector):
    session = model.session()
    first = result(model, session=session)
    assert session.length > 0
    steered = result(model, session=session, steer=[Steer("layers.1.residual", vector)])
    assert steered.cached_tokens == 0 and session.length == 0
    assert bits(steered) == bits(result(model, steer=[Steer("layers.1.residual", vector)]))
    again = result(model, session=session)
    assert again.cached_tokens == 0 and bits(again) == bits(first)


def test_the_prompt_cache_keeps_nothing_of_what_was_steered(vector):
    edits = [Steer("layers.1.residual", vector)]
    with gomlx.load(prompt_cache=PromptCache(min_tokens=4)) as model:
        steered = result(model, steer=edits)
        plain = result(model)
        assert plain.cached_tokens == 0 and bits(plain)[1] != bits(steered)[1]
        assert result(model).cached_tokens > 0
        again = result(model, steer=edits)
        assert again.cached_tokens == 0 and bits(again) == bits(steered)
        assert bits(result(model)) == bits(plain)


def test_steered_and_plain_members_of_a_batch(model, vector):
    edits = [None, [Steer("layers.1.residual", vector)], [Steer("layers.0.mlp", vector, 0.5)], None]
    options = [{"steer": one} if one else {} for one in edits]
    common = {"max_tokens": 9, "temperature": 0.0, "ignore_eos": True}
    batch = model.generate_batch([PROMPT] * 4, options=options, **common)
    got = [bits(one) for one in batch.read()]
    assert got == [bits(result(model, n=9, **one)) for one in options]
    assert got[0] == got[3] and len({one[1] for one in got}) == 3


def test_long_prompts_are_steered_in_every_pass(model, vector):
    ids = np.random.default_rng(1).integers(0, model.vocab_size, 700).tolist()
    edit = Steer("layers.0.residual", vector, positions=[5, 600])
    stream = model.generate(ids, max_tokens=1, temperature=0.0, ignore_eos=True, steer=[edit])
    logits = np.asarray(model.inspect(ids, "logits", [edit])["logits"])[-1].astype(np.float64)
    logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    made = stream.read()
    assert made.tokens == [int(logits.argmax())]
    assert made.logprobs[0] == pytest.approx(logprobs.max(), abs=1e-4)


def test_what_cannot_be_read_while_generating(model):
    number = next(number for number, name, *_ in model._engine.activations() if name.endswith("attention_weights"))
    with pytest.raises(ValueError, match=r"only with model.inspect\(\), over a whole prompt"):
        gomlx._gomlx.stream(model._engine.new_session(), None, [1], activations=[number])
    with pytest.raises(ValueError, match="unknown activation"):
        model.generate(PROMPT, steer=[Steer("layers.0.nothing", [1.0])])


# ---- probes ----

def test_probed_generations_have_the_same_bits(model):
    recorder = Recorder()
    assert bits(result(model, probe=recorder)) == bits(result(model))
    assert recorder.counts == {"token": 12, "logits": 12, "entropy": 12, "cache_pressure": 13, "memory_pressure": 13,
                               "residual_summary": 12, "selected_heads": 12, "layer_coherence": 12}
    assert [one.kind for one in recorder.events if one.step < 0] == ["residual_summary", "selected_heads",
                                                                     "layer_coherence", "cache_pressure",
                                                                     "memory_pressure"]
    assert all((one.phase == "prefill") == (one.step < 0) for one in recorder.events)
    assert [one.kind for one in recorder.events if one.step == 5] == [
        "residual_summary", "selected_heads", "layer_coherence", "logits", "entropy", "cache_pressure",
        "memory_pressure", "token"]


def test_what_events_say(model):
    recorder = Recorder()
    made = result(model, probe=recorder)
    ids = model.tokenizer.encode_prompt(PROMPT) + made.tokens
    n = len(ids) - len(made.tokens)
    logits = np.asarray(model.logits(ids)).astype(np.float64)[n - 1:-1]
    probabilities = np.exp(logits - logits.max(-1, keepdims=True))
    probabilities /= probabilities.sum(-1, keepdims=True)
    for i, (event, entropy) in enumerate(zip(recorder.of("logits"), recorder.of("entropy"), strict=True)):
        data, row, p = event.data, logits[i], probabilities[i]
        assert data["shape"] == (model.vocab_size,) and data["vocab"] == model.vocab_size
        assert (data["max_id"], data["min_id"]) == (row.argmax(), row.argmin())
        assert data["max_value"] == pytest.approx(row.max()) and data["min_value"] == pytest.approx(row.min())
        assert data["mean"] == pytest.approx(row.mean(), abs=1e-4)
        assert [one["id"] for one in data["top"]] == np.argsort(-row, kind="stable")[:8].tolist()
        assert [one["probability"] for one in data["top"]] == pytest.approx(p[np.argsort(-row)[:8]], rel=1e-4)
        assert entropy.data["nats"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
    residuals = model.inspect(ids, "layers.*.residual")
    for i, event in enumerate(recorder.of("residual_summary")):
        for layer, name in zip(event.data["layers"], residuals, strict=True):
            row = np.asarray(residuals[name])[n - 1 + i]
            assert layer["norm"] == pytest.approx(np.linalg.norm(row), rel=1e-4)
            assert layer["max_abs"] == pytest.approx(np.abs(row).max(), rel=1e-4)
    assert [one.data["id"] for one in recorder.of("token")] == made.tokens
    for one in recorder.of("cache_pressure"):
        assert one.data["cache_tokens"] == n + max(one.step, 0) and not one.data["rotating"]
        assert one.data["generated_tokens"] == max(one.step, 0)
    assert all(one.data["active_bytes"] > 0 for one in recorder.of("memory_pressure"))


def cosine(a, b):
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def seen_by(model, probe, n=6, prompt=PROMPT):
    """Events, and the same activations of one pass over prompt and output: a function of layer and point, float64."""
    recorder = Recorder()
    made = model.generate(prompt, max_tokens=n, temperature=0, ignore_eos=True, probe=Probe(recorder, probe)).read()
    ids = model.tokenizer.encode_prompt(prompt) + made.tokens
    held = model.inspect(ids, "layers.*")
    return recorder.events, lambda layer, point: np.asarray(held[f"layers.{layer}.{point}"]).astype(np.float64) \
        if f"layers.{layer}.{point}" in held else None, len(ids) - n - 1


@pytest.mark.parametrize("name", [None, "gemma4", "qwen3_5"])
def test_selected_heads(request, name):
    with gomlx.load(name and f"{request.getfixturevalue('shared')}/data/models/{name}") as looked_at:
        events, held, last = seen_by(looked_at, ["selected_heads"])
        layers = [i for i in range(looked_at.info["n_layers"]) if held(i, "attention") is not None]
    assert len(events) == 6 and layers
    for i, event in enumerate(events):
        assert [one["layer"] for one in event.data["layers"]] == layers
        for one in event.data["layers"]:
            norms = np.linalg.norm(held(one["layer"], "attention")[last + i], axis=-1)
            shares = norms / norms.sum()
            assert len(one["heads"]) == min(4, len(norms)) == len(set(one["heads"]))
            assert one["scores"] == sorted(one["scores"], reverse=True)
            np.testing.assert_allclose(one["scores"], shares[one["heads"]], rtol=1e-4)
            assert one["scores"][-1] >= np.sort(shares)[-len(one["heads"])] - 1e-4


@pytest.mark.parametrize("name", [None, "gemma4", "qwen3_5"])
def test_layer_coherence(request, name):
    with gomlx.load(name and f"{request.getfixturevalue('shared')}/data/models/{name}") as looked_at:
        events, held, last = seen_by(looked_at, ["layer_coherence"])
        layers = looked_at.info["n_layers"]
    assert len(events) == 6
    for i, event in enumerate(events):
        assert [one["layer"] for one in event.data["layers"]] == list(range(layers))
        for one in event.data["layers"]:
            at, layer = last + i, one["layer"]
            start, end = held(layer, "input")[at], held(layer, "residual")[at]
            assert one["stream"] == pytest.approx(cosine(start, end), abs=1e-4)
            assert one["update"] == pytest.approx(np.linalg.norm(end - start) / np.linalg.norm(start), rel=1e-3)
            for kind, point in (("key", "k"), ("value", "v")):
                rows = held(layer, point)
                # what fills caches only, before recurrent layers' last row, is not a pass that a probe sees
                if rows is None or (name == "qwen3_5" and i == 0):
                    assert one[kind] is None
                else:
                    assert one[kind] == pytest.approx(cosine(rows[at], rows[at - 1]).mean(), abs=1e-3)
            if held(layer, "attention") is None:
                assert one["head_entropy"] is None
                continue
            shares = np.linalg.norm(held(layer, "attention")[at], axis=-1)
            shares /= shares.sum()
            wanted = -(shares * np.log(shares)).sum() / np.log(len(shares))
            assert one["head_entropy"] == pytest.approx(wanted, abs=1e-4) and 0 <= one["head_entropy"] <= 1 + 1e-6


def test_a_prompt_of_one_token_has_nothing_before_it(model):
    recorder = Recorder()
    model.generate([7], max_tokens=2, probe=Probe(recorder, ["layer_coherence"]), ignore_eos=True).read()
    first, second = ([one["key"] for one in event.data["layers"]] for event in recorder.events)
    assert set(first) == {None} and None not in second


def test_kinds_are_chosen_and_errors_end_the_generation(model):
    recorder = Recorder()
    result(model, probe=Probe(recorder, ["entropy"]))
    assert recorder.counts == {"entropy": 12}
    with pytest.raises(ValueError, match="unknown kind 'entropie'"):
        Probe(recorder, ["entropie"])

    def refuse(event):
        raise KeyError(event.kind)

    with pytest.raises(KeyError, match="residual_summary"):
        result(model, probe=refuse)


def test_router_decisions(shared):
    with gomlx.load(f"{shared}/data/models/gpt_oss") as model:
        recorder = Recorder()
        made = result(model, n=5, probe=recorder)
        ids = model.tokenizer.encode_prompt(PROMPT) + made.tokens
        n = len(ids) - len(made.tokens)
        routes = model.inspect(ids, "*.router_ids")
        assert len(recorder.of("router_decision")) == 5
        for i, event in enumerate(recorder.of("router_decision")):
            assert [one["ids"] for one in event.data["layers"]] == [np.asarray(routes[name])[n - 1 + i].tolist()
                                                                    for name in routes]


def test_a_probe_that_fails_ends_its_prompt_alone(model):
    def fail(event):
        if event.kind == "token":
            raise KeyError("mine")

    options = [{"probe": fail}, {"probe": Probe(fail, kinds=("entropy",))}]
    batch = model.generate_batch([PROMPT, PROMPT], max_tokens=4, temperature=0.0, ignore_eos=True, options=options)
    failed, fine = batch.read()
    assert failed.finish_reason == "error" and isinstance(failed.error, KeyError)
    assert fine.tokens == result(model, 4).tokens
