"""Every architecture from every container and spelling: GGUF files and MLX folders that gomlx.convert writes, MXFP4 as
gpt-oss is published, prefixes of names, experts apart and stacked, configs that lack what tensors tell. The weights are
the same, so the logits are, up to the order in which products are summed."""
import importlib.util
import json
import shutil

import architectures
import checkpoints
import gguf
import numpy as np
import pytest
from architectures import CONFIGS, WIDE_CASES, language
from llama_reference import difference

import gomlx
import gomlx.core as mx
from gomlx import _gomlx
from gomlx._conversion import vocabulary

EXACT = {"activations": "float32", "kv_dtype": "float32"}
FLOAT32 = 2e-5                   # as in test_architectures.py
GOLDEN = architectures.Golden()


def logits(path, *sequences, **options):
    model = _gomlx.load_model(str(path), **(EXACT | options))
    try:
        return [np.asarray(one).copy() for one in model.logits(list(sequences))]
    finally:
        model.close()


def tokenizer():
    """A letter a token."""
    vocab = {chr(33 + i): i for i in range(94)} | {"Ġ": 94, "<|end|>": 95}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (pattern,), *_ = gomlx.Tokenizer.gguf_pre_types()["qwen2"]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    end = {"id": 95, "content": "<|end|>", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
           "special": True}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end], "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": byte_level,
            "decoder": byte_level, "model": vocabulary.bpe(vocab, [])}


@pytest.fixture
def folder(tmp_path):
    def make(case, name="model", config=None, weights=None):
        path = tmp_path / name
        checkpoints.save_safetensors(path, config or CONFIGS[case], weights or GOLDEN.weights(case))
        (path / "tokenizer.json").write_text(json.dumps(tokenizer()))
        (path / "tokenizer_config.json").write_text("{}")
        return path
    return make


# ---- GGUF ----

# What llama.cpp's keys cannot say; convert refuses by the name of the key.
UNSAID = {
    "qwen2, windows": "use_sliding_window", "qwen2, windows by layer": "use_sliding_window",
    "qwen3, windows and biases": "use_sliding_window", "qwen3_moe, windows": "use_sliding_window",
    "qwen3_moe, weights as they are": "norm_topk_prob", "qwen3_moe, default weights": "norm_topk_prob",
    "qwen3_moe, some dense": "mlp_only_layers", "qwen3_next, as many value heads": "norm_topk_prob",
    "qwen3_next, some dense": "decoder_sparse_step", "qwen3_next, kinds listed": "layer_types",
    "gemma2, other caps and scale": "query_pre_attn_scalar", "gemma3, caps": "query_pre_attn_scalar",
    "gpt_oss, whole bounds": "truncate", "gpt_oss, old spelling": "truncate", "gpt_oss, close limits": "swiglu_limit",
}


@pytest.mark.parametrize("case", CONFIGS)
def test_gguf_of_every_case(folder, tmp_path, case):
    source = folder(case)
    if case in UNSAID:
        with pytest.raises(NotImplementedError, match=UNSAID[case]):
            gomlx.convert(source, tmp_path / "x.gguf", "f32")
        return
    gomlx.convert(source, tmp_path / "x.gguf", "f32")
    ids = GOLDEN.ids(case)
    model = _gomlx.load_model(str(tmp_path / "x.gguf"), **EXACT)
    assert model.info()["unused_tensors"] == []
    got, want = np.asarray(model.logits([ids])[0]).copy(), logits(source, ids)[0]
    model.close()
    if language(CONFIGS[case])["model_type"].startswith("qwen3_5"):       # value heads stand in another order there
        assert difference(got, want) <= FLOAT32
    else:
        np.testing.assert_array_equal(got, want)


BLOCKS = ("q8_0", "q4_k_m", "q4_0", "q6_k", "q5_k_m")


