"""A config and weights that contradict each other: whatever would change the result is an error that names the file,
and the key or the tensor. Weights of towers and copies that nobody reads are none."""
import json

import numpy as np
import pytest
from architectures import CONFIGS, FULL, LINEAR, SLIDING, Golden, language
from checkpoints import save_safetensors
from test_hostile import METADATA, TENSORS, refused, works, write_gguf

from gomlx import _gomlx

GOLDEN = Golden()
ROPE = {"rope_type": "default", "rope_theta": 1e4}


def save(folder, case, changes=(), without=(), more=()):
    """A random checkpoint with other values in its (text) config, without tensors that have one of these texts in their
    names, and with more tensors."""
    config = json.loads(json.dumps(CONFIGS[case]))
    language(config).update(dict(changes))
    weights = {name: value for name, value in GOLDEN.weights(case).items() if not any(one in name for one in without)}
    save_safetensors(folder, config, weights | {name: np.ones(shape, np.float32) for name, shape in dict(more).items()})
    return folder


@pytest.mark.parametrize(("case", "changes", "words"), [
    ("gemma4", {"rope_parameters": [1]}, ["rope_parameters", "not an object"]),
    ("gemma4", {"rope_parameters": "x"}, ["rope_parameters", "not an object"]),
    ("gemma4", {"rope_parameters": {FULL: 3}}, [FULL, "not an object"]),
    ("gemma4", {"rope_parameters": {SLIDING: [ROPE]}}, [SLIDING, "not an object"]),
    ("gemma3", {"rope_parameters": {FULL: ROPE, SLIDING: 1e4}}, [SLIDING, "not an object"]),
    ("gemma3", {"rope_scaling": 8}, ["rope_scaling", "not an object"]),
    ("gemma4", {"per_layer_config": [1]}, ["per_layer_config", "not an object"]),
    ("gemma4", {"per_layer_config": {"1": 32}}, ["per_layer_config", "not an object"]),
    ("gpt_oss", {"rope_parameters": ROPE | {"truncate": 1}}, ["truncate"]),
    ("llama", {"text_config": [1]}, ["text_config", "not an object"]),
    ("llama", {"text_config": "x"}, ["text_config", "not an object"]),
    ("llama", {"quantization_config": "gptq"}, ["quantization_config", "not an object"]),
    ("llama", {"quantization": 4}, ["quantization", "not an object"]),
    ("gemma3", {"use_bidirectional_attention": 1}, ["use_bidirectional_attention"]),
    ("qwen3_5", {"partial_rotary_factor": "half"}, ["partial_rotary_factor"]),
    ("qwen3_5", {"partial_rotary_factor": -0.5}, ["partial_rotary_factor", "-0.5"]),
    ("qwen3_5", {"partial_rotary_factor": 2, "rope_parameters": ROPE | {"partial_rotary_factor": 0.25}},
     ["partial_rotary_factor", "2"]),
])
def test_values_of_the_wrong_kind(tmp_path, case, changes, words):
    refused(save(tmp_path, case, changes), "config.json", *words)


@pytest.mark.parametrize(("case", "changes", "words"), [
    ("gemma4", {"hidden_size_per_layer_input": 0}, ["per_layer", "hidden_size_per_layer_input"]),
    ("gemma4", {"hidden_size_per_layer_input": None}, ["per_layer", "hidden_size_per_layer_input"]),
    ("gemma4", {"attention_k_eq_v": True}, ["self_attn.v_proj.weight", "attention_k_eq_v"]),
    ("gemma4, experts", {"enable_moe_block": False}, ["enable_moe_block"]),
    ("qwen3_next", {"shared_expert_intermediate_size": 0}, ["shared_expert", "shared_expert_intermediate_size"]),
    ("qwen3_moe", {"mlp_only_layers": [1], "intermediate_size": 96}, ["layers.1.mlp.gate_proj.weight", "missing"]),
    ("qwen3_moe", {"num_experts": 3}, ["mlp.gate.weight", "(4,64)"]),
    ("llama", {"num_hidden_layers": 2}, ["layers.2.", "num_hidden_layers"]),
    ("qwen3_next", {"layer_types": [LINEAR] * 5}, ["layers.3.linear_attn", "missing"]),
    ("qwen3", {"model_type": "llama"}, ["_norm.weight", "llama"]),
    ("gemma3", {"model_type": "gemma2"}, ["_norm.weight", "gemma2"]),
])
def test_weights_that_the_config_denies(tmp_path, case, changes, words):
    refused(save(tmp_path, case, changes), *words)


@pytest.mark.parametrize(("case", "part", "bias"), [
    ("gpt_oss", "gate_up_proj", "_bias"), ("gpt_oss", "down_proj", "_bias"), ("gpt_oss", "router", ".bias"),
    ("gpt_oss", "layers.1.self_attn.o_proj", ".bias"), ("qwen2", "layers.0.self_attn.v_proj", ".bias"),
])
def test_biases_that_are_missing(tmp_path, case, part, bias):
    refused(save(tmp_path, case, without=[part + bias]), "no bias", part, case)


def test_a_config_without_attention_biases(tmp_path):
    biases = [f"self_attn.{one}_proj.bias" for one in "qkvo"]
    refused(save(tmp_path, "gpt_oss", without=biases), "no bias")
    works(_gomlx.load_model(str(save(tmp_path, "gpt_oss", {"attention_bias": False}, without=biases))))


@pytest.mark.parametrize("name", [
    "model.layers.1.self_attn.q_norm.weight", "model.layers.0.input_layernorm.bias", "model.norm.bias",
    "model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.mlp.experts.0.gate_proj.weight",
    "model.layers.3.mlp.up_proj.weight"])
def test_weights_that_no_llama_has(tmp_path, name):
    refused(save(tmp_path, "llama", more={name: (64,)}), name)


def test_weights_that_nobody_needs(tmp_path):
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,), "model.layers.2.self_attn.k_scale": (1,),
            "model.layers.0.self_attn.rotary_emb.cos_cached": (1, 1, 512, 16),
            "model.layers.1.self_attn.v_proj.v_scale": (1,), "vision_tower.layers.0.norm.weight": (4,),
            "mtp.layers.0.input_layernorm.weight": (64,), "mtp.norm.weight": (64,)}
    model = _gomlx.load_model(str(save(tmp_path / "llama", "llama", more=more)))
    assert sorted(model.info()["unused_tensors"]) == sorted(more)
    works(model)
    copies = {f"model.layers.6.self_attn.{name}": shape for name, shape in
              {"k_proj.weight": (64, 64), "v_proj.weight": (64, 64), "k_norm.weight": (32,)}.items()}
    model = _gomlx.load_model(str(save(tmp_path / "gemma4", "gemma4, one shared layer", more=copies)))
    assert sorted(model.info()["unused_tensors"]) == sorted(copies)
    works(model)


def test_gguf(tmp_path):
    path = tmp_path / "x.gguf"
    for name in ("blk.0.attn_q_norm.weight", "blk.1.attn_norm.weight", "output_norm.bias", "blk.0.ffn_gate_inp.weight"):
        refused(write_gguf(path, tensors=TENSORS | {name: (16,)}), name)
    works(_gomlx.load_model(write_gguf(path, tensors=TENSORS | {"v.blk.0.attn_q.weight": (16,)})))
    more = METADATA | {"llama.block_count": 2, "llama.nextn_predict_layers": 1}
    works(_gomlx.load_model(write_gguf(path, more, TENSORS | {"blk.1.nextn.eh_proj.weight": (16,)})))
