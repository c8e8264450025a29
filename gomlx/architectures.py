"""The architectures that can be converted: names of tensors in Hugging Face folders and GGUF files as one table, and
hyperparameters in config.json and in GGUF's metadata."""
from __future__ import annotations

import dataclasses
import math

from gomlx import _gomlx as mx
from gomlx import gguf_file

TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
       "model.embed_tokens_per_layer": "per_layer_token_embd",
       "model.per_layer_model_projection": "per_layer_model_proj",
       "model.per_layer_projection_norm": "per_layer_proj_norm"}
ATTENTION = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
             "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
MLP = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
LLAMA = ATTENTION | MLP | {"post_attention_layernorm": "ffn_norm"}
HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
EXPERTS = {"mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
           "mlp.experts.down_proj": "ffn_down_exps"}
ROUTER = {"mlp.gate": "ffn_gate_inp"}
SHARED_EXPERT = {"mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
                 "mlp.shared_expert.down_proj": "ffn_down_shexp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp"}
GEMMA = ATTENTION | MLP | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                           "post_feedforward_layernorm": "post_ffw_norm"}
GEMMA4 = GEMMA | HEAD_NORMS | {
    "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm",
    "post_feedforward_layernorm_1": "post_ffw_norm_1", "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_2": "post_ffw_norm_2", "router.proj": "ffn_gate_inp",
    "experts.gate_up_proj": "ffn_gate_up_exps", "experts.down_proj": "ffn_down_exps"}
GEMMA4_WHOLE = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
                "router.per_expert_scale": "ffn_down_exps.scale"}