@pytest.mark.parametrize("case, quantize", [(case, BLOCKS[i % 5]) for i, case in enumerate(WIDE_CASES)])
def test_quantised_gguf(folder, tmp_path, case, quantize):
    """As the values that the blocks stand for; a batch as single sequences, with int8 activations too."""
    gomlx.convert(folder(case), tmp_path / "x.gguf", quantize)
    gomlx.convert(tmp_path / "x.gguf", tmp_path / "dense", "f32")
    ids = GOLDEN.ids(case)
    got, part = logits(tmp_path / "x.gguf", ids, ids[:23])
    assert difference(got, logits(tmp_path / "dense", ids)[0]) <= FLOAT32
    np.testing.assert_array_equal(got[:23], part)
    assert difference(logits(tmp_path / "x.gguf", ids)[0], logits(folder(case, "again"), ids)[0]) > 1e-3
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    narrow, part, one = logits(tmp_path / "x.gguf", ids, ids[:23], ids[:1], activations="int8", kv_dtype="float16")
    assert 1e-4 < difference(narrow[:23], got[:23]) < 0.5      # random layers amplify, and experts change places
    np.testing.assert_array_equal(narrow[:23], part)
    np.testing.assert_array_equal(narrow[:1], one)
    assert quantize.upper().removesuffix("_M") in kinds and not {"F16", "BF16"} & kinds


# ---- MLX's folders ----

FORMATS = ("mlx-2", "mlx-3", "mlx-4", "mlx-5", "mlx-6", "mlx-8", "mxfp4", "mxfp8", "nvfp4")


@pytest.mark.parametrize("case, quantize", [(case, FORMATS[(i + j) % 9]) for i, case in enumerate(WIDE_CASES)
                                            for j in (0, 4)])
def test_mlx_folders(folder, tmp_path, case, quantize):
    """As the values that the groups stand for; a batch as single sequences."""
    gomlx.convert(folder(case), tmp_path / "mlx", quantize)
    gomlx.convert(tmp_path / "mlx", tmp_path / "dense", "f32")
    ids = GOLDEN.ids(case)
    whole, part, one = logits(tmp_path / "mlx", ids, ids[:23], ids[:1])
    assert difference(whole, logits(tmp_path / "dense", ids)[0]) <= FLOAT32
    np.testing.assert_array_equal(logits(tmp_path / "mlx", ids)[0], whole)
    np.testing.assert_array_equal(whole[:23], part)
    np.testing.assert_array_equal(whole[:1], one)


CODES = [(4, 64), (2, 32), (8, 128), (3, 64), (6, 32), (5, 128), (4, 32)]


@pytest.mark.parametrize("case", ["llama, wide", "qwen3_moe, wide", "qwen3_next, wide", "gemma4, wide",
                                  "gpt_oss, wide"])
def test_mlx_folders_of_mixed_bits_and_groups(folder, tmp_path, case):
    gomlx.convert(folder(case), tmp_path / "mixed", "mlx-8")
    arrays = mx.load(str(tmp_path / "mixed" / "model.safetensors"))
    dense = dict(arrays)
    for i, stem in enumerate(sorted(name.removesuffix(".scales") for name in arrays if name.endswith(".scales"))):
        bits, group = CODES[i % len(CODES)]
        parts = [stem + ending for ending in (".weight", ".scales", ".biases")]
        wide = mx.dequantize(*(dense.pop(part) for part in parts), group_size=64, bits=8).astype(mx.float32)
        arrays |= dict(zip(parts, mx.quantize(wide, group_size=group, bits=bits)))
        dense[parts[0]] = mx.dequantize(*(arrays[part] for part in parts), group_size=group, bits=bits)
    shutil.copytree(tmp_path / "mixed", tmp_path / "dense")
    mx.save_safetensors(str(tmp_path / "mixed" / "model.safetensors"), arrays)
    mx.save_safetensors(str(tmp_path / "dense" / "model.safetensors"), dense)
    ids = GOLDEN.ids(case)
    whole, part = logits(tmp_path / "mixed", ids, ids[:23])
    assert difference(whole, logits(tmp_path / "dense", ids)[0]) <= FLOAT32
    np.testing.assert_array_equal(whole[:23], part)


@pytest.mark.parametrize("case", ["qwen3_moe", "gemma4, experts", "gpt_oss"])
def test_experts_that_are_quantised_in_part(folder, tmp_path, case):
    """Rows of 40, and of 96, are not groups of 64: these matrices stay as they are."""
    gomlx.convert(folder(case), tmp_path / "mlx", "mlx-4")
    gomlx.convert(tmp_path / "mlx", tmp_path / "dense", "f32")
    ids = GOLDEN.ids(case)
    whole, part = logits(tmp_path / "mlx", ids, ids[:23])
    assert difference(whole, logits(tmp_path / "dense", ids)[0]) <= FLOAT32
    np.testing.assert_array_equal(whole[:23], part)


