"""gomlx.convert: Hugging Face folders, MLX folders and GGUF files from one another."""
import json
import os
import pathlib
import subprocess
import sys

import gguf
import numpy as np
import pytest
from checkpoints import SMALL, halves, interleaved, random_weights, save_gguf

import gomlx
import gomlx.core as mx
from gomlx._conversion import convert as conversion
from gomlx._conversion import vocabulary, weights
from gomlx._files import gguf as gguf_file
from gomlx._files import writing
from gomlx.cli.conversion import TYPES as cli_types

H, D, HEADS, KV, MLP, LAYERS, EXPERTS, ROWS = 64, 32, 4, 2, 96, 4, 4, 300
BASE = {"hidden_size": H, "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV, "head_dim": D, "vocab_size": ROWS, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 257}
MOE = {"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True}
LINEAR = {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
          "linear_num_key_heads": 2, "linear_num_value_heads": 4, "partial_rotary_factor": 0.25,
          "full_attention_interval": 4,
          "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
CONFIGS = {
    "llama": {"tie_word_embeddings": False},
    "mistral": {"sliding_window": 16},
    "qwen2": {}, "qwen3": {}, "qwen3_moe": MOE,
    "gemma2": {"query_pre_attn_scalar": D, "sliding_window": 16, "attn_logit_softcapping": 50.0,
               "final_logit_softcapping": 30.0},
    "gemma3_text": {"query_pre_attn_scalar": D, "sliding_window": 16, "rope_local_base_freq": 5e3, "layer_types":
                    ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]},
    "gemma4_text": {"global_head_dim": 64, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 16,
                    "num_experts": EXPERTS, "top_k_experts": 2, "moe_intermediate_size": 32, "sliding_window": 16,
                    "use_double_wide_mlp": True,
                    "num_global_key_value_heads": 1, "rope_parameters": {
                        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                           "rope_theta": 1e6},
                        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}},
                    "layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_oss": {"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 16,
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                                 "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}},
    "qwen3_next": MOE | LINEAR | {"shared_expert_intermediate_size": 32},
    "qwen3_5_text": LINEAR,
    "qwen3_5_moe_text": MOE | LINEAR | {"shared_expert_intermediate_size": 32},
}


def shapes(model_type, c):
    """Names and shapes of a checkpoint as transformers writes it."""
    if model_type == "gemma4_text":
        return gemma4_shapes()
    made = {"model.embed_tokens.weight": (ROWS, H), "model.norm.weight": (H,)}
    if not c["tie_word_embeddings"]:
        made["lm_head.weight"] = (ROWS, H)
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        norms = ["input_layernorm", "post_attention_layernorm"]
        if model_type.startswith("gemma"):
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        made |= {f"{at}{name}.weight": (H,) for name in norms}
        if c.get("layer_types", [""] * LAYERS)[i] == "linear_attention":
            keys, values = 2 * 32, 4 * 32
            made |= {at + "linear_attn." + name: shape for name, shape in {
                "conv1d.weight": (2 * keys + values, 1, 4), "dt_bias": (4,), "A_log": (4,), "norm.weight": (32,),
                "out_proj.weight": (H, values)}.items()}
            new = {"in_proj_qkvz.weight": (2 * keys + 2 * values, H), "in_proj_ba.weight": (8, H)} \
                if model_type == "qwen3_next" else \
                {"in_proj_qkv.weight": (2 * keys + values, H), "in_proj_z.weight": (values, H),
                 "in_proj_b.weight": (4, H), "in_proj_a.weight": (4, H)}
            made |= {at + "linear_attn." + name: shape for name, shape in new.items()}
        else:
            wide = 2 if "linear_key_head_dim" in c else 1
            for name, rows in (("q", HEADS * D * wide), ("k", KV * D), ("v", KV * D)):
                made[f"{at}self_attn.{name}_proj.weight"] = (rows, H)
                if model_type in ("qwen2", "gpt_oss"):
                    made[f"{at}self_attn.{name}_proj.bias"] = (rows,)
            made[at + "self_attn.o_proj.weight"] = (H, HEADS * D)
            if model_type.startswith(("qwen3", "gemma3")):
                made |= {f"{at}self_attn.{name}_norm.weight": (D,) for name in "qk"}
            if model_type == "gpt_oss":
                made |= {at + "self_attn.sinks": (HEADS,), at + "self_attn.o_proj.bias": (H,)}
        made |= mlp_shapes(model_type, at + "mlp.")
    return made


def gemma4_shapes():
    made = {"model.embed_tokens.weight": (ROWS, H), "model.norm.weight": (H,),
            "model.embed_tokens_per_layer.weight": (ROWS, LAYERS * 16),
            "model.per_layer_model_projection.weight": (LAYERS * 16, H),
            "model.per_layer_projection_norm.weight": (16,)}
    for i in range(LAYERS):
        (dim, kv), wide = (64, 1) if i % 2 else (D, KV), 2 if i >= 2 else 1
        layer = {f"{name}.weight": (H,) for name in (
            "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
            "post_feedforward_layernorm_1", "pre_feedforward_layernorm_2", "post_feedforward_layernorm_2",
            "post_per_layer_input_norm")}
        layer |= {"self_attn.q_proj.weight": (HEADS * dim, H), "self_attn.q_norm.weight": (dim,),
                  "self_attn.o_proj.weight": (H, HEADS * dim), "layer_scalar": (1,),
                  "per_layer_input_gate.weight": (16, H), "per_layer_projection.weight": (H, 16),
                  "router.proj.weight": (EXPERTS, H), "router.scale": (H,), "router.per_expert_scale": (EXPERTS,),
                  "experts.gate_up_proj": (EXPERTS, 64, H), "experts.down_proj": (EXPERTS, H, 32),
                  "mlp.gate_proj.weight": (MLP * wide, H), "mlp.up_proj.weight": (MLP * wide, H),
                  "mlp.down_proj.weight": (H, MLP * wide)}
        if i < 2:
            layer |= {"self_attn.k_proj.weight": (kv * dim, H), "self_attn.v_proj.weight": (kv * dim, H),
                      "self_attn.k_norm.weight": (dim,)}
        made |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return made


def mlp_shapes(model_type, at):
    if model_type == "gpt_oss":
        return {at + "router.weight": (EXPERTS, H), at + "router.bias": (EXPERTS,),
                at + "experts.gate_up_proj": (EXPERTS, H, 64), at + "experts.gate_up_proj_bias": (EXPERTS, 64),
                at + "experts.down_proj": (EXPERTS, 32, H), at + "experts.down_proj_bias": (EXPERTS, H)}
    if model_type not in ("qwen3_moe", "qwen3_next", "qwen3_5_moe_text"):
        return {f"{at}{name}_proj.weight": (MLP, H) if name != "down" else (H, MLP) for name in ("gate", "up", "down")}
    made = {at + "gate.weight": (EXPERTS, H)}
    if model_type == "qwen3_5_moe_text":
        made |= {at + "experts.gate_up_proj": (EXPERTS, 64, H), at + "experts.down_proj": (EXPERTS, H, 32)}
    else:
        made |= {f"{at}experts.{e}.{name}_proj.weight": (32, H) if name != "down" else (H, 32)
                 for e in range(EXPERTS) for name in ("gate", "up", "down")}
    if model_type != "qwen3_moe":
        made |= {f"{at}shared_expert.{name}_proj.weight": (32, H) if name != "down" else (H, 32)
                 for name in ("gate", "up", "down")}
        made[at + "shared_expert_gate.weight"] = (1, H)
    return made


def byte_level_tokenizer():
    """256 bytes, two merges, two special tokens and one of the user's."""
    letters = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    byte_of = {b: chr(b) for b in letters} | {b: chr(256 + i) for i, b in
                                             enumerate(b for b in range(256) if b not in letters)}
    vocab = {byte_of[b]: b for b in range(256)} | {"<|endoftext|>": 256, "<|im_end|>": 257, "<user>": 258, "th": 259,
                                                   "the": 260}
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                "special": token != "<user>"}
               for i, token in ((256, "<|endoftext|>"), (257, "<|im_end|>"), (258, "<user>"))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    (pattern,), *_ = gomlx.Tokenizer.gguf_pre_types()["qwen2"]
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level, "decoder": byte_level,
            "model": vocabulary.bpe(vocab, [["t", "h"], ["th", "e"]])}