GATED_DELTA = ATTENTION | MLP | HEAD_NORMS | ROUTER | EXPERTS | SHARED_EXPERT | {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_ba": "ssm_ba", "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out"}
GATED_DELTA_WHOLE = {"linear_attn.A_log": "ssm_a", "linear_attn.dt_bias": "ssm_dt.bias"}

# Hyperparameters: GGUF's key behind the architecture's name, type, and key in config.json.
COUNTS = [("context_length", "u32", "max_position_embeddings"), ("embedding_length", "u32", "hidden_size"),
          ("block_count", "u32", "num_hidden_layers"), ("feed_forward_length", "u32", "intermediate_size"),
          ("attention.head_count", "u32", "num_attention_heads"),
          ("attention.head_count_kv", "u32", "num_key_value_heads"), ("attention.key_length", "u32", "head_dim"),
          ("attention.value_length", "u32", "head_dim"), ("attention.layer_norm_rms_epsilon", "f32", "rms_norm_eps"),
          ("rope.freq_base", "f32", "rope_theta"), ("vocab_size", "u32", "vocab_size"),
          ("attention.sliding_window", "u32", "sliding_window")]
EXPERT_COUNTS = [("expert_count", "u32", "num_experts"), ("expert_used_count", "u32", "num_experts_per_tok"),
                 ("expert_feed_forward_length", "u32", "moe_intermediate_size"),
                 ("expert_shared_feed_forward_length", "u32", "shared_expert_intermediate_size")]
SOFTCAPS = [("attn_logit_softcapping", "f32", "attn_logit_softcapping"),
            ("final_logit_softcapping", "f32", "final_logit_softcapping")]
GATED_DELTA_COUNTS = [("ssm.conv_kernel", "u32", "linear_conv_kernel_dim"),
                      ("ssm.state_size", "u32", "linear_key_head_dim"),
                      ("ssm.group_count", "u32", "linear_num_key_heads"),
                      ("ssm.time_step_rank", "u32", "linear_num_value_heads"),
                      ("full_attention_interval", "u32", "full_attention_interval")]


GEMMA4_COUNTS = [row for row in COUNTS if row[0] not in ("attention.key_length", "attention.value_length")] + [
    ("attention.key_length", "u32", "global_head_dim"), ("attention.value_length", "u32", "global_head_dim"),
    ("attention.key_length_swa", "u32", "head_dim"), ("attention.value_length_swa", "u32", "head_dim"),
    ("rope.dimension_count", "u32", "global_head_dim"), ("rope.dimension_count_swa", "u32", "head_dim"),
    ("rope.freq_base_swa", "f32", "rope_local_base_freq"),
    ("attention.shared_kv_layers", "u32", "num_kv_shared_layers"),
    ("embedding_length_per_layer_input", "u32", "hidden_size_per_layer_input"),
    ("final_logit_softcapping", "f32", "final_logit_softcapping"), ("expert_count", "u32", "num_experts"),
    ("expert_used_count", "u32", "top_k_experts"), ("expert_feed_forward_length", "u32", "moe_intermediate_size")]


@dataclasses.dataclass
class Architecture:
    """layer: names within a layer, without .weight or .bias; whole: those that have no such ending. experts: how
    Hugging Face stores them, "each", "fused" (gate over up) or "interleaved" (gpt-oss)."""
    model_type: str
    gguf: str
    hf_class: str
    layer: dict
    counts: list = dataclasses.field(default_factory=lambda: COUNTS)
    whole: dict = dataclasses.field(default_factory=dict)
    defaults: dict = dataclasses.field(default_factory=dict)
    experts: str = "each"
    permuted: bool = False             # queries and keys in GGUF: pairs side by side
    zero_centred: bool = False         # norms hold w where GGUF has 1 + w
    pattern: int = 0                   # each so many layers one is full, where nothing else is said; 0: none is special


GEMMA_DEFAULTS = {"head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "query_pre_attn_scalar": 256,
                  "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
                  "num_key_value_heads": 4, "sliding_window": 4096, "hidden_activation": "gelu_pytorch_tanh"}
QWEN = {"rms_norm_eps": 1e-6, "rope_theta": 1e4}
GATED_DELTA_DEFAULTS = {"head_dim": 256, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "partial_rotary_factor": 0.25,
                        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4}

ARCHITECTURES = [
    Architecture("llama", "llama", "LlamaForCausalLM", LLAMA, permuted=True,
                 defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4}),
    Architecture("mistral", "llama", "MistralForCausalLM", LLAMA, permuted=True,
                 defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4, "sliding_window": 4096}),
    Architecture("qwen2", "qwen2", "Qwen2ForCausalLM", LLAMA, defaults=QWEN),
    Architecture("qwen3", "qwen3", "Qwen3ForCausalLM", LLAMA | HEAD_NORMS, defaults=QWEN | {"head_dim": 128}),
    Architecture("qwen3_moe", "qwen3moe", "Qwen3MoeForCausalLM", LLAMA | HEAD_NORMS | ROUTER | EXPERTS,
                 counts=COUNTS + EXPERT_COUNTS, defaults=QWEN | {"num_experts": 128, "num_experts_per_tok": 8}),
    Architecture("gemma2", "gemma2", "Gemma2ForCausalLM", GEMMA, counts=COUNTS + SOFTCAPS, zero_centred=True, pattern=2,
                 defaults=GEMMA_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                                            "max_position_embeddings": 8192}),
    Architecture("gemma3_text", "gemma3", "Gemma3ForCausalLM", GEMMA | HEAD_NORMS, counts=COUNTS + SOFTCAPS,
                 zero_centred=True, pattern=6,
                 defaults=GEMMA_DEFAULTS | {"rope_theta": 1e6, "rope_local_base_freq": 1e4,
                                            "max_position_embeddings": 131072}),
    Architecture("gemma4_text", "gemma4", "Gemma4ForCausalLM", GEMMA4, counts=GEMMA4_COUNTS, whole=GEMMA4_WHOLE,
                 experts="fused", pattern=6,
                 defaults=GEMMA_DEFAULTS | {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 512,
                                            "num_hidden_layers": 30, "global_head_dim": 512, "num_kv_shared_layers": 0,
                                            "hidden_size_per_layer_input": 256, "max_position_embeddings": 131072,
                                            "final_logit_softcapping": 0.0}),
    Architecture("gpt_oss", "gpt-oss", "GptOssForCausalLM",
                 ATTENTION | EXPERTS | {"mlp.router": "ffn_gate_inp",
                                        "post_attention_layernorm": "post_attention_norm"},
                 counts=COUNTS + EXPERT_COUNTS, whole={"self_attn.sinks": "attn_sinks.weight"}, experts="interleaved",
                 pattern=2,
                 defaults={"head_dim": 64, "rms_norm_eps": 1e-5, "rope_theta": 1.5e5, "sliding_window": 128}),
    Architecture("qwen3_next", "qwen3next", "Qwen3NextForCausalLM", GATED_DELTA, whole=GATED_DELTA_WHOLE,
                 counts=COUNTS + EXPERT_COUNTS + GATED_DELTA_COUNTS, zero_centred=True, defaults=GATED_DELTA_DEFAULTS),
    Architecture("qwen3_5_text", "qwen35", "Qwen3_5ForCausalLM", GATED_DELTA, whole=GATED_DELTA_WHOLE,
                 counts=COUNTS + GATED_DELTA_COUNTS, zero_centred=True, defaults=GATED_DELTA_DEFAULTS),
    Architecture("qwen3_5_moe_text", "qwen35moe", "Qwen3_5MoeForCausalLM", GATED_DELTA, whole=GATED_DELTA_WHOLE,
                 counts=COUNTS + EXPERT_COUNTS + GATED_DELTA_COUNTS, zero_centred=True, experts="fused",
                 defaults=GATED_DELTA_DEFAULTS),
]
ALIASES = {"gemma3": "gemma3_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_text",
           "gemma4_unified_text": "gemma4_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text"}
