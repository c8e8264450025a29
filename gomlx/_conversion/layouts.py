"""Weights of an architecture from container to container: names, and the layouts in which they differ.

Between containers weights have the names of Hugging Face (model.layers.0.self_attn.q_proj.weight), experts stacked as
[E, out, in] under mlp.experts.gate_proj.weight and the like, norms as transformers stores them, gate and up apart.
"""
from __future__ import annotations

import re

from gomlx import _gomlx as mx
from gomlx._conversion import weights
from gomlx._files.architectures import rope_divisors, rope_scaling_of
from gomlx._files.names import LAYER, gguf_name, halves_apart, hf_name, pairs_together, parts, without_prefix

DROPPED = re.compile(r"(model\.)?(vision_tower|multi_modal_projector|audio_tower|embed_audio|embed_vision|"
                     r"vision_embedder|visual|mtp)\.|.*(rotary_emb|inv_freq|(in|out)put_(min|max)$)")
EXPERT = re.compile(r"(.*experts)\.(\d+)\.((?:gate|up|down)_proj\.(?:weight|bias))$")


# ---- Hugging Face and MLX folders ----

def gathered(tensors, arch, c):
    """The weights of a folder under our names: prefixes and towers cut off, experts stacked, gate and up apart."""
    out, experts = {}, {}
    for name, w in tensors.items():
        name = without_prefix(name)
        if DROPPED.match(name) or name == "lm_head.weight" and c.get("tie_word_embeddings"):
            continue
        name = name.replace(".switch_mlp.", ".experts.").replace(".experts.switch_glu.", ".experts.")
        one = EXPERT.match(name)
        if one:
            experts.setdefault((one[1], one[3]), {})[int(one[2])] = w
            continue
        out[name] = w
    for (prefix, rest), each in experts.items():
        if sorted(each) != list(range(len(each))):
            raise mx.Error(f"{each[max(each)].origin}: {len(each)} experts, and one numbered {max(each)}")
        out[f"{prefix}.{rest}"] = weights.stack([each[i] for i in range(len(each))])
    out = dict(pair for name, w in out.items() for pair in apart(name, w, arch, c))
    if "num_kv_shared_layers" in arch.keys:
        out = without_shared(out, c)
    if arch.gguf_fused:
        out = with_fused_experts(out)
    check_shapes(out, c)
    return unshifted(out, arch) if arch.recurrent else out


def without_shared(tensors, c):
    """The weights without keys and values of layers that use those of other layers."""
    own = c["num_hidden_layers"] - c.get("num_kv_shared_layers", 0)
    unused = ("self_attn.k_proj", "self_attn.v_proj", "self_attn.k_norm", "self_attn.v_norm")
    return {name: w for name, w in tensors.items()
            if not ((layer := LAYER.match(name)) and int(layer[2]) >= own and layer[3].startswith(unused))}


def with_fused_experts(tensors):
    """MLX's gate and up as one."""
    out = dict(tensors)
    for name in [name for name in out if name.endswith("experts.gate_proj.weight")]:
        both = concatenated(out.pop(name), out.pop(name.replace("gate_proj", "up_proj")))
        out[name.replace("gate_proj", "gate_up_proj")] = both
    return out


def check_shapes(tensors, c):
    """Checks the widths of weights that are rearranged by heads or read the residual stream against config.json."""
    hidden, dim = c["hidden_size"], c["head_dim"]
    widths = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "embed_tokens", "lm_head")
    for name, w in tensors.items():
        stem = name.removesuffix(".weight").rpartition(".")[2]
        if name.endswith(".weight") and stem in widths and (len(w.shape) < 2 or w.shape[-1] != hidden):
            raise mx.Error(f"{w.origin}: shape {list(w.shape)}, expected rows of hidden_size {hidden}")
        if stem in ("q_proj", "k_proj", "v_proj") and (dim % 2 or w.shape[-2] % dim):
            raise mx.Error(f"{w.origin}: shape {list(w.shape)}, expected rows in heads of {dim}")


