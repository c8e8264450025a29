"""Small random checkpoints of every architecture, with sizes and switches that no trained model has: the config of
each, and weights that follow from their names and shapes. golden/random.npz has the names, and what transformers says
of each; golden/make_random.py made it."""
import json
import os
import zlib

import checkpoints
import numpy as np
from places import GOLDEN

TOKENS, PROMPT, VOCAB = 300, 200, 96

BASE = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "max_position_embeddings": 512,
        "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 40}
SHARED_EXPERT = {"shared_expert_intermediate_size": 24}
RECURRENT = {"num_hidden_layers": 5, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
             "linear_num_value_heads": 4, "head_dim": 32}
SLIDING, FULL, LINEAR = "sliding_attention", "full_attention", "linear_attention"
NEXT = {"model_type": "qwen3_next"} | MOE | SHARED_EXPERT | RECURRENT
QWEN3_5 = {"model_type": "qwen3_5_text"} | RECURRENT
QWEN3_5_MOE = {"model_type": "qwen3_5_moe_text"} | MOE | SHARED_EXPERT | RECURRENT
GEMMA2 = {"model_type": "gemma2", "sliding_window": 9, "query_pre_attn_scalar": 16, "tie_word_embeddings": True}
GEMMA3 = {"model_type": "gemma3_text", "sliding_window": 9, "query_pre_attn_scalar": 16, "num_hidden_layers": 7,
          "tie_word_embeddings": True}
GEMMA4 = {"model_type": "gemma4_text", "sliding_window": 9, "num_hidden_layers": 7, "global_head_dim": 32,
          "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCAB, "tie_word_embeddings": True}
GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 40}
GPT_OSS = {"model_type": "gpt_oss", "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 9,
           "hidden_size": 96, "intermediate_size": 64, "max_position_embeddings": 512}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32.0,
        "beta_slow": 1.0, "rope_theta": 150000.0}
MROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "mrope_section": [3, 3, 2],
         "mrope_interleaved": True}
BOTH_ROPES = {FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
              SLIDING: {"rope_type": "default", "rope_theta": 2e3}}
QWEN_VISION = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 64,
               "num_position_embeddings": 16}
