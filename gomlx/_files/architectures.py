"""Conversions by architecture: names of tensors in Hugging Face folders and GGUF files, and hyperparameters in
config.json and in GGUF's metadata, as the engine reports them (_gomlx.architectures: the tables by which it loads)."""
from __future__ import annotations

import dataclasses
import functools
import math

from gomlx import _gomlx as mx
from gomlx._files import gguf


@dataclasses.dataclass
class Architecture:
    """layer, top: GGUF's names of linear layers, without .weight or .bias, within a layer and of the model; whole,
    top_whole: of other weights. experts: how Hugging Face stores them, "each", "fused" (gate over up) or "interleaved"
    (gpt-oss)."""
    model_type: str
    types: list                        # all values of model_type
    gguf: str
    hf_class: str
    layer: dict = dataclasses.field(default_factory=dict)
    whole: dict = dataclasses.field(default_factory=dict)
    top: dict = dataclasses.field(default_factory=dict)
    top_whole: dict = dataclasses.field(default_factory=dict)
    counts: list = dataclasses.field(default_factory=list)      # GGUF's key after the architecture's name, type, key
    defaults: dict = dataclasses.field(default_factory=dict)
    optional: list = dataclasses.field(default_factory=list)    # keys that null turns off
    keys: set = dataclasses.field(default_factory=set)          # all keys of config.json that are read
    experts: str = "each"
    gguf_fused: bool = False           # gate over up in GGUF, too
    recurrent: bool = False            # some layers are gated delta nets
    grouped: bool = False              # queries, keys, values and gates of linear attention in one, by key heads
    permuted: set = dataclasses.field(default_factory=set)      # in GGUF, rotated pairs are side by side
    centred: set = dataclasses.field(default_factory=set)       # norms that hold w where GGUF has 1 + w
    pattern: int = 0                   # every n-th layer is full, unless config.json lists them; 0: all are alike
    activation: str = "silu"
    chat: str | None = None

    @property
    def full_layers_differ(self) -> bool:
        """Whether full layers have heads, rotary embedding and widths of their own; the last layer is one of them."""
        return "global_head_dim" in self.keys


@functools.cache
def known() -> list[Architecture]:
    """The architectures that the engine has, each as one row."""
    return [made(one) for one in mx.architectures()]


def named(name: str) -> Architecture | None:
    """By a model_type or by GGUF's name; None: there is none."""
    return next((a for a in known() if name in a.types), None) or next((a for a in known() if a.gguf == name), None)


def made(said):
    arch = Architecture(said["types"][0], said["types"], said["gguf"], said["class"], pattern=int(said["period"]),
                        activation=said.get("activation", "silu"), chat=said.get("chat"))
    for fields, linear, whole in ((said["globals"], arch.top, arch.top_whole), (said["layer"], arch.layer, arch.whole)):
        for one in fields:
            add_field(arch, one, linear, whole)
    add_values(arch, said["values"])
    return arch


def add_field(arch, field, linear, whole):
    ours, theirs = field["names"][-1], field["gguf"][0]
    arch.recurrent |= field["recurrent"]
    arch.grouped |= len(field["names"]) > 1
    if field["kind"] == "experts":
        arch.experts = "interleaved" if field["interleaved"] else "fused" if field["fused"] else "each"
        arch.gguf_fused |= field["gguf_fused"]
        if field["gguf_fused"] and not ours.endswith("down_proj"):
            ours, theirs = ours[:ours.rindex(".")] + ".gate_up_proj", "ffn_gate_up_exps"
    (whole if field["kind"] in ("vector", "matrix") else linear)[ours] = theirs
    if field["permuted"]:
        arch.permuted.add(ours)
    if field["centred"]:
        arch.centred.add(ours)


def add_values(arch, values):
    pairs = {}
    for one in values:
        key, kind, usual, suffix = one["key"], one["kind"], one["usual"], one.get("gguf")
        arch.keys.add(key)
        if kind == "optional":
            arch.optional.append(key)
        if kind == "flag":
            arch.defaults.setdefault(key, bool(usual))
        elif usual or kind == "optional":
            arch.defaults.setdefault(key, float(usual) if kind in ("number", "optional") else int(usual))
        if suffix and kind != "flag" and key != "mrope_section":          # which is a list
            pairs[suffix] = (suffix, "f32" if kind in ("number", "optional") else "u32", key)
    arch.counts = list(pairs.values())


def chat_format(model_type) -> str | None:
    """The chat format of a type that no token of the vocabulary tells."""
    return next((one.chat for one in known() if model_type in one.types), None)




