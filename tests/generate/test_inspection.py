"""What a model computes on its way: activations by name, edits, the lens, attention snapshots."""
import os

import numpy as np
import pytest

import gomlx
from gomlx import Patch, Steer

PROMPT = "Once upon a time there was a little fox who lived in"
MODELS = ["fable", "llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma2", "gemma3", "gemma4",
          "gpt_oss", "fable-gguf/fable-Q4_K_M.gguf"]


@pytest.fixture(scope="module")
def packaged():
    """The model in the package: quantised, with int8 activations."""
    with gomlx.load() as model:
        yield model


@pytest.fixture(scope="module")
def exact():
    with gomlx.load(activations="float32") as model:
        yield model


@pytest.fixture(scope="module", params=MODELS)
def model(request, shared):
    with gomlx.load(os.path.join(shared, "data", "models", request.param)) as model:
        yield model


def seen(model, want="*", edits=(), prompt=PROMPT):
    return {name: np.asarray(value) for name, value in model.inspect(prompt, want, edits).items()}


def check_identities(model):
    """What holds in every architecture, between activations of one pass."""
    ids = model.tokenizer.encode_prompt(PROMPT)
    names, found = model.activation_names(), seen(model)
    assert list(found) == list(names)
    n, n_layers = len(ids), model.info["n_layers"]
    for name, shape in names.items():
        assert found[name].shape == tuple(n if size == "n" else size for size in shape), name
        assert found[name].dtype == (np.int32 if name.endswith("router_ids") else np.float32), name
        assert np.isfinite(found[name]).all(), name
    np.testing.assert_array_equal(found["logits"], np.asarray(model.logits(ids)))
    np.testing.assert_array_equal(found["layers.0.input"], found["embedding"])
    plain = model.info["architecture"] != "gemma4"          # which has an input of its own and a scale for each layer
    for i in range(n_layers):
        at = f"layers.{i}."
        if i + 1 < n_layers:
            np.testing.assert_array_equal(found[at + "residual"], found[f"layers.{i + 1}.input"])
        if plain:
            total = found[at + "input"] + found[at + "attention_output"] + found[at + "mlp"]
            np.testing.assert_allclose(total, found[at + "residual"], atol=1e-5 * np.abs(total).max())
        if at + "router_ids" in found:
            check_router({part: found[f"{at}router_{part}"] for part in ("logits", "ids", "weights")})
    return found


def check_router(router):
    k = router["ids"].shape[1]
    np.testing.assert_array_equal(router["ids"], np.argsort(-router["logits"], axis=1, kind="stable")[:, :k])
    assert (np.diff(router["weights"]) <= 0).all() or (router["weights"] > 0).all()
    assert (router["weights"] > 0).all()


def check_attention(model, found, tolerance):
    """Weights are causal and times the values are what attention gives."""
    known = {name: source for _, name, _, _, source in model._engine.activations()}
    sinks = model.info["architecture"] == "gpt_oss"
    for name in [name for name in found if name.endswith("attention_weights")]:
        weights, values = found[name], found[f"layers.{known[name]}.v"]
        sums = weights.sum(-1)
        assert (weights >= 0).all() and not np.triu(weights, 1).any()
        assert (sums < 1).all() if sinks else np.allclose(sums, 1, atol=1e-5)
        shared_by = weights.shape[0] // values.shape[1]
        mixed = np.einsum("hij,jhd->ihd", weights, np.repeat(values, shared_by, axis=1))
        got = found[name.replace("attention_weights", "attention")]
        assert np.abs(mixed - got).max() <= tolerance * np.abs(got).max(), name


def test_activations_of_the_packaged_model(packaged, exact):
    check_attention(packaged, check_identities(packaged), 2e-3)         # half floats in the cache
    check_attention(exact, check_identities(exact), 1e-4)


def test_activations_of_every_architecture(model):
    check_attention(model, check_identities(model), 2e-3)


def test_the_exact_path_is_that_of_a_model_loaded_with_it(model, shared, request):
    path = os.path.join(shared, "data", "models", request.node.callspec.params["model"])
    with gomlx.load(path, activations="float32", kv_dtype="float32") as loaded:
        expected = seen(loaded)
        for name, value in model.inspect(PROMPT, "*", exact=True).items():
            np.testing.assert_array_equal(np.asarray(value), expected[name], name)
        validation = loaded.validate(PROMPT)
    assert set(validation.differences.values()) == {0.0} and validation.max_difference == validation.kl == 0
    assert validation.top_1 == 1