@pytest.fixture
def folder(tmp_path):
    def make(model_type="llama", dtype=mx.bfloat16, name="model", **more):
        config = BASE | {"model_type": model_type} | CONFIGS[model_type] | more
        path = tmp_path / name
        path.mkdir()
        rng = np.random.default_rng(5)
        arrays = {}
        for key, shape in shapes(model_type, config).items():
            value = rng.normal(size=shape) * (0.3 if key.endswith("norm.weight") else 0.1)
            arrays[key] = mx.array(value.astype(np.float32)).astype(dtype)
        mx.save_safetensors(str(path / "model.safetensors"), arrays)
        (path / "config.json").write_text(json.dumps(config))
        (path / "tokenizer.json").write_text(json.dumps(byte_level_tokenizer()))
        (path / "tokenizer_config.json").write_text(json.dumps(
            {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": "{{ messages }}"}))
        (path / "generation_config.json").write_text(json.dumps(
            {"do_sample": True, "temperature": 0.7, "top_k": 20, "eos_token_id": [257, 256]}))
        return path
    return make


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and mx.array_equal(a, b).item()


def arrays_of(path):
    return {name: array for file in sorted(path.glob("*.safetensors")) for name, array in mx.load(str(file)).items()}


# ---- round trips ----

@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=["bf16", "f32"])
@pytest.mark.parametrize("model_type", CONFIGS)
def test_gguf_and_back_bit_for_bit(folder, tmp_path, model_type, dtype):
    source = folder(model_type, dtype)
    report = gomlx.convert(source, tmp_path / "x.gguf")
    assert report["format"] == "gguf" and report["dequantised"] == []
    assert report["bytes"] == os.path.getsize(tmp_path / "x.gguf")
    gomlx.convert(tmp_path / "x.gguf", tmp_path / "back")
    before, after = arrays_of(source), arrays_of(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, array in before.items():
        # 1 + w and exp(A_log) in float32 keep all of a bfloat16 that is not tiny, but not all of a float32
        if name.endswith(("norm.weight", "A_log")) and model_type.startswith(("gemma2", "gemma3", "qwen3_")):
            np.testing.assert_allclose(np.array(after[name].astype(mx.float32)), np.array(array.astype(mx.float32)),
                                       rtol=5e-3, atol=1e-7)
        else:
            assert same(array, after[name]), name
    ours, theirs = (json.loads((path / "config.json").read_text()) for path in (source, tmp_path / "back"))
    named = BASE.keys() - {"bos_token_id"} - ({"rope_theta"} if "rope_parameters" in ours else set())
    for key in CONFIGS[model_type].keys() - {"full_attention_interval", "layer_types"} | named:
        assert theirs.get(key) == ours[key], key
    if "layer_types" in ours and model_type.startswith("gemma"):
        assert theirs["layer_types"] == ours["layer_types"]


@pytest.mark.parametrize("model_type", CONFIGS)
def test_mlx_folders_and_back(folder, tmp_path, model_type):
    source = folder(model_type)
    report = gomlx.convert(source, tmp_path / "mlx", "mlx-8")
    assert report["format"] == "mlx"
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    assert config["quantization"]["bits"] == 8 and config["quantization"]["mode"] == "affine"
    back = gomlx.convert(tmp_path / "mlx", tmp_path / "back", "bf16")
    assert len(back["dequantised"]) > LAYERS
    kinds = [json.loads((path / "config.json").read_text())["model_type"] for path in (source, tmp_path / "back")]
    assert kinds[0] == kinds[1]
    before, after = arrays_of(source), arrays_of(tmp_path / "back")
    assert before.keys() == after.keys()
    for name, array in before.items():
        a, b = (np.array(x.astype(mx.float32)) for x in (array, after[name]))
        if name.endswith(("norm.weight",)) and "qwen3_" in model_type:      # 1 + w is bfloat16 there
            np.testing.assert_allclose(a, b, atol=4e-3)
        else:
            assert np.sqrt(((a - b) ** 2).mean() / (a ** 2).mean()) < 0.02, name


@pytest.mark.parametrize("quantize, bits", [
    ("mlx-4", {"bits": 4, "group_size": 64}), ("mlx-6", {"bits": 6, "group_size": 64}), ("mxfp4", {"mode": "mxfp4"}),
    ("mxfp8", {"mode": "mxfp8"}), ("nvfp4", {"mode": "nvfp4"})])
def test_mlx_folders_hold_what_quantize_gives(folder, tmp_path, quantize, bits):
    source = folder("llama")
    gomlx.convert(source, tmp_path / "mlx", quantize)
    before, after = arrays_of(source), arrays_of(tmp_path / "mlx")
    for stem in ("model.embed_tokens", "model.layers.1.self_attn.q_proj", "lm_head"):
        want = mx.quantize(before[stem + ".weight"], **bits)
        for part, array in zip(("weight", "scales", "biases"), want):
            assert same(after[f"{stem}.{part}"], array), (stem, part)
    down = "model.layers.0.mlp.down_proj.weight"         # rows of 96 are not groups of 64
    assert (down.replace("weight", "scales") in after) == (96 % (bits.get("group_size", 32)) == 0)
    assert same(before["model.norm.weight"], after["model.norm.weight"])


def test_mxfp4_goes_between_containers_without_a_change(folder, tmp_path):
    source = folder("gpt_oss")
    gomlx.convert(source, tmp_path / "mlx", "mxfp4")
    report = gomlx.convert(tmp_path / "mlx", tmp_path / "x.gguf")
    assert not [name for name in report["dequantised"] if "exps" in name]
    gomlx.convert(tmp_path / "x.gguf", tmp_path / "again", "mxfp4")
    first, second = arrays_of(tmp_path / "mlx"), arrays_of(tmp_path / "again")
    for name in ("gate_proj", "up_proj", "down_proj"):
        for part in ("weight", "scales"):
            key = f"model.layers.1.mlp.experts.{name}.{part}"
            assert same(first[key], second[key])
    tensor = {t.name: t for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}["blk.1.ffn_down_exps.weight"]
    stem = "model.layers.1.mlp.experts.down_proj."
    want = mx.dequantize(first[stem + "weight"], first[stem + "scales"], mode="mxfp4")
    assert np.array_equal(gguf.dequantize(tensor.data, tensor.tensor_type), np.array(want.astype(mx.float32)))


def test_the_files_own_mxfp4_is_read(folder, tmp_path):
    """gpt-oss as it is published: blocks and scales, gate and up in turns."""
    source = folder("gpt_oss")
    arrays = arrays_of(source)
    fused = {name: array for name, array in arrays.items() if "experts" in name and not name.endswith("bias")}
    packed = {}
    for name, array in fused.items():
        weight, scales = mx.quantize(mx.contiguous(mx.swapaxes(array, -1, -2)), mode="mxfp4")
        packed[name + "_blocks"] = mx.reshape(mx.view(weight, mx.uint8), [*scales.shape, 16])
        packed[name + "_scales"] = scales
        arrays[name] = mx.swapaxes(mx.dequantize(weight, scales, mode="mxfp4"), -1, -2).astype(mx.bfloat16)
    mx.save_safetensors(str(source / "model.safetensors"), arrays)
    gomlx.convert(source, tmp_path / "dense.gguf", "f32")
    mx.save_safetensors(str(source / "model.safetensors"),
                        {name: a for name, a in arrays.items() if name not in fused} | packed)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    report = gomlx.convert(source, tmp_path / "packed.gguf")
    assert report["types"]["MXFP4"] == 3 * LAYERS and report["dequantised"] == []
    dense, blocks = ({t.name: t for t in gguf.GGUFReader(tmp_path / name).tensors}
                     for name in ("dense.gguf", "packed.gguf"))
    for name, t in blocks.items():
        values = gguf.dequantize(t.data, t.tensor_type)
        assert np.array_equal(values, gguf.dequantize(dense[name].data, dense[name].tensor_type)), name


# ---- what is in a GGUF file ----

def test_gguf_layouts(folder, tmp_path):
    gomlx.convert(folder("llama", mx.float32), tmp_path / "x.gguf")
    before = arrays_of(tmp_path / "model")
    tensors = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    for ours, theirs in (("q_proj", "attn_q"), ("k_proj", "attn_k")):
        want = np.array(before[f"model.layers.2.self_attn.{ours}.weight"])
        assert np.array_equal(tensors[f"blk.2.{theirs}.weight"], interleaved(want, D))
        assert np.array_equal(halves(tensors[f"blk.2.{theirs}.weight"], D), want)
    gomlx.convert(folder("gemma2", mx.float32, "g"), tmp_path / "g.gguf")
    tensors = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "g.gguf").tensors}
    want = np.array(arrays_of(tmp_path / "g")["model.layers.1.pre_feedforward_layernorm.weight"]) + 1
    assert np.array_equal(tensors["blk.1.ffn_norm.weight"], want)


def test_value_heads_take_turns(folder, tmp_path):
    source = folder("qwen3_5_text", mx.float32)
    gomlx.convert(source, tmp_path / "x.gguf")
    before, tensors = arrays_of(source), {t.name: t.data for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    heads = [0, 2, 1, 3]                                 # two key heads, two value heads each
    stem = "model.layers.0.linear_attn."
    z = np.array(before[stem + "in_proj_z.weight"]).reshape(4, 32, H)[heads].reshape(-1, H)
    assert np.array_equal(tensors["blk.0.attn_gate.weight"], z)
    out = np.array(before[stem + "out_proj.weight"]).reshape(H, 4, 32)[:, heads].reshape(H, -1)
    assert np.array_equal(tensors["blk.0.ssm_out.weight"], out)
    np.testing.assert_allclose(tensors["blk.0.ssm_a"], -np.exp(np.array(before[stem + "A_log"]))[heads], rtol=1e-6)
    conv = np.array(before[stem + "conv1d.weight"])[:, 0]
    assert np.array_equal(tensors["blk.0.ssm_conv1d.weight"][:128], conv[:128])
    assert np.array_equal(tensors["blk.0.ssm_conv1d.weight"][128:], conv[128:].reshape(4, 32, 4)[heads].reshape(-1, 4))


def test_llama3_rope_becomes_divisors_and_comes_back(folder, tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 128}
    gomlx.convert(folder("llama", rope_scaling=scaling), tmp_path / "x.gguf")
    divisors = {t.name: t.data for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}["rope_freqs.weight"]
    assert divisors[0] == 1 and divisors[-1] == 8 and (np.diff(divisors) >= 0).all()
    gomlx.convert(tmp_path / "x.gguf", tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["rope_scaling"] == scaling


def test_gguf_metadata(folder, tmp_path):
    gomlx.convert(folder("qwen3_moe"), tmp_path / "x.gguf", "q8_0")
    fields = {name: f.contents() for name, f in gguf.GGUFReader(tmp_path / "x.gguf").fields.items()}
    want = {"general.architecture": "qwen3moe", "general.file_type": 7, "general.quantization_version": 2,
            "qwen3moe.block_count": LAYERS, "qwen3moe.expert_count": EXPERTS, "qwen3moe.expert_used_count": 2,
            "qwen3moe.expert_feed_forward_length": 32, "qwen3moe.attention.key_length": D,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.eos_token_id": 257,
            "tokenizer.ggml.padding_token_id": 256, "tokenizer.ggml.eot_token_id": 257,
            "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": "{{ messages }}",
            "general.sampling.top_k": 20}
    assert {key: fields[key] for key in want} == want
    assert len(fields["tokenizer.ggml.tokens"]) == ROWS and fields["tokenizer.ggml.merges"] == ["t h", "th e"]
    assert fields["tokenizer.ggml.token_type"][255:262] == [1, 3, 3, 4, 1, 1, 5]


@pytest.mark.parametrize("quantize", ["q4_0", "q5_1", "q8_0", "q4_k_m", "q4_k_s", "q5_k", "q6_k"])
def test_gguf_holds_what_quantize_blocks_gives(folder, tmp_path, quantize):
    source = folder("qwen2", hidden_size=H)
    gomlx.convert(source, tmp_path / "x.gguf", quantize)
    before = arrays_of(source)
    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    for ours, theirs in (("self_attn.v_proj", "attn_v"), ("mlp.down_proj", "ffn_down"), ("mlp.up_proj", "ffn_up")):
        t = tensors[f"blk.1.{theirs}.weight"]
        assert t.tensor_type.name in ("Q4_0", "Q5_0", "Q5_1", "Q8_0")      # rows of 64 and 96 are not blocks of 256
        want = mx.fast.quantize_blocks(before[f"model.layers.1.{ours}.weight"], t.tensor_type.name)
        assert np.array_equal(t.data, np.array(want))
    assert tensors["blk.1.attn_norm.weight"].tensor_type.name == "F32"


def test_mixtures_are_those_of_llama_quantize(shared, tmp_path):
    source = pathlib.Path(shared) / "data/models/fable-gguf"
    for quantize, name in (("q4_k", "Q4_K_M"), ("q5_k_m", "Q5_K_M"), ("q6_k", "Q6_K"), ("q4_0", "Q4_0"),
                           ("q5_1", "Q5_1"), ("q8_0", "Q8_0")):
        theirs = gguf.GGUFReader(source / f"fable-{name}.gguf")
        gomlx.convert(source / "fable-BF16.gguf", tmp_path / "x.gguf", quantize, overwrite=True)
        ours = gguf.GGUFReader(tmp_path / "x.gguf")
        assert {t.name: t.tensor_type for t in ours.tensors} == {t.name: t.tensor_type for t in theirs.tensors}
        assert {key for key in ours.fields if "GGUF" not in key} == {key for key in theirs.fields if "GGUF" not in key}
        assert ours.fields["general.file_type"].contents() == theirs.fields["general.file_type"].contents()


def test_chunks_do_not_show(folder, tmp_path, monkeypatch):
    source = folder("qwen2")
    gomlx.convert(source, tmp_path / "a.gguf", "q8_0")
    monkeypatch.setattr(weights, "CHUNK", 5 * H)
    gomlx.convert(source, tmp_path / "b.gguf", "q8_0")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_shards(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(conversion, "SHARD_BYTES", 40_000)
    source = folder("llama")
    gomlx.convert(source, tmp_path / "out", "mlx-4")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and set(index["weight_map"].values()) == set(files)
    assert index["weight_map"].keys() == arrays_of(tmp_path / "out").keys()
    gomlx.convert(tmp_path / "out", tmp_path / "x.gguf", "f32")


# ---- the model in the package ----

def test_fable_to_a_folder_tells_the_same_story(tmp_path):
    gomlx.convert(None, tmp_path / "f32", "f32")
    gomlx.convert(tmp_path / "f32", tmp_path / "x.gguf", "f32")
    gomlx.convert(tmp_path / "f32", tmp_path / "y.gguf", "q8_0")
    told = []
    for path in (None, tmp_path / "f32", tmp_path / "x.gguf", tmp_path / "y.gguf"):
        with gomlx.load(path, activations="float32") as model:
            stream = model.generate("Once upon a time", max_tokens=48, temperature=0)
            told.append([token.id for token in stream])
    assert told[0] == told[1] == told[2] == told[3]
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(gomlx.loading.PACKAGED_FILE).tensors}
    assert types == {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "y.gguf").tensors}


def test_the_same_form_is_copied(tmp_path):
    report = gomlx.convert("fable", tmp_path / "x.gguf")
    assert report["dequantised"] == []
    ours, theirs = gguf.GGUFReader(tmp_path / "x.gguf"), gguf.GGUFReader(gomlx.loading.PACKAGED_FILE)
    for a, b in zip(ours.tensors, theirs.tensors, strict=True):
        assert a.name == b.name and a.tensor_type == b.tensor_type and np.array_equal(a.data, b.data)
    again = gomlx.convert("fable", tmp_path / "y.gguf", "q4_0")
    assert len(again["dequantised"]) == again["types"]["Q4_0"] + again["types"]["Q6_K"]


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ3_S", "TQ2_0"])
def test_formats_are_read(name):
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(7).integers(0, 256, (6, 3 * size), np.uint8).reshape(-1, size)
    for at in {"Q2_K": (80, 82), "Q3_K": (108,), "MXFP4": (), "TQ2_0": (64,)}.get(name, (0,)):
        blocks[:, at:at + 2] = np.float16(0.01).reshape(1).view(np.uint8)
    if name == "MXFP4":
        blocks[:, 0] = 120 + blocks[:, 0] % 16
    blocks = blocks.reshape(6, -1)
    got = np.array(weights.decode(name, [mx.array(blocks)]))
    assert got.shape == (6, 3 * values) and np.array_equal(got, gguf.dequantize(blocks, kind))


# ---- tokenizers ----

TEXTS = ["Once upon a time", " the  other\n\nthing\t1234567 ", "naïve café ’tis ﬁne Ⅷ ", "日本語 한국어 😀👍🏽",
         "<user>x<|im_end|>", ""]


def test_tokenizers_come_back(folder, tmp_path):
    source = folder("llama")
    gomlx.convert(source, tmp_path / "x.gguf")
    gomlx.convert(tmp_path / "x.gguf", tmp_path / "back")
    ours = gomlx.Tokenizer.from_file(source)
    for other in (gomlx.Tokenizer.from_gguf(tmp_path / "x.gguf"), gomlx.Tokenizer.from_file(tmp_path / "back")):
        assert [other.encode(text) for text in TEXTS] == [ours.encode(text) for text in TEXTS]
    back = gomlx.Tokenizer.from_file(tmp_path / "back")
    assert back.chat_template == "{{ messages }}" and back.eos_token == "<|im_end|>"
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert generation == {"pad_token_id": 256, "eos_token_id": 257, "do_sample": True, "temperature": 0.7, "top_k": 20}


@pytest.mark.parametrize(("name", "model_type", "kind"), [
    ("deepseek_v3", "", "gpt2"), ("gemma3", "gemma3_text", "llama"), ("gemma3", "gemma4_text", "gemma4"),
    ("gpt2", "", "gpt2"), ("llama3_2", "", "gpt2"), ("mistral_nemo", "", "gpt2"), ("qwen3", "", "gpt2")])
def test_real_tokenizers_go_to_gguf_and_back(shared, tmp_path, name, model_type, kind):
    source = pathlib.Path(shared) / "data/tokenizers" / name
    found = json.loads((source / "tokenizer.json").read_text())
    rows = max([*found["model"]["vocab"].values(), *(t["id"] for t in found["added_tokens"])]) + 1
    header = vocabulary.to_gguf(source, rows, {"model_type": model_type})
    assert header["tokenizer.ggml.model"] == vocabulary.text(kind)
    header["general.architecture"] = vocabulary.text("llama")
    (tmp_path / "x.gguf").write_bytes(gguf_file.head(header, []))
    for file, value in vocabulary.from_gguf(header, "x").items():
        (tmp_path / file).write_text(vocabulary.dump(value))
    story = (pathlib.Path(shared) / "data/text/stories.txt").read_text(encoding="utf-8")[:5000]
    texts = [*TEXTS[:4], story, " indented\n    code()\n"]
    ours = gomlx.Tokenizer.from_file(source)
    for other in (gomlx.Tokenizer.from_gguf(tmp_path / "x.gguf"), gomlx.Tokenizer.from_file(tmp_path)):
        for text in texts:
            ids = ours.encode(text)
            assert other.encode(text) == ids
            assert other.decode(ids) == ours.decode(ids)


def test_added_tokens_beyond_the_embedding_are_left_out(folder, tmp_path):
    source = folder("llama")
    made = byte_level_tokenizer()
    beyond = made["added_tokens"][0] | {"id": ROWS, "content": "<image>"}
    made["model"]["vocab"] |= {f"x{i}": i for i in range(261, ROWS)}
    made["added_tokens"].append(beyond)
    (source / "tokenizer.json").write_text(json.dumps(made))
    gomlx.convert(source, tmp_path / "x.gguf")
    assert gguf.GGUFReader(tmp_path / "x.gguf").fields["tokenizer.ggml.tokens"].contents()[-1] == f"x{ROWS - 1}"
    made["model"]["vocab"]["xx"] = ROWS
    made["added_tokens"].pop()
    (source / "tokenizer.json").write_text(json.dumps(made))
    with pytest.raises(gomlx.Error, match="tokenizer.json: .* id 300 .*rows, 300"):
        gomlx.convert(source, tmp_path / "y.gguf")


def test_text_part_of_a_multimodal_checkpoint(folder, tmp_path):
    source = folder("gemma3_text")
    gomlx.convert(source, tmp_path / "x.gguf", "f32")
    arrays = {"language_model." + name: array for name, array in arrays_of(source).items()}
    arrays |= {"vision_tower.x.weight": mx.zeros((3, 3)), "multi_modal_projector.y": mx.zeros((2,))}
    mx.save_safetensors(str(source / "model.safetensors"), arrays)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(
        json.dumps({"model_type": "gemma3", "text_config": config, "eos_token_id": 257}))
    gomlx.convert(source, tmp_path / "y.gguf", "f32")
    assert (tmp_path / "x.gguf").read_bytes() == (tmp_path / "y.gguf").read_bytes()
    gomlx.convert(source, tmp_path / "text", "bf16")     # a checkpoint of the text part alone
    assert "model.norm.weight" in arrays_of(tmp_path / "text")
    assert json.loads((tmp_path / "text" / "config.json").read_text())["model_type"] == "gemma3_text"


# ---- failures ----

def left(path):
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("destination, quantize", [("x.gguf", "q4_0"), ("out", "mlx-4"), ("out", "f32")])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_nothing_is_left_when_it_ends_early(folder, tmp_path, monkeypatch, destination, quantize, error):
    source = folder("llama")
    count = 0

    def stopped(bytes_of=writing.bytes_of):
        def read(array):
            nonlocal count
            count += 1
            if count == 9:
                raise error
            return bytes_of(array)
        return read

    monkeypatch.setattr(writing, "bytes_of", stopped())
    with pytest.raises(error if isinstance(error, type) else OSError):
        gomlx.convert(source, tmp_path / destination, quantize)
    assert left(tmp_path) == ["model"]


def test_what_is_there_is_kept(folder, tmp_path):
    source = folder("llama")
    for name in ("x.gguf", "out"):
        (tmp_path / name).mkdir() if name == "out" else (tmp_path / name).write_text("mine")
        with pytest.raises(FileExistsError, match=name):
            gomlx.convert(source, tmp_path / name, "bf16")
        gomlx.convert(source, tmp_path / name, "bf16", overwrite=True)
    assert left(tmp_path) == ["model", "out", "x.gguf"] and (tmp_path / "out" / "config.json").exists()
    with pytest.raises(ValueError, match="source itself"):
        gomlx.convert(source, source, "bf16", overwrite=True)


def test_what_is_no_model_is_not_replaced(folder, tmp_path, monkeypatch):
    source = folder("llama")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("mine")
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "x.gguf").write_text("source")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to(tmp_path / "home")
    before = left(tmp_path)
    for origin, name, error, words in ((source, "home", FileExistsError, "not a model's folder"),
                                       (source, "link", FileExistsError, "not a model's folder"),
                                       (source, "folder.gguf", IsADirectoryError, "is a folder, expected a .gguf file"),
                                       (source, "pipe", FileExistsError, "is a pipe or a device"),
                                       (tmp_path / "x.gguf", ".", ValueError, "is within .*, which would be replaced"),
                                       (source, "/", ValueError, "is in use")):
        with pytest.raises(error, match=words):
            gomlx.convert(origin, tmp_path / name, "bf16", overwrite=True)
    monkeypatch.chdir(tmp_path)
    for name, words in ((".", "is in use"), ("", "destination is '', expected")):
        with pytest.raises(ValueError, match=words):
            gomlx.convert(source, name, "bf16", overwrite=True)
    assert left(tmp_path) == before and (tmp_path / "home" / "letter.txt").read_text() == "mine"


def change(path, **more):
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | more))


