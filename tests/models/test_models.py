"""Llama and Mistral from both containers: logits and greedy text against transformers' (golden files; live where it is
installed), and every turn of the configuration against NumPy in float64, on small random checkpoints made here."""
import os

import checkpoints
import llama_reference
import numpy as np
import pytest
from checkpoints import SMALL
from llama_reference import difference
from places import GOLDEN

import gomlx
from gomlx import _gomlx, loading
from gomlx._files.reading import read_json

pytestmark = [pytest.mark.isa, pytest.mark.models]

MODELS = ("fable", "llama3", "mistral", "stories260k", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3", "gemma4",
          "gpt_oss", "qwen3_5")
LIKE_LLAMA = ("fable", "llama3", "mistral", "stories260k", "qwen2")
EXACT = {"activations": "float32", "kv_dtype": "float32"}
# Float32 sums over some hundred terms, rounded some hundred times on the way to the logits: 3e-7 to 2e-6 are seen.
FLOAT32 = 1e-5


def golden(name):
    return dict(np.load(os.path.join(GOLDEN, name + ".npz")))


@pytest.fixture(params=[*MODELS, "fable-Q8_0"])
def known(request):
    """(model loaded exactly, what transformers said about it)."""
    path = loading.PACKAGED_FILE
    if request.param in MODELS:
        path = os.path.join(request.getfixturevalue("shared"), "data", "models", request.param)
    with gomlx.load(path, **EXACT) as model:
        yield model, golden(request.param)


def test_logits_are_those_of_transformers(known):
    model, want = known
    logits = np.asarray(model.logits(want["ids"].tolist()))
    assert logits.shape == (300, model.vocab_size) and logits.dtype == np.float32
    assert difference(logits[want["rows"]], want["logits"]) <= FLOAT32
    np.testing.assert_allclose(np.logaddexp.reduce(logits.astype("f8"), -1), want["logsumexp"], rtol=1e-5)
    np.testing.assert_array_equal(logits.argmax(-1), want["argmax"])


@pytest.mark.parametrize("number", [0, 1])
def test_greedy_text_is_that_of_transformers(known, number):
    model, want = known
    prompt, ids, text = want[f"prompt{number}"].tolist(), want[f"greedy{number}"].tolist(), str(want[f"text{number}"])
    said = model.tokenizer.decode(prompt, skip_special_tokens=True)
    stream = model.generate(prompt, max_tokens=100, temperature=0)
    pieces = [token.text for token in stream]
    assert stream.result.tokens == ids
    assert stream.result.finish_reason == ("stop" if want[f"stopped{number}"] else "length")
    assert text.startswith(said) and "".join(pieces) == text[len(said):]
    with model.generate(said, max_tokens=100, temperature=0) as again:      # the prompt as text gives the same ids
        list(again)
    assert again.result.tokens == ids and again.result.prompt_tokens == len(prompt)