ROPE_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def of_config(config, path):
    """(architecture, hyperparameters) of a config.json: flat, rope in the old spelling, defaults filled in."""
    text = config.get("text_config")
    c = dict(text if isinstance(text, dict) else config)
    model_type = c.get("model_type") or config.get("model_type")
    found = [a for a in ARCHITECTURES if a.model_type == ALIASES.get(model_type, model_type)]
    if not found:
        raise NotImplementedError(f"{path}: model_type {model_type!r} cannot be converted; convertible are "
                                  + ", ".join(a.model_type for a in ARCHITECTURES))
    arch = found[0]
    rope = c.pop("rope_parameters", None) or {}
    for kind, prefix in (("full_attention", ""), ("sliding_attention", "local_")):
        inner = rope.get(kind) if isinstance(rope.get(kind), dict) else rope if kind == "full_attention" else {}
        if inner.get("rope_theta") is not None:
            c["rope_theta" if not prefix else "rope_local_base_freq"] = inner["rope_theta"]
        if not prefix and inner:
            c |= {key: inner[key] for key in ("partial_rotary_factor", "mrope_section") if inner.get(key) is not None}
            if inner.get("rope_type", inner.get("type", "default")) not in ("default", "mrope", "proportional", None):
                c["rope_scaling"] = {k: v for k, v in inner.items() if k not in ("rope_theta", "partial_rotary_factor")}
    overrides = c.get("per_layer_config")
    for one in overrides.values() if isinstance(overrides, dict) else ():
        for key, name in (("head_dim", "global_head_dim"), ("num_key_value_heads", "num_global_key_value_heads")):
            if isinstance(one, dict) and one.get(key) is not None:
                c[name] = one[key]
    for key, newer in (("num_experts", "num_local_experts"), ("num_experts_per_tok", "experts_per_token")):
        if c.get(key) is None and c.get(newer) is not None:
            c[key] = c[newer]
    for _, _, key in SOFTCAPS:                     # null turns off what the class has as default
        if key in c and c[key] is None:
            c[key] = 0.0
    c = arch.defaults | {key: value for key, value in c.items() if value is not None or key in ("sliding_window",)}
    if arch.model_type == "gpt_oss":
        c["moe_intermediate_size"] = c.get("moe_intermediate_size", c.get("intermediate_size"))
    c.setdefault("num_key_value_heads", c.get("num_attention_heads"))
    if c.get("use_sliding_window") is False:
        c["sliding_window"] = None
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        if type(c.get(key)) is not int or not 0 < c[key] < 1 << 24:
            raise mx.Error(f"{path}: {key} is {c.get(key)!r}, expected a positive number")
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    if type(c["head_dim"]) is not int or not 0 < c["head_dim"] < 1 << 16:
        raise mx.Error(f"{path}: head_dim is {c['head_dim']!r}, expected a positive number")
    return arch, c


# ---- hyperparameters ----