def test_validation_measures_what_rounding_does(packaged, exact):
    """Activations in int8 change logits by half a percent, a cache in float16 by little (shared/data/models)."""
    validation = packaged.validate(PROMPT)
    assert 0.001 < validation.differences["logits"] < 0.05 and 0 < validation.kl < 0.01 and validation.top_1 > 0.8
    own, expected = (np.asarray(one.inspect(PROMPT, "layers.2.mlp")["layers.2.mlp"], np.float64)
                     for one in (packaged, exact))
    relative = np.sqrt(((own - expected) ** 2).sum() / (expected ** 2).sum())
    assert validation.differences["layers.2.mlp"] == pytest.approx(relative, rel=1e-4)
    last = [np.asarray(one.logits(one.tokenizer.encode_prompt(PROMPT)))[-1] for one in (packaged, exact)]
    assert validation.max_difference == pytest.approx(np.abs(last[0] - last[1]).max(), rel=1e-6)
    result = packaged.generate(PROMPT, max_tokens=1, prefill="validate").read()
    assert result.prefill_difference == validation.max_difference
    with gomlx.load(activations="float32", kv_dtype="float16") as halved:
        assert 0 < halved.validate(PROMPT, "logits").differences["logits"] < 0.001


def test_validation_with_edits(packaged):
    patch = Patch("layers.0.residual", np.linspace(-1, 1, packaged.info["hidden_size"]))
    steered = packaged.validate(PROMPT, ("layers.0.residual",), edits=[patch])
    assert steered.differences["layers.0.residual"] == 0 and steered.differences["logits"] > 0
    with pytest.raises(ValueError, match="unknown activation"):
        packaged.validate(PROMPT, "layers.99.mlp")


def test_what_is_looked_at_changes_nothing(model):
    """One name at a time, the logits are those of a pass that nobody looks at."""
    logits = np.asarray(model.logits(model.tokenizer.encode_prompt(PROMPT)))
    for name in [name for name in model.activation_names() if not name.startswith("layers.1")]:
        np.testing.assert_array_equal(seen(model, [name, "logits"])["logits"], logits, err_msg=name)


def test_putting_an_activation_in_its_own_place_changes_no_bit(model):
    editable = {name for _, name, _, edit, _ in model._engine.activations() if edit}
    found = seen(model)
    for name in [one for one in found if one in editable and (not one.startswith("layers.") or ".1." in one)]:
        edits = [Patch(name, found[name]), Steer(name, np.zeros(found[name].shape[1:])), Steer(name, found[name], 0.0)]
        again = seen(model, ["logits"], edits)["logits"]
        np.testing.assert_array_equal(again.view(np.int32), found["logits"].view(np.int32), err_msg=name)


def test_windows_are_in_the_weights(shared):
    with gomlx.load(os.path.join(shared, "data", "models", "mistral")) as model:
        window = model.info["sliding_window"]
        n = window + 20
        ids = np.random.default_rng(0).integers(0, model.vocab_size, n).tolist()
        found = seen(model, ["layers.0.attention_weights", "layers.0.v", "layers.0.attention"], prompt=ids)
        weights = found["layers.0.attention_weights"]
        assert not weights[:, n - 1, :n - window].any() and weights[:, n - 1, n - window].all()
        check_attention(model, found, 2e-3)


def test_edits_act_where_they_are_told_to(packaged):
    width = packaged.activation_names()["embedding"][1]
    vector = np.random.default_rng(0).normal(size=width).astype(np.float32)
    plain, n = seen(packaged), len(packaged.tokenizer.encode_prompt(PROMPT))
    steered = seen(packaged, "layers.1.*", Steer("layers.1.input", vector, 0.5, positions=[2, -1]))
    want = plain["layers.1.input"].copy()
    want[[2, n - 1]] += np.float32(0.5) * vector
    np.testing.assert_array_equal(steered["layers.1.input"], want)
    np.testing.assert_array_equal(steered["layers.1.residual"][:2], plain["layers.1.residual"][:2])
    assert (steered["layers.1.residual"][2:] != plain["layers.1.residual"][2:]).any(axis=1).all()
    rows = np.arange(3 * width, dtype=np.float32).reshape(3, width)
    for positions, at in ((slice(1, 4), [1, 2, 3]), (slice(-3, None), range(n - 3, n)), (None, range(3)),
                          ((5, 0, 4), [5, 0, 4])):
        want = plain["layers.1.mlp"].copy()
        want[list(at)] = rows
        got = seen(packaged, "layers.1.mlp", Patch("layers.1.mlp", rows, positions=positions))["layers.1.mlp"]
        np.testing.assert_array_equal(got, want)
    for positions in ("prompt", None, slice(None)):
        got = seen(packaged, "final_norm", [Patch("final_norm", vector, positions=positions)])["final_norm"]
        np.testing.assert_array_equal(got, np.broadcast_to(vector, (n, width)))
    got = seen(packaged, "final_norm", [Patch("final_norm", vector, positions="new")])["final_norm"]
    np.testing.assert_array_equal(got, plain["final_norm"])