@pytest.mark.parametrize("name", MODELS)
def test_logits_of_every_position_are_those_of_transformers(shared, name):
    """What the golden files sample, in full, where transformers is installed."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder, ids = os.path.join(shared, "data", "models", name), golden(name)["ids"].tolist()
    oracle = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad(), gomlx.load(folder, **EXACT) as model, gomlx.load(folder, dtype="float32", **EXACT) as wide:
        want, got = oracle(torch.tensor([ids])).logits[0].numpy(), np.asarray(model.logits(ids))
        assert difference(got, want) <= FLOAT32
        assert difference(np.asarray(wide.logits(ids)), want) <= FLOAT32
    # The other oracle, which the tests below lean on, agrees too.
    config, weights = read_json(os.path.join(folder, "config.json")), {
        key: value.float().numpy() for key, value in oracle.state_dict().items()}
    if name in LIKE_LLAMA:
        assert difference(llama_reference.logits(config, weights, ids), want) <= FLOAT32


# ---- small random checkpoints ----

def exact_logits(path, ids, **options):
    model = _gomlx.load_model(str(path), **(EXACT | options))
    try:
        return np.asarray(model.logits([ids])[0])
    finally:
        model.close()


def tokens(config, n):
    return np.random.default_rng(n).integers(0, config["vocab_size"], n).tolist()


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def old(rope):
    """rope_parameters as files before transformers 5 spell them: "type", the base apart."""
    rest = {key: value for key, value in rope.items() if key not in ("rope_type", "rope_theta")}
    return {"rope_scaling": {"type": rope["rope_type"], **rest}, "rope_theta": rope.get("rope_theta", 1e4)}


def new(rope):
    return {"rope_parameters": {"rope_theta": 1e4, **rope}, "rope_theta": None, "rope_scaling": None}


CONFIGS = {
    "as it is": {},
    "one key/value head": {"num_key_value_heads": 1},
    "as many key/value heads as heads": {"num_key_value_heads": 4},
    "number of key/value heads not given": {"num_key_value_heads": None},
    "three queries to a key": {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8},
    "wide heads": {"head_dim": 40},
    "narrow heads": {"head_dim": 8},
    "heads of two": {"head_dim": 2},
    "heads of 256": {"head_dim": 256, "num_attention_heads": 2, "num_key_value_heads": 1},
    "head_dim null": {"head_dim": None},
    "sizes that nothing divides": {"hidden_size": 38, "head_dim": 6, "num_attention_heads": 5, "num_key_value_heads": 1,
                                   "intermediate_size": 71, "vocab_size": 83},
    "a head of its own": {"tie_word_embeddings": False},
    "another epsilon": {"rms_norm_eps": 0.3},
    "no epsilon": {"rms_norm_eps": 0.0},
    "another base": {"rope_theta": 5e5},
    "another base, spelt as transformers 5 does": new({"rope_type": "default", "rope_theta": 5e5}),
    "linear": old({"rope_type": "linear", "factor": 2.5}),
    "linear, new": new({"rope_type": "linear", "factor": 2.5}),
    "llama3": old(LLAMA3), "llama3, new": new(LLAMA3),
    "llama3 of 3.2": new(LLAMA3 | {"factor": 32.0, "rope_theta": 5e5, "original_max_position_embeddings": 128}),
    "yarn": old(YARN), "yarn, new": new(YARN),
    "yarn with its own attention factor": new(YARN | {"attention_factor": 0.8}),
    "yarn with mscale": new(YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}),
    "yarn with fractions": new(YARN | {"truncate": False, "beta_fast": 8.0, "beta_slow": 2.0}),
    "window": {"model_type": "mistral", "sliding_window": 5},
    "window of one": {"model_type": "mistral", "sliding_window": 1},
    "no window": {"model_type": "mistral", "sliding_window": None},
}


@pytest.mark.parametrize("change", CONFIGS.values(), ids=CONFIGS)
def test_logits_of_a_configuration(tmp_path, change):
    config = {key: value for key, value in (SMALL | change).items() if value is not None or key in change}
    weights = checkpoints.save_safetensors(tmp_path, config, checkpoints.random_weights(config))
    ids = tokens(config, 70)
    known = {key: value for key, value in config.items() if value is not None}
    assert difference(exact_logits(tmp_path, ids), llama_reference.logits(known, weights, ids)) <= FLOAT32


def test_configurations_differ(tmp_path):
    """A rope type, window or epsilon that were ignored would be seen: each of them changes the logits by much more than
    the tolerance above."""
    other_shapes = {"hidden_size", "head_dim", "num_attention_heads", "num_key_value_heads", "tie_word_embeddings"}
    ids, seen = tokens(SMALL, 70), {}
    for name, change in CONFIGS.items():
        config = {key: value for key, value in (SMALL | change).items() if value is not None}
        if name != "no epsilon" and not other_shapes & change.keys():
            seen[name] = llama_reference.logits(config, checkpoints.random_weights(config), ids)
    alike = {("linear", "linear, new"), ("llama3", "llama3, new"), ("yarn", "yarn, new"), ("as it is", "no window"),
             ("another base", "another base, spelt as transformers 5 does")}
    names = list(seen)
    for i, a in enumerate(names):
        for b in names[i + 1:]:
            apart = difference(seen[a], seen[b])
            assert apart == 0 if (a, b) in alike else apart > 1e-4, (a, b)


@pytest.mark.parametrize("attention, mlp", [(True, False), (False, True), (True, True)])
def test_biases(tmp_path, attention, mlp):
    config = SMALL | {"attention_bias": attention, "mlp_bias": mlp}
    weights = checkpoints.save_safetensors(tmp_path, config, checkpoints.random_weights(
        config, attention_bias=attention, mlp_bias=mlp))
    ids = tokens(config, 40)
    want = llama_reference.logits(config, weights, ids)
    assert difference(exact_logits(tmp_path, ids), want) <= FLOAT32
    path = tmp_path / "same.gguf"
    checkpoints.save_gguf(path, config, weights)
    assert difference(exact_logits(path, ids), want) <= FLOAT32


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shards", [1, 3])
def test_dtypes_and_shards(tmp_path, dtype, shards):
    config = SMALL | {"tie_word_embeddings": False}
    weights = checkpoints.save_safetensors(tmp_path, config, checkpoints.random_weights(config), dtype, shards)
    ids = tokens(config, 40)
    want = llama_reference.logits(config, weights, ids)
    assert difference(exact_logits(tmp_path, ids), want) <= FLOAT32
    assert difference(exact_logits(tmp_path, ids, dtype="float32"), want) <= FLOAT32


@pytest.mark.parametrize("dtype, held", [("float16", "F16"), ("bfloat16", "BF16")])
def test_weights_as_another_dtype(tmp_path, dtype, held):
    """load(dtype=...) rounds the weights to it: no nearer to the file's values than that, and no further."""
    weights = checkpoints.save_safetensors(tmp_path, SMALL, checkpoints.random_weights(SMALL))
    model = _gomlx.load_model(str(tmp_path), dtype=dtype)
    got = np.asarray(model.weight("model.layers.1.mlp.up_proj.weight"))
    model.close()
    step = {"float16": 2.0 ** -11, "bfloat16": 2.0 ** -8}[dtype]
    want = weights["model.layers.1.mlp.up_proj.weight"]
    np.testing.assert_array_equal(checkpoints.stored(got, held)[1], got)
    np.testing.assert_allclose(got, want, rtol=step, atol=2.0 ** -25)
    assert (got != want).any()