def metadata(arch, c, path):
    """GGUF's keys, as gguf_file.read_header gives them."""
    demand_keys(arch, c, path)
    made = {}
    for suffix, kind, key in arch.counts:
        if c.get(key) is not None:
            made[f"{arch.gguf}.{suffix}"] = typed(kind, c[key], f"{path}: {key}")
    rotary = int(c["head_dim"] * c.get("partial_rotary_factor", 1))
    made.setdefault(f"{arch.gguf}.rope.dimension_count", typed("u32", rotary, path))
    if arch.whole is GATED_DELTA_WHOLE:
        inner = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        made[f"{arch.gguf}.ssm.inner_size"] = typed("u32", inner, path)
    sections = (c.get("mrope_section") or (c.get("rope_scaling") or {}).get("mrope_section"))
    if arch.gguf in ("qwen35", "qwen35moe"):
        sections = sections or [rotary // 2, 0, 0]
        made[f"{arch.gguf}.rope.dimension_sections"] = (gguf_file.ARRAY, 5, [*sections, 0][:4])
    if arch.model_type == "gemma3_text":
        made["gemma3.rope.freq_base_swa"] = typed("f32", c["rope_local_base_freq"], path)
    kinds = layer_kinds(arch, c)
    if arch.model_type == "gemma4_text":
        made |= gemma4_lists(c, kinds)
    if kinds and arch.whole is not GATED_DELTA_WHOLE:
        made[f"{arch.gguf}.attention.sliding_window_pattern"] = (gguf_file.ARRAY, 7, [k == "s" for k in kinds])
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("linear", "yarn"):
        made[f"{arch.gguf}.rope.scaling.type"] = (gguf_file.STRING, None, kind)
        made[f"{arch.gguf}.rope.scaling.factor"] = typed("f32", scaling.get("factor"), f"{path}: rope_scaling.factor")
    if kind == "yarn":
        original = scaling.get("original_max_position_embeddings", c.get("max_position_embeddings"))
        made[f"{arch.gguf}.rope.scaling.original_context_length"] = typed("u32", original, path)
        for key, suffix in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"),
                            ("attention_factor", "attn_factor")):
            if scaling.get(key) is not None:
                made[f"{arch.gguf}.rope.scaling.{suffix}"] = typed("f32", scaling[key], f"{path}: rope_scaling.{key}")
    elif kind not in ("default", "linear", "llama3", "mrope", None):
        raise NotImplementedError(f"{path}: rope type {kind!r} cannot be written to GGUF")
    return made