def test_wrong_sources_are_named(folder, tmp_path):
    source = folder("llama")
    for more, error, words in ((dict(head_dim=33), gomlx.Error, "proj.*expected rows in heads of 33"),
                               (dict(head_dim=32, hidden_size=128), gomlx.Error, "expected rows of hidden_size 128"),
                               (dict(hidden_size="64"), gomlx.Error, "config.json: hidden_size is '64'"),
                               (dict(hidden_size=64, model_type="bloom"), NotImplementedError, "model_type 'bloom'"),
                               (dict(model_type="llama", rope_scaling={"rope_type": "longrope"}), NotImplementedError,
                                "rope type 'longrope'"),
                               (dict(rope_scaling=None, quantization_config={"quant_method": "gptq"}),
                                NotImplementedError, "quant_method 'gptq'")):
        change(source, **more)
        with pytest.raises(error, match=words):
            gomlx.convert(source, tmp_path / "x.gguf", "q8_0")
    change(source, quantization_config=None)
    (source / "tokenizer.json").unlink()
    with pytest.raises(FileNotFoundError, match="tokenizer.json"):
        gomlx.convert(source, tmp_path / "x.gguf", "q8_0")
    (source / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(gomlx.Error, match="model.safetensors is not a safetensors file"):
        gomlx.convert(source, tmp_path / "x.gguf", "q8_0")
    assert left(tmp_path) == ["model"]


def test_wrong_mlx_shapes_are_named(folder, tmp_path):
    gomlx.convert(folder("llama"), tmp_path / "mlx", "mlx-4")
    config = json.loads((tmp_path / "mlx" / "config.json").read_text())
    change(tmp_path / "mlx", quantization=config["quantization"] | {"bits": 3})
    with pytest.raises(gomlx.Error, match="is not affine 3-bit, groups of 64, as config.json says"):
        gomlx.convert(tmp_path / "mlx", tmp_path / "x.gguf")


def test_wrong_types_are_named(tmp_path):
    with pytest.raises(ValueError, match="mlx-4 is not a type of GGUF files"):
        gomlx.convert(None, tmp_path / "x.gguf", "mlx-4")
    with pytest.raises(ValueError, match="q4_k_m is a type of GGUF files"):
        gomlx.convert(None, tmp_path / "x", "q4_k")
    with pytest.raises(ValueError, match="expected one of f32"):
        gomlx.convert(None, tmp_path / "x", "q3")
    with pytest.raises(FileNotFoundError, match="no folder"):
        gomlx.convert(None, tmp_path / "no" / "x.gguf")


@pytest.mark.parametrize("cut", [0, 3, 40, 2000, 20000, -1])
def test_cut_gguf_files(folder, tmp_path, cut):
    gomlx.convert(folder("qwen2"), tmp_path / "x.gguf")
    whole = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "y.gguf").write_bytes(whole[:cut] if cut >= 0 else whole[:-33])
    for destination in ("z.gguf", "z"):
        with pytest.raises(gomlx.Error, match="y.gguf is not a GGUF file"):
            gomlx.convert(tmp_path / "y.gguf", tmp_path / destination)
    assert left(tmp_path) == ["model", "x.gguf", "y.gguf"]