def test_a_head_that_the_config_says_nothing_about(tmp_path):
    """Files without tie_word_embeddings: the head is its own when there is one, else the embedding."""
    config = {key: value for key, value in SMALL.items() if key != "tie_word_embeddings"}
    for name, own in (("own", True), ("tied", False)):
        weights = checkpoints.random_weights(config | {"tie_word_embeddings": not own})
        checkpoints.save_safetensors(tmp_path / name, config, weights)
        ids = tokens(config, 20)
        assert difference(exact_logits(tmp_path / name, ids), llama_reference.logits(config, weights, ids)) <= FLOAT32


def test_mistral_has_a_window_when_the_config_says_nothing(tmp_path):
    config = SMALL | {"model_type": "mistral"}
    checkpoints.save_safetensors(tmp_path, config, checkpoints.random_weights(config))
    model = _gomlx.load_model(str(tmp_path))
    assert model.info()["sliding_window"] == 4096
    model.close()


@pytest.mark.parametrize("window", [0, 100, 256, 300])
def test_many_blocks_of_keys(tmp_path, window):
    """700 tokens: three blocks of the KV cache and two passes, and windows that begin inside, at and across blocks."""
    config = SMALL | ({"model_type": "mistral", "sliding_window": window} if window else {})
    weights = checkpoints.save_safetensors(tmp_path, config, checkpoints.random_weights(config))
    ids = tokens(config, 700)
    assert difference(exact_logits(tmp_path, ids), llama_reference.logits(config, weights, ids)) <= 3 * FLOAT32