@pytest.mark.parametrize("quantize", FORMATS)
def test_defaults_of_mlx_folders(folder, tmp_path, quantize):
    """Activations in int8 but for mxfp8, the same bits for a batch, and a weight's values as mlx.core.dequantize's."""
    gomlx.convert(folder("llama, wide"), tmp_path / "mlx", quantize)
    ids = GOLDEN.ids("llama, wide")
    exact = logits(tmp_path / "mlx", ids)[0]
    whole, part, one = logits(tmp_path / "mlx", ids, ids[:23], ids[:1], activations=None, kv_dtype=None)
    assert np.array_equal(whole[:23], part) and np.array_equal(whole[:1], one)
    error = difference(whole, exact)
    model = _gomlx.load_model(str(tmp_path / "mlx"))
    info, name = model.info(), "model.layers.0.mlp.down_proj"
    fast = quantize != "mxfp8"
    assert (info["activations"], info["kv_dtype"]) == (("int8", "float16") if fast else ("float32", "float32"))
    assert FLOAT32 < error < 0.1 if fast else error == 0
    arrays = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    bits = {"mlx": int(quantize[-1]), "mxf": 8 if quantize == "mxfp8" else 4, "nvf": 4}[quantize[:3]]
    mode = "affine" if quantize.startswith("mlx") else quantize
    want = mx.dequantize(arrays[name + ".weight"], arrays[name + ".scales"], arrays.get(name + ".biases"), bits=bits,
                         group_size={"affine": 64, "nvfp4": 16}.get(mode, 32), mode=mode, dtype=mx.float32)
    np.testing.assert_array_equal(np.asarray(model.weight(name + ".weight")), np.asarray(want))
    model.close()


@pytest.mark.parametrize("quantize", [one for one in FORMATS if one.startswith("mlx")])
def test_weights_of_mlx_folders_have_one_value(folder, tmp_path, quantize):
    """scale * q + bias in float32: in products, of embeddings, as weight() shows it and as convert writes it.
    mlx.core.dequantize rounds each to the type of the scales."""
    gomlx.convert(folder("llama, wide"), tmp_path / "bf16", "bf16")
    gomlx.convert(tmp_path / "bf16", tmp_path / "mlx", quantize)
    gomlx.convert(tmp_path / "mlx", tmp_path / "dense", "f32")
    ids = GOLDEN.ids("llama, wide")
    assert difference(logits(tmp_path / "mlx", ids)[0], logits(tmp_path / "dense", ids)[0]) <= FLOAT32
    model, arrays = _gomlx.load_model(str(tmp_path / "mlx")), mx.load(str(tmp_path / "dense" / "model.safetensors"))
    packed = mx.load(str(tmp_path / "mlx" / "model.safetensors"))
    assert packed["model.embed_tokens.scales"].dtype == mx.bfloat16
    for name in model.weight_names():
        np.testing.assert_array_equal(np.asarray(model.weight(name)), np.asarray(arrays[name]), name)
    model.close()


# What mlx-lm has other defaults for than transformers, or none.
SAID = {"rms_norm_eps": 1e-6, "decoder_sparse_step": 1, "mlp_only_layers": [], "linear_conv_kernel_dim": 4,
        "use_double_wide_mlp": False}
ROPES = {"qwen3_next": {"rope_theta": 1e4, "partial_rotary_factor": 0.25},
         "gpt_oss": {"rope_parameters": architectures.YARN | {"truncate": True}},
         "gemma4": {"final_logit_softcapping": 30.0, "rope_parameters": {
             architectures.FULL: {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
             architectures.SLIDING: {"rope_type": "default", "rope_theta": 1e4}}}}
ROPES["qwen3_5"] = ROPES["qwen3_5_moe"] = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}}


@pytest.mark.skipif(importlib.util.find_spec("mlx_lm") is None or importlib.util.find_spec("mlx.core") is None,
                    reason="mlx-lm is not installed")