def test_edits_of_several_follow_their_order(packaged):
    shape = packaged.activation_names()["layers.0.v"][1:]
    got = seen(packaged, "*.v", [Steer("*.v", np.ones(shape)), Patch("layers.0.v", np.ones(shape)),
                                 Steer("layers.0.v", np.ones(shape), 2.0)])
    assert (got["layers.0.v"] == 3).all()


def test_what_cannot_be_asked_for(packaged):
    width = packaged.activation_names()["embedding"][1]
    for want, match in (("layers.0.residul", "near it: .*layers.0.residual"), ("layers.99.*", "unknown activation"),
                        (["logits", "embeding"], "near it: embedding")):
        with pytest.raises(ValueError, match=match):
            packaged.inspect(PROMPT, want)
    for edit, match in ((Steer("layers.0.input", np.ones(3)), rf"expected \({width},\)"),
                        (Patch("layers.0.attention_weights", 0.0), "expected"),
                        (Steer("layers.0.q_rotated", np.ones(packaged.activation_names()["layers.0.q"][1:])), "read"),
                        (Patch("layers.0.input", np.ones((2, width)), positions=[0]), "2 rows for 1 positions"),
                        (Steer("layers.0.input", np.ones(width), positions="end"), "'prompt', 'new'"),
                        (Steer("layers.0.input", np.ones(width), positions=slice(0, 9, 2)), "step 2"),
                        (Steer("layers.0.input", np.ones(width), positions=-1000), "before the beginning")):
        with pytest.raises(ValueError, match=match):
            packaged.inspect(PROMPT, "logits", [edit])
    with pytest.raises(TypeError, match="steer: expected gomlx.Steer or gomlx.Patch"):
        packaged.inspect(PROMPT, "logits", ["layers.0.input"])
    with pytest.raises(ValueError, match="expected 1 to the context"):
        packaged.inspect([])
    with pytest.raises(ValueError, match="expected 1 to the context"):
        packaged.inspect([1] * (packaged.context_length + 1))
    with pytest.raises(IndexError, match="has no activation"):
        packaged._engine.inspect([1], [10**9])
    with pytest.raises(ValueError, match="closed"), gomlx.load() as closed:
        closed.close()
        closed.inspect(PROMPT)


def test_more_than_fits_is_said_before_anything_is_computed(packaged):
    import gomlx.core as mx
    before = mx.set_memory_limit(mx.get_active_memory() + 2_000_000)
    try:
        with pytest.raises(MemoryError, match="memory limit of"):
            packaged.inspect([1] * 500, "*.attention_weights")
    finally:
        mx.set_memory_limit(before)


def test_the_lens_of_the_last_layer_is_the_output(packaged, exact):
    for model in (packaged, exact):
        ids = model.tokenizer.encode_prompt(PROMPT)
        residual = model.inspect(ids, f"layers.{model.info['n_layers'] - 1}.residual").popitem()[1]
        np.testing.assert_array_equal(np.asarray(model._engine.head(residual)), np.asarray(model.logits(ids)))
        lens = model.logit_lens(PROMPT, top_k=3)
        assert lens.ids == ids and len(lens.layers) == model.info["n_layers"]
        logits = np.asarray(model.logits(ids)).astype(np.float64)
        probabilities = np.exp(logits - logits.max(-1, keepdims=True))
        probabilities /= probabilities.sum(-1, keepdims=True)
        for row, got in zip(probabilities, lens.layers[-1], strict=True):
            best = np.argsort(-row, kind="stable")[:3]
            assert [one.id for one in got] == best.tolist()
            assert np.allclose([one.probability for one in got], row[best], rtol=1e-4)
            assert [one.text for one in got] == [model.tokenizer.decode([int(i)], False) for i in best]
    with pytest.raises(ValueError, match="top_k is 0"):
        packaged.logit_lens(PROMPT, top_k=0)
    with pytest.raises(ValueError, match=r"float32\(n,"):
        packaged._engine.head(gomlx.core.zeros((2, 3)))