def demand_keys(arch, c, path):
    """What GGUF has no key for, so that its readers assume it, is what they assume; else NotImplementedError."""
    n, types = c["num_hidden_layers"], c.get("layer_types")
    types = types if isinstance(types, list) else []
    wrong = []
    if arch.gguf.startswith("qwen") and c.get("use_sliding_window") and c.get("sliding_window"):
        first = 0 if arch.model_type == "qwen3_moe" else c.get("max_window_layers", 28)
        if "sliding_attention" in types or not types and first < n:
            wrong.append("use_sliding_window")
    if c.get("num_experts"):
        if not c.get("norm_topk_prob", arch.model_type != "qwen3_moe"):
            wrong.append("norm_topk_prob")
        wrong += [key for key, usual in (("mlp_only_layers", []), ("decoder_sparse_step", 1))
                  if c.get(key, usual) != usual]
    if arch.whole is GATED_DELTA_WHOLE and types:
        if "full_attention" in types:              # transformers writes the list alone
            c["full_attention_interval"] = types.index("full_attention") + 1
        interval = c["full_attention_interval"]
        if types != ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(len(types))]:
            wrong.append("layer_types")
    if arch.model_type in ("gemma2", "gemma3_text"):
        largest = n == (46 if arch.model_type == "gemma2" else 62)
        if c["query_pre_attn_scalar"] != (c["hidden_size"] // c["num_attention_heads"] if largest else c["head_dim"]):
            wrong.append("query_pre_attn_scalar")
    if arch.model_type == "gpt_oss":
        wrong += [key for key, usual in (("swiglu_limit", 7.0), ("swiglu_alpha", 1.702)) if c.get(key, usual) != usual]
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "yarn" and \
            scaling.get("truncate", True) != (arch.model_type != "gpt_oss"):
        wrong.append("rope_scaling.truncate")
    if wrong:
        raise NotImplementedError(f"{path}: GGUF has no key for " + ", ".join(
            f"{key} {(scaling if '.' in key else c).get(key.rpartition('.')[2])!r}" for key in wrong))


def gemma4_lists(c, kinds):
    """What differs from layer to layer: heads of keys, and the width of MLPs that share keys and values."""
    made, n = {}, len(kinds)
    full = c.get("num_global_key_value_heads") or c["num_key_value_heads"]
    if full != c["num_key_value_heads"]:
        made["gemma4.attention.head_count_kv"] = (
            gguf_file.ARRAY, 5, [full if kind == "f" else c["num_key_value_heads"] for kind in kinds])
    if c.get("use_double_wide_mlp") and 0 < c["num_kv_shared_layers"] < n:
        narrow, wide = n - c["num_kv_shared_layers"], c["num_kv_shared_layers"]
        made["gemma4.feed_forward_length"] = (
            gguf_file.ARRAY, 5, narrow * [c["intermediate_size"]] + wide * [2 * c["intermediate_size"]])
    return made


def typed(kind, value, where):
    if isinstance(value, bool) or not isinstance(value, (int, float)) or kind == "u32" and not 0 <= value < 1 << 32:
        raise mx.Error(f"{where} is {value!r}, expected a number")
    return (4, None, int(value)) if kind == "u32" else (6, None, float(value))


def layer_kinds(arch, c):
    """A letter for each layer, s for a sliding window; "" when all are alike."""
    types = c.get("layer_types")
    n = c["num_hidden_layers"]
    if isinstance(types, list) and len(types) == n and all(isinstance(t, str) for t in types):
        kinds = "".join(t[0] for t in types)
        if arch.model_type == "gemma4_text":       # as transformers has it
            kinds = kinds[:-1] + "f"
    elif arch.pattern:
        pattern = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or arch.pattern
        forced = n - 1 if arch.model_type == "gemma4_text" else n
        kinds = "".join("f" if (i + 1) % pattern == 0 or i == forced else "s" for i in range(n))
    else:
        return ""
    return kinds if arch.pattern or "l" in kinds else ""


def of_metadata(header, path):
    """(architecture, hyperparameters as config.json has them) of a GGUF file."""
    values = {key: value for key, (_, _, value) in header.items()}
    name = values.get("general.architecture")
    found = [a for a in ARCHITECTURES if a.gguf == name]
    if not found:
        raise NotImplementedError(f"{path}: architecture {name!r} cannot be converted; convertible are "
                                  + ", ".join(dict.fromkeys(a.gguf for a in ARCHITECTURES)))
    arch = found[1] if name == "llama" and values.get("llama.attention.sliding_window") else found[0]
    c = {"architectures": [arch.hf_class], "model_type": arch.model_type}
    values |= of_gemma4_lists(values)
    for suffix, _, key in arch.counts:
        value = values.get(f"{name}.{suffix}")
        if isinstance(value, (int, float)):
            c[key] = float(f"{value:.7g}") if isinstance(value, float) else value
    c |= {key: c[key] or None for _, _, key in SOFTCAPS if key in c}
    tokens = values.get("tokenizer.ggml.tokens")
    c.setdefault("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if type(c.get(key)) is not int or c[key] < 1:
            suffix = next(suffix for suffix, _, k in arch.counts if k == key)
            raise mx.Error(f"{path}: {name}.{suffix} is {c.get(key)!r}, expected a number")
    c.setdefault("num_key_value_heads", c["num_attention_heads"])
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    c["hidden_act" if "hidden_activation" not in arch.defaults else "hidden_activation"] = \
        arch.defaults.get("hidden_activation", "silu")
    rotary = values.get(f"{name}.rope.dimension_count", c["head_dim"])
    if rotary != c["head_dim"] and arch.model_type != "gemma4_text":
        c["partial_rotary_factor"] = rotary / c["head_dim"]
    pattern = values.get(f"{name}.attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == c["num_hidden_layers"]:
        c["layer_types"] = ["sliding_attention" if one else "full_attention" for one in pattern]
    elif arch.pattern:
        kinds = layer_kinds(arch, c | ({"sliding_window_pattern": pattern} if isinstance(pattern, int) else {}))
        c["layer_types"] = ["sliding_attention" if kind == "s" else "full_attention" for kind in kinds]
    if arch.model_type == "gemma3_text":
        c["rope_local_base_freq"] = float(f"{values.get('gemma3.rope.freq_base_swa', 1e4):.7g}")
    if arch.model_type == "gemma4_text":
        c |= {"use_double_wide_mlp": "wide" in values, "attention_k_eq_v": "num_global_key_value_heads" in values,
              "enable_moe_block": "num_experts" in c, "vocab_size_per_layer_input": c["vocab_size"]}
        full = {"head_dim": c["global_head_dim"]}
        if "num_global_key_value_heads" in values:
            c["num_global_key_value_heads"] = full["num_key_value_heads"] = values["num_global_key_value_heads"]
        c["per_layer_config"] = {str(i): full for i, kind in enumerate(c["layer_types"]) if kind == "full_attention"}
        c["rope_parameters"] = {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                               "rope_theta": c.pop("rope_theta")},
            "sliding_attention": {"rope_type": "default", "rope_theta": c.pop("rope_local_base_freq")}}
    elif arch.model_type.startswith("gemma"):
        heads = c["num_attention_heads"]
        large = c["num_hidden_layers"] == (46 if arch.model_type == "gemma2" else 62)
        c["query_pre_attn_scalar"] = c["hidden_size"] // heads if large else c["head_dim"]
    if arch.whole is GATED_DELTA_WHOLE:
        c["linear_value_head_dim"] = values[f"{name}.ssm.inner_size"] // c["linear_num_value_heads"]
    if arch.model_type == "gpt_oss":
        c["num_local_experts"] = c.pop("num_experts", None)
        c["intermediate_size"] = c.pop("moe_intermediate_size", c.get("intermediate_size"))
    if arch.gguf.startswith("qwen3") and "num_experts" in c:
        c |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    scaling = values.get(f"{name}.rope.scaling.type")
    if scaling in ("linear", "yarn"):
        c["rope_scaling"] = {"rope_type": scaling, "factor": values.get(f"{name}.rope.scaling.factor")}
        for key, suffix in (("original_max_position_embeddings", "original_context_length"),
                            ("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"),
                            ("attention_factor", "attn_factor")):
            if f"{name}.rope.scaling.{suffix}" in values:
                c["rope_scaling"][key] = values[f"{name}.rope.scaling.{suffix}"]
        if arch.model_type == "gpt_oss":
            c["rope_scaling"]["truncate"] = False
    return arch, c


def of_gemma4_lists(values):
    """One number for each of gemma4_lists; what the last layers have that the first have not."""
    made, kinds = {}, values.get("gemma4.attention.sliding_window_pattern")
    heads, widths = values.get("gemma4.attention.head_count_kv"), values.get("gemma4.feed_forward_length")
    if isinstance(heads, list) and isinstance(kinds, list) and len(heads) == len(kinds):
        sliding, full = ([h for h, kind in zip(heads, kinds) if bool(kind) == wanted] for wanted in (True, False))
        made["gemma4.attention.head_count_kv"] = (sliding or full)[0]
        if full and sliding and full[0] != sliding[0]:
            made["num_global_key_value_heads"] = full[0]
    if isinstance(widths, list) and widths:
        made["gemma4.feed_forward_length"] = widths[0]
        made |= {"wide": True} if widths[-1] == 2 * widths[0] else {}
    return made


# ---- Llama 3's rope scaling: config.json has parameters, GGUF divisors of the frequencies ----

def rope_divisors(c, scaling):
    dim, factor = c["head_dim"], scaling["factor"]
    low, high = scaling.get("low_freq_factor", 1), scaling.get("high_freq_factor", 4)
    original, out = scaling["original_max_position_embeddings"], []
    for i in range(dim // 2):
        wavelength = 2 * math.pi * c["rope_theta"] ** (2 * i / dim)
        if wavelength > original / low:
            out.append(float(factor))
        elif wavelength < original / high:
            out.append(1.0)
        else:
            smooth = (original / wavelength - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return out


def rope_scaling_of(c, divisors, path):
    """The parameters that give these divisors."""
    factor = float(f"{max(divisors):.6g}")
    for original in [8192, *(1 << n for n in range(6, 20))]:
        scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": original}
        if len(divisors) == c["head_dim"] // 2 and \
                all(abs(a - b) < 1e-4 * b for a, b in zip(rope_divisors(c, scaling), divisors)):
            return scaling
    raise NotImplementedError(f"{path}: rope_freqs.weight is not a table of Llama 3's rope scaling")