@pytest.mark.parametrize("case", WIDE_CASES)
def test_mlx_folders_are_what_mlx_lm_reads(folder, tmp_path, case):
    """The first tokens, as mlx-lm has no windows in Gemma 2 and Mistral."""
    import mlx.core
    from mlx_lm.utils import load_model
    config = SAID | CONFIGS[case] | ROPES.get(case.split(",")[0], {})
    gomlx.convert(folder(case, config=config), tmp_path / "mlx", "mlx-8")
    ids = GOLDEN.ids(case)[:8]
    theirs = load_model(tmp_path / "mlx")[0](mlx.core.array([ids]))[0].astype(mlx.core.float32)
    assert difference(logits(tmp_path / "mlx", ids)[0], np.array(theirs)) <= 1e-4


# ---- spellings ----

@pytest.mark.parametrize("prefix, head", [("language_model.model", "language_model.lm_head"),
                                          ("model.language_model", "lm_head")])
@pytest.mark.parametrize("case", ["llama", "gemma3", "gemma4", "qwen3_5", "qwen3_next"])
def test_prefixes(folder, case, prefix, head):
    weights = {(prefix + name.removeprefix("model") if name.startswith("model.") else name.replace("lm_head", head)):
               value for name, value in GOLDEN.weights(case).items()}
    ids = GOLDEN.ids(case)[:64]
    other = folder(case, "other", weights=weights)
    np.testing.assert_array_equal(logits(other, ids)[0], logits(folder(case), ids)[0])


def stacked(weights):
    """Experts as transformers holds them: gate over up, one tensor for all."""
    out = {name: value for name, value in weights.items() if ".experts." not in name}
    for base in {name.split(".experts.")[0] + ".experts." for name in weights if ".experts." in name}:
        count = 1 + max(int(name[len(base):].split(".")[0]) for name in weights if name.startswith(base))
        parts = {part: np.stack([weights[f"{base}{e}.{part}.weight"] for e in range(count)])
                 for part in ("gate_proj", "up_proj", "down_proj")}
        out[base + "gate_up_proj"] = np.concatenate([parts["gate_proj"], parts["up_proj"]], 1)
        out[base + "down_proj"] = parts["down_proj"]
    return out


@pytest.mark.parametrize("case", ["qwen3_moe", "qwen3_next", "qwen3_5_moe"])
def test_experts_apart_and_stacked(folder, case):
    ids = GOLDEN.ids(case)[:64]
    other = folder(case, "other", weights=stacked(GOLDEN.weights(case)))
    np.testing.assert_array_equal(logits(other, ids)[0], logits(folder(case), ids)[0])


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def test_mxfp4_as_gpt_oss_is_published(folder):
    rng, dense = np.random.default_rng(2), GOLDEN.weights("gpt_oss")
    packed = {}
    for name, value in list(dense.items()):
        if not name.endswith(("gate_up_proj", "down_proj")):
            packed[name] = value
            continue
        experts, columns, rows = value.shape
        codes = rng.integers(0, 16, (experts, rows, columns // 32, 32), np.uint8)
        scales = rng.integers(122, 126, codes.shape[:3], np.uint8)
        packed[name + "_blocks"] = codes[..., ::2] | codes[..., 1::2] << 4
        packed[name + "_scales"] = scales
        values = E2M1[codes] * np.exp2(scales.astype(np.float32) - 127)[..., None]
        dense[name] = np.ascontiguousarray(values.reshape(experts, rows, columns).swapaxes(1, 2))
    config = CONFIGS["gpt_oss"] | {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": []}}
    ids = GOLDEN.ids("gpt_oss")
    got, part = logits(folder("gpt_oss", "packed", config, packed), ids, ids[:17])
    assert difference(got, logits(folder("gpt_oss", weights=dense), ids)[0]) <= FLOAT32
    np.testing.assert_array_equal(got[:17], part)


@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "mistral"])
def test_what_tensors_tell(folder, case):
    """A config without model_type is Llama's, Qwen 2's or Qwen 3's; without head_dim the keys' rows tell."""
    config = {key: value for key, value in CONFIGS[case].items() if key != "head_dim" and
              (key != "model_type" or case == "mistral")}
    ids = GOLDEN.ids(case)[:64]
    np.testing.assert_array_equal(logits(folder(case, "other", config), ids)[0], logits(folder(case), ids)[0])


@pytest.mark.parametrize("case", ["gemma4", "gemma4, fewer keys are values"])
def test_heads_of_full_layers_as_newer_files_say_them(folder, case):
    config = {key: value for key, value in CONFIGS[case].items() if "global" not in key}
    own = {"head_dim": 32} | ({"num_key_value_heads": 1} if "fewer" in case else {})
    ids = GOLDEN.ids(case)[:64]
    other = folder(case, "other", config | {"per_layer_config": {"5": own, "6": own}})
    np.testing.assert_array_equal(logits(other, ids)[0], logits(folder(case), ids)[0])


# ---- refusals ----

@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3", "qwen3_moe", "qwen3_next", "qwen3_5", "qwen3_5_moe",
                                  "gemma2", "gemma3", "gemma4, experts", "gpt_oss"])