def test_attention_snapshots_have_the_shape_of_the_references(model):
    snapshot = model.inspect_attention(PROMPT, queries=True)
    known = {name: (shape, source) for _, name, shape, _, source in model._engine.activations()}
    found = seen(model, "*_rotated")
    assert snapshot.architecture == model.info["architecture"] and snapshot.has_queries
    assert snapshot.num_layers == len(snapshot.keys) == len(snapshot.queries) == model.info["n_layers"]
    assert snapshot.seq_len == len(model.tokenizer.encode_prompt(PROMPT))
    for i in range(snapshot.num_layers):
        if f"layers.{i}.q" not in known:
            assert snapshot.keys[i] == snapshot.queries[i] == []
            continue
        source = known[f"layers.{i}.q"][1]
        for heads, name in ((snapshot.keys[i], f"layers.{source}.k_rotated"),
                            (snapshot.queries[i], f"layers.{i}.q_rotated")):
            assert len(heads) == found[name].shape[1]
            for head, flat in enumerate(heads):
                np.testing.assert_array_equal(np.asarray(flat), found[name][:, head].ravel())
    assert not model.inspect_attention(PROMPT).has_queries


def test_values_are_those_of_transformers(model):
    """Residuals against output_hidden_states; transformers' last one is after the final norm."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = model.info["path"]
    if not os.path.isdir(path):
        pytest.skip("transformers reads the folder; the file of the same model is compared by identities")
    with gomlx.load(path, activations="float32", dtype="float32") as exact:
        ids = exact.tokenizer.encode_prompt(PROMPT)
        states = [name for name in exact.activation_names() if name.endswith(".state")]
        found = seen(exact, ["*.input", "final_norm", "*.attention_weights", *states], prompt=ids)
    reference = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32,
                                                                  attn_implementation="eager").eval()
    with torch.no_grad():
        out = reference(torch.tensor([ids]), output_hidden_states=True, output_attentions=True, use_cache=True)
    *inputs, last = [one[0].numpy() for one in out.hidden_states]
    for i, want in enumerate(inputs):
        got = found[f"layers.{i}.input"]
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), i
    assert np.abs(found["final_norm"] - last).max() <= 1e-4 * np.abs(last).max()
    weights = [found[name] for name in found if name.endswith("attention_weights")]
    theirs = [one[0].numpy() for one in out.attentions if one is not None]
    assert len(weights) == len(theirs)
    for got, want in zip(weights, theirs, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4)
    for name in states:
        theirs = out.past_key_values.layers[int(name.split(".")[1])].recurrent_states[0]
        np.testing.assert_allclose(found[name], theirs[0].numpy().transpose(0, 2, 1), atol=1e-5)


# ---- the command ----

def run(capfd, *argv):
    from gomlx import cli
    status = cli.main(["inspect", *argv])
    out, err = capfd.readouterr()
    return status, out, err


def test_the_command(packaged, capfd, tmp_path):
    import json
    status, out, _ = run(capfd, PROMPT, "--want", "logits", "--want", "layers.0.v", "--json")
    found, want = json.loads(out), seen(packaged, ["logits", "layers.0.v"])
    assert status == 0 and list(found) == ["layers.0.v", "logits"]
    for name, one in found.items():
        assert tuple(one["shape"]) == want[name].shape
        np.testing.assert_array_equal(np.array(one["values"], np.float32), want[name])
    path = tmp_path / "found.npz"
    assert run(capfd, PROMPT, "--npz", str(path))[0] == 0
    with np.load(path) as stored:
        want = seen(packaged, "layers.*.residual")
        assert set(stored) == set(want)
        for name in stored:
            np.testing.assert_array_equal(stored[name], want[name])
    status, out, _ = run(capfd, PROMPT, "--want", "layers.0.*")
    assert status == 0 and out.splitlines()[0].split() == ["name", "shape", "mean", "rms", "min", "max"]
    status, out, _ = run(capfd, PROMPT, "--names", "--json")
    assert {name: tuple(shape) for name, shape in json.loads(out).items()} == packaged.activation_names()
    status, out, _ = run(capfd, PROMPT, "--lens", "--top", "2", "--json")
    lens = packaged.logit_lens(PROMPT, 2)
    assert json.loads(out)["layers"][-1][-1] == [one._asdict() for one in lens.layers[-1][-1]]
    status, out, _ = run(capfd, PROMPT, "--lens")
    assert status == 0 and repr(lens.layers[-1][-1][0].text) in out.splitlines()[-1]
    status, out, _ = run(capfd, PROMPT, "--validate", "--json")
    assert status == 0 and json.loads(out) == vars(packaged.validate(PROMPT))
    status, out, _ = run(capfd, PROMPT, "--validate", "--want", "layers.1.mlp")
    assert status == 0 and [line.split()[0] for line in out.splitlines()] == ["name", "layers.1.mlp", "logits",
                                                                              "logits"]
    status, _, err = run(capfd, PROMPT, "--want", "layers.0.residul")
    assert status == 1 and "near it: layers.0.residual" in err