def of_config(config, path):
    """(architecture, hyperparameters) of a config.json: flat, rope in the old spelling, defaults filled in."""
    text = config.get("text_config")
    c = dict(text if isinstance(text, dict) else config)
    model_type = c.get("model_type") or config.get("model_type")
    found = [a for a in known() if model_type in a.types]
    if not found:
        raise NotImplementedError(f"{path}: model_type {model_type!r} cannot be converted; convertible are "
                                  + ", ".join(a.model_type for a in known()))
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
    for key in arch.optional:                      # null turns off what the class has as default
        if key in c and c[key] is None:
            c[key] = 0.0
    c = arch.defaults | {key: value for key, value in c.items() if value is not None or key == "sliding_window"}
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
    """GGUF's keys, as gguf.read_header gives them."""
    check_keys(arch, c, path)
    made = {}
    for suffix, kind, key in arch.counts:
        if c.get(key) is not None:
            made[f"{arch.gguf}.{suffix}"] = typed(kind, c[key], f"{path}: {key}")
    rotary = int(c["head_dim"] * c.get("partial_rotary_factor", 1))
    made.setdefault(f"{arch.gguf}.rope.dimension_count", typed("u32", rotary, path))
    if arch.recurrent:
        inner = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        made[f"{arch.gguf}.ssm.inner_size"] = typed("u32", inner, path)
    sections = (c.get("mrope_section") or (c.get("rope_scaling") or {}).get("mrope_section"))
    if "mrope_section" in arch.keys:
        sections = sections or [rotary // 2, 0, 0]
        made[f"{arch.gguf}.rope.dimension_sections"] = (gguf.ARRAY, 5, [*sections, 0][:4])
    kinds = layer_kinds(arch, c)
    if arch.full_layers_differ:
        made |= lists_by_layer(arch, c, kinds)
    if kinds and not arch.recurrent:
        made[f"{arch.gguf}.attention.sliding_window_pattern"] = (gguf.ARRAY, 7, [k == "s" for k in kinds])
    scaling = c.get("rope_scaling") or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind in ("linear", "yarn"):
        made[f"{arch.gguf}.rope.scaling.type"] = (gguf.STRING, None, kind)
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


def check_keys(arch, c, path):
    """NotImplementedError unless what GGUF has no key for is what its readers assume."""
    n, types = c["num_hidden_layers"], c.get("layer_types")
    types = types if isinstance(types, list) else []
    wrong = []
    if "use_sliding_window" in arch.keys and c.get("use_sliding_window") and c.get("sliding_window"):
        first = c["max_window_layers"] if "max_window_layers" in arch.keys else 0
        if "sliding_attention" in types or not types and first < n:
            wrong.append("use_sliding_window")
    if c.get("num_experts"):
        if not c.get("norm_topk_prob", True):
            wrong.append("norm_topk_prob")
        wrong += [key for key, usual in (("mlp_only_layers", []), ("decoder_sparse_step", 1))
                  if c.get(key, usual) != usual]
    if arch.recurrent and types:
        if "full_attention" in types:              # transformers writes the list alone
            c["full_attention_interval"] = types.index("full_attention") + 1
        interval = c["full_attention_interval"]
        if types != ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(len(types))]:
            wrong.append("layer_types")
    if "query_pre_attn_scalar" in arch.keys:
        largest = n == c["layers_of_the_largest"]
        if c["query_pre_attn_scalar"] != (c["hidden_size"] // c["num_attention_heads"] if largest else c["head_dim"]):
            wrong.append("query_pre_attn_scalar")
    wrong += [key for key in ("swiglu_limit", "swiglu_alpha") if key in arch.keys and c[key] != arch.defaults[key]]
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "yarn" and \
            scaling.get("truncate", True) == ("rope_scaling.truncate" in arch.keys):
        wrong.append("rope_scaling.truncate")
    if wrong:
        raise NotImplementedError(f"{path}: GGUF has no key for " + ", ".join(
            f"{key} {(scaling if '.' in key else c).get(key.rpartition('.')[2])!r}" for key in wrong))


def lists_by_layer(arch, c, kinds):
    """What differs from layer to layer: heads of keys, and the width of MLPs that share keys and values."""
    made, n = {}, len(kinds)
    full = c.get("num_global_key_value_heads") or c["num_key_value_heads"]
    if full != c["num_key_value_heads"]:
        made[f"{arch.gguf}.attention.head_count_kv"] = (
            gguf.ARRAY, 5, [full if kind == "f" else c["num_key_value_heads"] for kind in kinds])
    if c.get("use_double_wide_mlp") and 0 < c.get("num_kv_shared_layers", 0) < n:
        narrow, wide = n - c["num_kv_shared_layers"], c["num_kv_shared_layers"]
        made[f"{arch.gguf}.feed_forward_length"] = (
            gguf.ARRAY, 5, narrow * [c["intermediate_size"]] + wide * [2 * c["intermediate_size"]])
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
        if arch.full_layers_differ:                # as transformers has it
            kinds = kinds[:-1] + "f"
    elif arch.pattern:
        pattern = c.get("sliding_window_pattern") or c.get("_sliding_window_pattern") or arch.pattern
        forced = n - 1 if arch.full_layers_differ else n
        kinds = "".join("f" if (i + 1) % pattern == 0 or i == forced else "s" for i in range(n))
    else:
        return ""
    return kinds if arch.pattern or "l" in kinds else ""


def of_metadata(header, path):
    """(architecture, hyperparameters as config.json has them) of a GGUF file."""
    values = {key: value for key, (_, _, value) in header.items()}
    name = values.get("general.architecture")
    found = [a for a in known() if a.gguf == name]
    if not found:
        raise NotImplementedError(f"{path}: architecture {name!r} cannot be converted; convertible are "
                                  + ", ".join(dict.fromkeys(a.gguf for a in known())))
    windowed = bool(values.get(f"{name}.attention.sliding_window"))     # some that share a name differ in that alone
    arch = next((a for a in found if ("sliding_window" in a.keys) == windowed), found[0])
    c = {"architectures": [arch.hf_class], "model_type": arch.model_type}
    values |= of_lists_by_layer(name, values)
    for suffix, _, key in arch.counts:
        value = values.get(f"{name}.{suffix}")
        if isinstance(value, (int, float)):
            c[key] = float(f"{value:.7g}") if isinstance(value, float) else value
    c |= {key: c[key] or None for key in arch.optional if key in c}
    tokens = values.get("tokenizer.ggml.tokens")
    c.setdefault("vocab_size", len(tokens) if isinstance(tokens, list) else None)
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"):
        if type(c.get(key)) is not int or c[key] < 1:
            suffix = next(suffix for suffix, _, k in arch.counts if k == key)
            raise mx.Error(f"{path}: {name}.{suffix} is {c.get(key)!r}, expected a number")
    c.setdefault("num_key_value_heads", c["num_attention_heads"])
    c.setdefault("head_dim", c["hidden_size"] // c["num_attention_heads"])
    c["hidden_act" if arch.activation == "silu" else "hidden_activation"] = arch.activation
    rotary = values.get(f"{name}.rope.dimension_count", c["head_dim"])
    if rotary != c["head_dim"] and not arch.full_layers_differ:
        c["partial_rotary_factor"] = rotary / c["head_dim"]
    pattern = values.get(f"{name}.attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == c["num_hidden_layers"]:
        c["layer_types"] = ["sliding_attention" if one else "full_attention" for one in pattern]
    elif arch.pattern:
        kinds = layer_kinds(arch, c | ({"sliding_window_pattern": pattern} if isinstance(pattern, int) else {}))
        c["layer_types"] = ["sliding_attention" if kind == "s" else "full_attention" for kind in kinds]
    if "rope_local_base_freq" in arch.keys:
        c.setdefault("rope_local_base_freq", arch.defaults["rope_local_base_freq"])
    if arch.full_layers_differ:
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
    elif "query_pre_attn_scalar" in arch.keys:
        heads = c["num_attention_heads"]
        large = c["num_hidden_layers"] == arch.defaults["layers_of_the_largest"]
        c["query_pre_attn_scalar"] = c["hidden_size"] // heads if large else c["head_dim"]
    if arch.recurrent:
        c["linear_value_head_dim"] = values[f"{name}.ssm.inner_size"] // c["linear_num_value_heads"]
    if "num_experts" in c and "enable_moe_block" not in arch.keys:
        c |= {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    scaling = values.get(f"{name}.rope.scaling.type")
    if scaling in ("linear", "yarn"):
        c["rope_scaling"] = {"rope_type": scaling, "factor": values.get(f"{name}.rope.scaling.factor")}
        for key, suffix in (("original_max_position_embeddings", "original_context_length"),
                            ("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow"),
                            ("attention_factor", "attn_factor")):
            if f"{name}.rope.scaling.{suffix}" in values:
                c["rope_scaling"][key] = values[f"{name}.rope.scaling.{suffix}"]
        if "rope_scaling.truncate" in arch.keys:
            c["rope_scaling"]["truncate"] = False
    return arch, c


def of_lists_by_layer(name, values):
    """One number for each of lists_by_layer; what the last layers have that the first have not."""
    made, kinds = {}, values.get(f"{name}.attention.sliding_window_pattern")
    heads, widths = values.get(f"{name}.attention.head_count_kv"), values.get(f"{name}.feed_forward_length")
    if isinstance(heads, list) and isinstance(kinds, list) and len(heads) == len(kinds):
        sliding, full = ([h for h, kind in zip(heads, kinds) if bool(kind) == wanted] for wanted in (True, False))
        made[f"{name}.attention.head_count_kv"] = (sliding or full)[0]
        if full and sliding and full[0] != sliding[0]:
            made["num_global_key_value_heads"] = full[0]
    if isinstance(widths, list) and widths:
        made[f"{name}.feed_forward_length"] = widths[0]
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