def test_missing_and_misshapen_tensors_are_named(folder, case):
    """One of each kind of tensor of the last layer, and the globals."""
    shapes, last = GOLDEN.shapes[case], CONFIGS[case]["num_hidden_layers"] - 1
    small = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    chosen = [name for name in shapes if f".layers.{last}." in name or ".layers." not in name]
    chosen = [name for name in chosen if not name.endswith("bias") or name.endswith("dt_bias")]
    assert len(chosen) > 8
    for at in chosen[::3]:
        rest = {name: value for name, value in small.items() if name != at}
        with pytest.raises(gomlx.Error, match="missing|shape") as caught:
            _gomlx.load_model(str(folder(case, "missing", weights=rest)))
        assert "missing" in str(caught.value) or at.rsplit(".", 2)[0] in str(caught.value)
        wrong = small | {at: np.zeros([*shapes[at][:-1], shapes[at][-1] + 1], np.float32)}
        with pytest.raises(gomlx.Error, match=at.replace(".", r"\.") + ".* expected"):
            _gomlx.load_model(str(folder(case, "wrong", weights=wrong)))


@pytest.mark.parametrize("case, change, words", [
    ("qwen3_moe", {"num_experts_per_tok": 5}, "5 of 4 experts"),
    ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
    ("qwen3_next", {"linear_num_value_heads": 3}, "2 key heads of 16 and 3 value heads"),
    ("qwen3_next", {"linear_conv_kernel_dim": 1}, "a kernel of 1"),
    ("qwen3_5", {"layer_types": ["mamba"] * 5}, "layer_types has \"mamba\""),
    ("gemma2", {"query_pre_attn_scalar": 0}, "attention's scale"),
    ("gemma2", {"attn_logit_softcapping": -1.0}, "softcaps are -1"),
    ("gemma2", {"sliding_window": 0}, "sliding_window is 0"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"layer_types": [architectures.SLIDING]}, "names 1 of 7 layers"),
    ("gemma4", {"num_kv_shared_layers": 7}, "num_kv_shared_layers is 7"),
    ("gemma4", {"num_kv_shared_layers": 2}, "no layer before 5 is of its kind"),
    ("gemma4", {"per_layer_config": {"9": {"head_dim": 16}}}, "per_layer_config has layer \"9\" of 7"),
    ("gemma4", {"use_bidirectional_attention": "all"}, "use_bidirectional_attention"),
    ("gpt_oss", {"num_local_experts": 1 << 40}, "experts"),
    ("gpt_oss", {"rope_parameters": {"rope_type": "longrope"}}, "rope type \"longrope\""),
    ("llama", {"model_type": "mamba2"}, "model_type \"mamba2\" is not supported; supported are llama, mistral"),
    *[("llama", {"quantization_config": {"quant_method": method}}, f"quantised by \"{method}\"")
      for method in ("gptq", "awq", "fp8", "compressed-tensors", "bitsandbytes")],
])
def test_configs_that_are_refused(folder, case, change, words):
    path = folder(case, config=CONFIGS[case] | change)
    with pytest.raises((gomlx.Error, NotImplementedError)) as caught:
        _gomlx.load_model(str(path))
    assert words in str(caught.value) and "config.json" in str(caught.value)