def apart(name, w, arch, c):
    """(name, weight) pairs of a tensor that Hugging Face keeps fused."""
    stem, _, last = name.rpartition(".")
    if arch.experts == "interleaved" and stem.endswith("experts") and last.startswith(("gate_up_proj", "down_proj")):
        if not last.endswith("_bias") and w.form in weights.DENSE:
            w = w.moved(lambda a: mx.swapaxes(a, -1, -2), (*w.shape[:-2], w.shape[-1], w.shape[-2]))
        w.is_bias = last.endswith("_bias")
        ending = "bias" if w.is_bias else "weight"
        if last.startswith("down"):
            return [(f"{stem}.down_proj.{ending}", w)]
        n = w.shape[-1 if w.is_bias else -2]
        return [(f"{stem}.gate_proj.{ending}", w.rows(list(range(0, n, 2)))),
                (f"{stem}.up_proj.{ending}", w.rows(list(range(1, n, 2))))]
    if stem.endswith("experts") and last in ("gate_up_proj", "down_proj"):
        if last == "down_proj" or arch.gguf_fused:
            return [(name + ".weight", w)]
        n = w.shape[-2]
        return [(f"{stem}.gate_proj.weight", w.rows(list(range(n // 2)))),
                (f"{stem}.up_proj.weight", w.rows(list(range(n // 2, n))))]
    if last == "weight" and stem.endswith("linear_attn.in_proj_qkvz"):
        index = qkvz_rows(c)
        keys = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"]
        values = c["linear_num_value_heads"] * c["linear_value_head_dim"]
        stem = stem.removesuffix("qkvz")
        return [(f"{stem}qkv.weight", w.rows(index[:keys + values])),
                (f"{stem}z.weight", w.rows(index[keys + values:]))]
    return [(name, w)]


def qkvz_rows(c):
    """For the rows q | k | v | z, heads in order, the rows of Qwen3-Next's file: all four of a key head together."""
    keys, values = c["linear_num_key_heads"], c["linear_num_value_heads"]
    dk, dv, ratio = c["linear_key_head_dim"], c["linear_value_head_dim"], values // keys
    group = 2 * dk + 2 * ratio * dv
    parts = ((0, dk), (dk, dk), (2 * dk, ratio * dv), (2 * dk + ratio * dv, ratio * dv))
    return [g * group + start + i for start, n in parts for g in range(keys) for i in range(n)]


def unshifted(tensors, arch):
    """MLX's files of gated delta nets have 1 + w and the convolution's last two axes swapped."""
    mlx = any(name.endswith("conv1d.weight") and w.shape[-1] == 1 for name, w in tensors.items())
    for name, w in tensors.items() if mlx else ():
        if name.endswith("conv1d.weight"):
            tensors[name] = w.reshaped((w.shape[0], 1, w.shape[1]))
        elif is_shifted(arch, name):
            tensors[name] = w.computed(lambda x: x - 1, w.form)
    return tensors


def is_shifted(arch, name):
    """Whether it is a norm that holds w where GGUF has 1 + w."""
    return parts(name)[1] in arch.centred


def for_hugging_face(tensors, arch, c):
    """Our weights under the names of transformers."""
    out = {}
    for name, w in tensors.items():
        stem, _, ending = name.rpartition(".")
        if ".experts." not in name:
            out[name] = w
        elif arch.experts == "each":
            base = stem[:stem.index(".experts.") + 9]
            out |= {f"{base}{i}.{name[len(base):]}": w.part(i) for i in range(w.shape[0])}
        elif stem.endswith("gate_up_proj"):
            out[stem] = w
        elif stem.endswith("down_proj"):
            base = stem.removesuffix(".down_proj")
            if arch.experts == "fused":
                out[f"{base}.down_proj"] = w
            elif ending == "bias":
                out[f"{base}.down_proj_bias"] = w
            else:
                out[f"{base}.down_proj"] = swapped(w)
        elif stem.endswith("gate_proj"):
            base = stem.removesuffix(".gate_proj")
            up = tensors[f"{base}.up_proj.{ending}"]
            out[f"{base}.gate_up_proj" + ("_bias" if ending == "bias" else "")] = fused(w, up, arch.experts, ending)
    if arch.grouped:
        for name in [name for name in out if name.endswith("in_proj_qkv.weight")]:
            stem = name.removesuffix("qkv.weight")
            out[stem + "qkvz.weight"] = regrouped(out.pop(name), out.pop(stem + "z.weight"), c)
    return out


def swapped(w):
    return w.moved(lambda a: mx.swapaxes(a, -1, -2), (*w.shape[:-2], w.shape[-1], w.shape[-2]))


def values_of(w):
    return w.read()[0] if w.form in weights.DENSE else weights.decode(w.form, w.read())


def concatenated(gate, up):
    """The rows of both weights, in their form."""
    if gate.form != up.form or gate.shape != up.shape:
        raise mx.Error(f"{up.origin}: {list(up.shape)} in {up.form}, expected {list(gate.shape)} in {gate.form}")
    return gate.derived(lambda: [mx.concatenate(pair, axis=-2) for pair in zip(gate.read(), up.read())],
                        (*gate.shape[:-2], 2 * gate.shape[-2], gate.shape[-1]))


def fused(gate, up, experts, ending):
    """gate over up, or their rows in turns and, of matrices, input-major."""
    form = gate.form if gate.form in weights.DENSE else "F32"
    if experts == "fused":
        return concatenated(gate, up)
    if ending == "bias":
        shape = (*gate.shape[:-1], 2 * gate.shape[-1])
        return gate.derived(lambda: [mx.reshape(mx.stack([values_of(gate), values_of(up)], axis=-1), list(shape))],
                            shape, form)
    shape = (*gate.shape[:-2], 2 * gate.shape[-2], gate.shape[-1])
    return swapped(gate.derived(lambda: [mx.reshape(mx.stack([values_of(gate), values_of(up)], axis=-2), list(shape))],
                                shape, form))


def regrouped(qkv, z, c):
    index = qkvz_rows(c)
    back = [0] * len(index)
    for i, row in enumerate(index):
        back[row] = i
    form = qkv.form if qkv.form in weights.DENSE else "F32"
    both = qkv.derived(lambda: [mx.concatenate([values_of(qkv), values_of(z)], axis=0)],
                       (len(index), qkv.shape[1]), form)
    return both.rows(back)


def for_mlx(tensors, arch, c):
    """Our weights under the names of mlx-lm."""
    out = {}
    for name, w in tensors.items():
        if arch.gguf_fused and ".experts." in name:
            name, n = name.replace(".experts.", ".experts.switch_glu."), w.shape[-2] // 2
            if "gate_up_proj" in name:
                out[name.replace("gate_up_proj", "gate_proj")] = w.rows(list(range(n)))
                out[name.replace("gate_up_proj", "up_proj")] = w.rows(list(range(n, 2 * n)))
                continue
        elif arch.experts != "interleaved":
            name = name.replace(".experts.", ".switch_mlp.")
        if arch.recurrent:
            if name.endswith("conv1d.weight"):
                w = w.reshaped((w.shape[0], w.shape[-1], 1))
            elif is_shifted(arch, name):
                w = w.computed(lambda x: x + 1, w.form)
        out[name] = w
    if arch.grouped:
        for name in [name for name in out if name.endswith("in_proj_qkv.weight")]:
            stem = name.removesuffix("qkv.weight")
            out[stem + "qkvz.weight"] = regrouped(out.pop(name), out.pop(stem + "z.weight"), c)
    if "mrope_section" in arch.keys:                     # mlx-lm knows models that read images as parts of these
        return {"language_model." + name: w for name, w in out.items()}
    return out


# ---- GGUF ----

def for_gguf(tensors, arch, c):
    """Our weights under GGUF's names, in its layouts."""
    out = {}
    for name, w in tensors.items():
        theirs = gguf_name(arch, name)
        if theirs is None:
            raise NotImplementedError(f"{w.origin}: no tensor of {arch.model_type} that GGUF has a name for")
        out[theirs] = to_layout(w, name, arch, c)
    scaling = c.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) == "llama3":
        divisors = rope_divisors(c, scaling)
        out["rope_freqs.weight"] = weights.Weight((len(divisors),), "F32", lambda: [mx.array(divisors, mx.float32)])
    if arch.full_layers_differ:                          # the frequencies that do not rotate
        half = c["global_head_dim"] // 2
        turning = int(c.get("partial_rotary_factor", 0.25) * half)
        out["rope_freqs.weight"] = weights.Weight(
            (half,), "F32", lambda: [mx.array([1.0] * turning + [1e30] * (half - turning), mx.float32)])
    return out


def from_gguf(tensors, arch, c, path):
    """The weights of a GGUF file under our names, in our layouts; c learns about rope scaling."""
    out = {}
    for theirs, w in tensors.items():
        if theirs == "rope_freqs.weight" and not arch.full_layers_differ:
            c["rope_scaling"] = rope_scaling_of(c, w.read()[0].tolist(), path)
            continue
        if theirs == "rope_freqs.weight":
            turning = sum(one == 1 for one in w.read()[0].tolist())
            c["rope_parameters"]["full_attention"]["partial_rotary_factor"] = turning / w.shape[0]
            continue
        if theirs.endswith("ffn_gate_up_exps.weight") and not arch.gguf_fused:
            base, n = LAYER.match(theirs), w.shape[-2]
            stem = f"model.layers.{base[2]}.mlp.experts."
            out[stem + "gate_proj.weight"] = w.rows(list(range(n // 2)))
            out[stem + "up_proj.weight"] = w.rows(list(range(n // 2, n)))
            continue
        name = hf_name(arch, theirs)
        if name is None:
            raise NotImplementedError(f"{w.origin}: no tensor of {arch.gguf} that Hugging Face has a name for")
        out[name] = from_layout(w, name, arch, c)
    return out


def to_layout(w, name, arch, c):
    rest = parts(name)[1]
    base = rest.rpartition(".")[0]
    if base in arch.permuted:
        return w.rows(pairs_together(w.shape[0], c["head_dim"]))
    if is_shifted(arch, name):
        return w.computed(lambda x: x + 1)
    if rest.startswith("linear_attn."):
        return gated_delta_layout(w, rest, base, arch, c, False)
    if base == "mlp.shared_expert_gate":
        return w.reshaped((w.shape[-1],)) if w.form in weights.DENSE else w
    return w


def from_layout(w, name, arch, c):
    rest = parts(name)[1]
    base = rest.rpartition(".")[0]
    if base in arch.permuted:
        return w.rows(halves_apart(w.shape[0], c["head_dim"]))
    if is_shifted(arch, name):
        return w.computed(lambda x: x - 1)
    if rest.startswith("linear_attn."):
        return gated_delta_layout(w, rest, base, arch, c, True)
    if base == "mlp.shared_expert_gate" and len(w.shape) == 1:
        return w.reshaped((1, w.shape[0]))
    return w


def gated_delta_layout(w, rest, base, arch, c, back):
    """qwen35's value heads go through the key heads in turns; decay is stored as -exp(A_log)."""
    keys, values, dv = c["linear_num_key_heads"], c["linear_num_value_heads"], c["linear_value_head_dim"]
    flat = 2 * keys * c["linear_key_head_dim"]
    if base == "linear_attn.conv1d":
        w = w.reshaped((w.shape[0], w.shape[-1]))
    heads = list(range(values))
    if not arch.grouped:
        heads = [g * (values // keys) + j for j in range(values // keys) for g in range(keys)]
        heads = [heads.index(h) for h in range(values)] if back else heads
    wide = [h * dv + i for h in heads for i in range(dv)]
    if base in ("linear_attn.in_proj_qkv", "linear_attn.conv1d"):
        w = w.rows([*range(flat), *(flat + i for i in wide)])
    elif base == "linear_attn.in_proj_z":
        w = w.rows(wide)
    elif rest in ("linear_attn.in_proj_b.weight", "linear_attn.in_proj_a.weight", "linear_attn.A_log",
                  "linear_attn.dt_bias"):
        w = w.rows(heads)
    elif base == "linear_attn.out_proj" and heads != list(range(values)):
        columns = mx.array(wide, mx.int32)
        w = w.moved(lambda a: mx.take(a, columns, axis=-1), w.shape)
    if rest == "linear_attn.A_log":
        return w.computed(lambda x: mx.log(-x)) if back else w.computed(lambda x: -mx.exp(x))
    if base == "linear_attn.conv1d" and back:
        return w.reshaped((w.shape[0], 1, w.shape[-1]))
    return w