def test_split_gguf_files(tmp_path):
    save_gguf(str(tmp_path / "s.gguf"), SMALL, random_weights(SMALL), split=8)
    parts = sorted(tmp_path.glob("s-*.gguf"))
    gomlx.convert(parts[0], tmp_path / "x.gguf")
    whole = {t.name for t in gguf.GGUFReader(tmp_path / "x.gguf").tensors}
    assert len(parts) > 1 and whole == {t.name for part in parts for t in gguf.GGUFReader(part).tensors}
    os.rename(parts[0], tmp_path / "alone.gguf")
    with pytest.raises(gomlx.Error, match=f"one of {len(parts)} parts"):
        gomlx.convert(tmp_path / "alone.gguf", tmp_path / "y.gguf")
    os.rename(tmp_path / "alone.gguf", parts[0])
    os.remove(parts[-1])
    with pytest.raises(gomlx.Error, match=f"are missing: {parts[-1].name}"):
        gomlx.convert(parts[0], tmp_path / "y.gguf")


# ---- the command ----

def run(*args):
    return subprocess.run([sys.executable, "-P", "-m", "gomlx", "convert", *map(str, args)], capture_output=True,
                          text=True)


def test_command(tmp_path):
    done = run("fable", tmp_path / "x.gguf", "-q", "q4_0", "--json")
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout)["types"]["Q4_0"] == 42
    done = run("fable", tmp_path / "x.gguf", "-q", "q4_0")
    assert done.returncode == 1 and "exists" in done.stderr and done.stdout == ""
    done = run("fable", tmp_path / "mlx", "-q", "mlx-4")
    assert done.returncode == 0 and "went through float32" in done.stderr and "%" not in done.stderr
    assert list(cli_types) == conversion.TYPES and all(name in run("--help").stdout for name in cli_types)