SIGLIP = {"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
          "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def text(*changes):
    config = dict(BASE)
    for change in changes:
        config |= change
    return config


def multimodal(model_type, text_config, **towers):
    """A config around another one; the language model's part is all that is read."""
    return {"model_type": model_type, "text_config": text_config, "tie_word_embeddings":
            text_config["tie_word_embeddings"]} | towers


CONFIGS = {
    "llama": text({"model_type": "llama"}),
    "llama, biases": text({"model_type": "llama", "attention_bias": True, "mlp_bias": True}),
    "mistral": text({"model_type": "mistral", "sliding_window": 7, "head_dim": 24, "num_key_value_heads": 1}),
    "qwen2": text({"model_type": "qwen2", "tie_word_embeddings": True}),
    "qwen2, windows": text({"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True,
                            "sliding_window": 6, "max_window_layers": 2}),
    "qwen2, windows by layer": text({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 6,
                                     "layer_types": [SLIDING, FULL, SLIDING]}),
    "qwen2, windows unused": text({"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 6,
                                   "max_window_layers": 1}),
    "qwen3": text({"model_type": "qwen3", "head_dim": 24, "tie_word_embeddings": True}),
    "qwen3, windows and biases": text({"model_type": "qwen3", "use_sliding_window": True, "sliding_window": 4,
                                       "max_window_layers": 1, "attention_bias": True}),
    "qwen3_moe": text({"model_type": "qwen3_moe", "norm_topk_prob": True}, MOE),
    "qwen3_moe, weights as they are": text({"model_type": "qwen3_moe", "norm_topk_prob": False}, MOE),
    "qwen3_moe, default weights": text({"model_type": "qwen3_moe", "num_experts_per_tok": 3}, {
        key: value for key, value in MOE.items() if key != "num_experts_per_tok"}),
    "qwen3_moe, some dense": text({"model_type": "qwen3_moe", "num_hidden_layers": 5, "mlp_only_layers": [3],
                                   "decoder_sparse_step": 2, "norm_topk_prob": True}, MOE),
    "qwen3_moe, windows": text({"model_type": "qwen3_moe", "use_sliding_window": True, "sliding_window": 11,
                                "attention_bias": True, "norm_topk_prob": True}, MOE),
    "qwen3_next": text(NEXT),
    "qwen3_next, as many value heads": text(NEXT, {"linear_num_value_heads": 2, "norm_topk_prob": False}),
    "qwen3_next, four values to a key": text(NEXT, {"linear_num_value_heads": 8, "linear_value_head_dim": 8}),
    "qwen3_next, some dense": text(NEXT, {"mlp_only_layers": [0], "decoder_sparse_step": 2,
                                          "tie_word_embeddings": True}),
    "qwen3_next, kinds listed": text(NEXT, {"layer_types": [FULL, LINEAR, FULL, LINEAR, LINEAR], "attention_bias": True,
                                            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6,
                                                                "partial_rotary_factor": 0.5}}),
    "qwen3_next, another interval": text(NEXT, {"full_attention_interval": 2, "linear_conv_kernel_dim": 2}),
    "qwen3_5": text(QWEN3_5, {"tie_word_embeddings": True}),
    "qwen3_5, other sizes": text(QWEN3_5, {"linear_num_value_heads": 6, "linear_num_key_heads": 3,
                                           "linear_conv_kernel_dim": 3, "full_attention_interval": 3}),
    "qwen3_5, as many value heads": text(QWEN3_5, {"linear_num_value_heads": 2, "attention_bias": True}),
    "qwen3_5, multimodal": multimodal("qwen3_5", text(QWEN3_5, {"rope_parameters": MROPE}), vision_config=QWEN_VISION),
    "qwen3_5_moe": text(QWEN3_5_MOE),
    "qwen3_5_moe, multimodal": multimodal("qwen3_5_moe", text(QWEN3_5_MOE, {"num_experts_per_tok": 3,
                                                                            "rope_parameters": MROPE}),
                                          vision_config=QWEN_VISION),
    "gemma2": text(GEMMA2),
    "gemma2, no caps": text(GEMMA2, {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2, other caps and scale": text(GEMMA2, {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 7.0,
                                                  "query_pre_attn_scalar": 40, "tie_word_embeddings": False}),
    "gemma2, kinds listed": text(GEMMA2, {"layer_types": [FULL, FULL, SLIDING], "attention_bias": True}),
    "gemma3": text(GEMMA3),
    "gemma3, new spelling": text(GEMMA3, {"rope_parameters": BOTH_ROPES}),
    "gemma3, old spelling": text(GEMMA3, {"rope_theta": 5e5, "rope_local_base_freq": 2e3, "torch_dtype": "float32",
                                          "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "gemma3, pattern": text(GEMMA3, {"sliding_window_pattern": 2, "num_hidden_layers": 3,
                                     "tie_word_embeddings": False}),
    "gemma3, caps": text(GEMMA3, {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0, "attention_bias": True,
                                  "query_pre_attn_scalar": 40}),
    "gemma3, multimodal": multimodal("gemma3", text(GEMMA3), vision_config=SIGLIP, mm_tokens_per_image=1),
    "gemma4": text(GEMMA4),
    "gemma4, heads by layer": text({key: value for key, value in GEMMA4.items() if key != "global_head_dim"}, {
        "per_layer_config": {"5": {"head_dim": 48, "num_key_value_heads": 1},
                             "6": {"head_dim": 48, "num_key_value_heads": 1}}}),
    "gemma4, one shared layer": text(GEMMA4, {"num_kv_shared_layers": 1}),
    "gemma4, two shared wide layers": text(GEMMA4, {
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "layer_types": [SLIDING, SLIDING, FULL, SLIDING, FULL, SLIDING, FULL]}),
    "gemma4, keys are values": text(GEMMA4, {"attention_k_eq_v": True}),
    "gemma4, fewer keys are values": text(GEMMA4, {"attention_k_eq_v": True, "num_global_key_value_heads": 1,
                                                   "num_kv_shared_layers": 1}),
    "gemma4, experts": text(GEMMA4, GEMMA4_MOE),
    "gemma4, experts, nothing per layer": text(GEMMA4, GEMMA4_MOE, {"hidden_size_per_layer_input": 0, "num_experts": 5,
                                                                    "attention_k_eq_v": True}),
    "gemma4, nothing per layer": text(GEMMA4, {"hidden_size_per_layer_input": 0, "final_logit_softcapping": 5.0,
                                               "tie_word_embeddings": False}),
    "gemma4, last layer sliding": text(GEMMA4, {"num_hidden_layers": 4, "attention_bias": True,
                                                "layer_types": [SLIDING, FULL, SLIDING, SLIDING]}),
    "gemma4, other ropes": text(GEMMA4, {"rope_parameters": {
        FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.5, "rope_theta": 3e4},
        SLIDING: {"rope_type": "default", "rope_theta": 2e3}}}),
    "gpt_oss": text(GPT_OSS, {"rope_parameters": YARN | {"truncate": False}}),
    "gpt_oss, whole bounds": text(GPT_OSS, {"rope_parameters": YARN | {"truncate": True}, "tie_word_embeddings": True}),
    "gpt_oss, old spelling": text(GPT_OSS, {"rope_theta": 150000.0, "rope_scaling": {
        key: value for key, value in YARN.items() if key != "rope_theta"}}),
    "gpt_oss, no rope given": text(GPT_OSS),
    "gpt_oss, close limits": text(GPT_OSS, {"swiglu_limit": 0.75, "swiglu_alpha": 1.2, "attention_bias": False,
                                            "num_experts_per_tok": 1, "layer_types": [FULL, SLIDING, SLIDING],
                                            "rope_parameters": YARN | {"truncate": False}}),
    "olmo2": text({"model_type": "olmo2"}),
    "olmo2, one key head": text({"model_type": "olmo2", "num_key_value_heads": 1, "attention_bias": True,
                                 "head_dim": 24,
                                 "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
}


# Sizes that the groups and blocks of every quantised format divide, for test_containers.py.
WIDE = {"hidden_size": 256, "intermediate_size": 256, "head_dim": 64, "moe_intermediate_size": 256,
        "shared_expert_intermediate_size": 256, "linear_num_value_heads": 4, "linear_value_head_dim": 64}
WIDE_CASES = {f"{name}, wide": text(change, {key: value for key, value in WIDE.items()
                                             if key in change or key in BASE}) for name, change in {
    "llama": {"model_type": "llama", "attention_bias": True},
    "mistral": {"model_type": "mistral", "sliding_window": 9},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
    "qwen3_moe": {"model_type": "qwen3_moe", "norm_topk_prob": True} | MOE,
    "qwen3_next": NEXT | {"num_hidden_layers": 4, "norm_topk_prob": True},
    "qwen3_5": QWEN3_5 | {"num_hidden_layers": 4},
    "qwen3_5_moe": QWEN3_5_MOE | {"num_hidden_layers": 4},
    "gemma2": GEMMA2 | {"query_pre_attn_scalar": 64},
    "gemma3": GEMMA3 | {"query_pre_attn_scalar": 64, "num_hidden_layers": 6},
    "gemma4": GEMMA4 | GEMMA4_MOE | {"num_hidden_layers": 4, "hidden_size_per_layer_input": 256, "global_head_dim": 128,
                                     "layer_types": [SLIDING, FULL, SLIDING, FULL], "attention_k_eq_v": True,
                                     "num_global_key_value_heads": 1, "num_kv_shared_layers": 1},
    "gpt_oss": GPT_OSS | {"num_hidden_layers": 2, "rope_parameters": YARN | {"truncate": False}},
    "olmo2": {"model_type": "olmo2"},
}.items()}
CONFIGS |= WIDE_CASES


def language(config):
    """The language model's config."""
    return config.get("text_config", config)


def random_weight(name, shape, seed=0):
    """float32 values; queries and keys are large enough that attention has favourites, norms are not near 1."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    value = rng.normal(size=shape)
    if name.endswith("A_log"):
        value = np.log(rng.uniform(0.01, 0.5, shape))
    elif name.endswith(("layer_scalar", "per_expert_scale", "router.scale")):
        value = rng.uniform(0.5, 1.2, shape)
    elif "norm" in name:
        value = (0.9 if ".q_norm" in name or ".k_norm" in name else 0.6) + 0.2 * value
    elif name.endswith(("bias", "sinks")):
        value = 0.3 * value
    elif "embed_tokens" in name or "lm_head" in name:
        value = (0.15 if "embed_tokens" in name else 0.5) * value
    else:
        gain = 2 if any(part in name for part in (".q_proj", ".k_proj", "mlp.gate.", "router")) else 1
        value = gain * value / np.sqrt(shape[-1])
    return value.astype(np.float32)


def prompt(seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, PROMPT).tolist()


class Golden:
    """golden/random.npz: `shapes` by case and tensor; of a case the greedy text after prompt(), and the logits of
    `rows` of both together."""

    rows = (0, 1, 150, TOKENS - 1)

    def __init__(self, path=os.path.join(GOLDEN, "random.npz")):
        with np.load(path) as file:
            self.arrays = dict(file)
        self.shapes = json.loads(str(self.arrays["shapes"]))

    def ids(self, case):
        return prompt() + self.arrays[case + ": greedy"].tolist()

    def logits(self, case):
        return self.arrays[case + ": logits"]

    def weights(self, case):
        return {name: random_weight(name, shape) for name, shape in self.shapes[case].items()}

    def save(self, folder, case):
        checkpoints.save_safetensors(folder, CONFIGS[case], self.weights(case))
        return folder