@pytest.mark.parametrize("kv_dtype, bound", [("float16", 2e-3), ("bfloat16", 1.5e-2)])
def test_a_narrow_kv_cache_costs_its_rounding(tmp_path, kv_dtype, bound):
    weights = checkpoints.save_safetensors(tmp_path, SMALL, checkpoints.random_weights(SMALL))
    ids = tokens(SMALL, 300)
    want = llama_reference.logits(SMALL, weights, ids)
    error = difference(exact_logits(tmp_path, ids, kv_dtype=kv_dtype), want)
    assert FLOAT32 < error <= bound


# ---- the same weights as GGUF ----

GGUF_CONFIGS = ["as it is", "one key/value head", "wide heads", "heads of 256", "sizes that nothing divides",
                "a head of its own", "another base", "linear", "yarn", "window"]


@pytest.mark.parametrize("name", GGUF_CONFIGS)
def test_gguf_gives_the_bits_of_safetensors(tmp_path, name):
    """Queries' and keys' rows stand in another order there, which is undone: nothing else differs."""
    config = SMALL | CONFIGS[name]
    weights = checkpoints.save_safetensors(tmp_path / "folder", config, checkpoints.random_weights(config))
    checkpoints.save_gguf(tmp_path / "model.gguf", config, weights)
    ids = tokens(config, 70)
    np.testing.assert_array_equal(exact_logits(tmp_path / "model.gguf", ids), exact_logits(tmp_path / "folder", ids))


def test_gguf_with_divisors_of_the_frequencies(tmp_path):
    """Llama 3's scaling stands in GGUF as a tensor."""
    config = SMALL | old(LLAMA3) | {"head_dim": 32}
    weights = checkpoints.random_weights(config)
    plain = llama_reference.rotation(SMALL | {"rope_theta": 1e4}, 32, 2)[1]
    divisors = np.angle(plain) / np.angle(llama_reference.rotation(config, 32, 2)[1])
    assert divisors[0] == 1 and divisors[-1] == pytest.approx(8)
    checkpoints.save_gguf(tmp_path / "model.gguf", config, weights, rope_freqs=divisors)
    ids = tokens(config, 70)
    want = llama_reference.logits(config, weights, ids)
    assert difference(exact_logits(tmp_path / "model.gguf", ids), want) <= FLOAT32


def test_gguf_in_parts(tmp_path):
    weights = checkpoints.random_weights(SMALL)
    checkpoints.save_gguf(tmp_path / "whole.gguf", SMALL, weights)
    checkpoints.save_gguf(tmp_path / "split.gguf", SMALL, weights, split=7)
    first = tmp_path / "split-00001-of-00003.gguf"
    ids = tokens(SMALL, 20)
    np.testing.assert_array_equal(exact_logits(first, ids), exact_logits(tmp_path / "whole.gguf", ids))


# ---- what weight() shows ----

def test_weights_by_name(tmp_path):
    config = SMALL | {"tie_word_embeddings": False, "head_dim": 24}
    weights = checkpoints.random_weights(config, attention_bias=True)
    held = checkpoints.save_safetensors(tmp_path / "folder", config, weights, "BF16")
    checkpoints.save_gguf(tmp_path / "model.gguf", config, held)
    for path in (tmp_path / "folder", tmp_path / "model.gguf"):
        model = _gomlx.load_model(str(path))
        assert sorted(model.weight_names()) == sorted(held)
        for name, value in held.items():
            np.testing.assert_array_equal(np.asarray(model.weight(name)), value, err_msg=name)
        with pytest.raises(IndexError, match="model.layers.2.mlp.up_proj.weight"):
            model.weight("model.layers.2.mlp.up_proj.weight")
        model.close()
