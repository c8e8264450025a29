"""The forms of mlx-lm and go-mlx, whose tensors have the same names: <module>.lora_a, <module>.lora_b.

mlx-lm      adapters.safetensors and adapter_config.json with fine_tune_type, num_layers and lora_parameters; a is
            [in, rank], b [rank, out], the scale is given as it is. DoRA's magnitudes are <module>.m; fine_tune_type
            "full" holds weights under their own names.
go-mlx      adapter.safetensors and adapter_config.json with rank, alpha, num_layers and lora_layers; a is [rank, in],
            b [out, rank], the scale is alpha / rank. Without a config alpha is twice the rank.
"""
from __future__ import annotations

import re
from typing import Any

from gomlx import _gomlx as mx
from gomlx._files.adapters import shared
from gomlx._files.names import parts
from gomlx._training.adapter import Adapter

MLX_LM, GO_MLX, CONFIG = "adapters.safetensors", "adapter.safetensors", "adapter_config.json"
PART = re.compile(r"(?P<module>.+)\.(?P<part>lora_a|lora_b|m)$")
NAMES = {"a": "lora_a", "b": "lora_b", "m": "m"}
ROW_MAJOR, COLUMN_MAJOR = "[rank, in] and [out, rank]", "[in, rank] and [rank, out]"


def read_mlx_lm(config: shared.Config, tensors: dict[str, shared.Stored], path: str, base: shared.Base | None
                ) -> Adapter:
    kind = config.values.get("fine_tune_type", "lora")
    if kind not in ("lora", "dora", "full"):
        raise NotImplementedError(f"{config.path}: fine_tune_type is {kind!r:.80}; readable are 'lora', 'dora' and "
                                  "'full'")
    meta = {"form": "mlx-lm", "base_model": config.text("model"), "dora": kind == "dora"}
    if kind == "full":
        return Adapter({}, {shared.weight_name(name): whole(name, tensor, path) for name, tensor in tensors.items()},
                       meta)
    inner = config.inner("lora_parameters")
    rank, scale = inner.rank("rank"), inner.number("scale")
    terms = {layer: shared.term(path, layer, a, b, scale, m)
             for layer, a, b, m in oriented(pairs_of(tensors, path), kind == "dora", rank, COLUMN_MAJOR, path, base)}
    return Adapter(terms, None, meta | {
        "rank": rank, "alpha": shared.whole(scale * rank), "dropout": inner.number("dropout", 0), "rslora": False,
        "targets": sorted({parts(layer)[1].rpartition(".")[2] for layer in terms})})


def read_go_mlx(config: shared.Config, tensors: dict[str, shared.Stored], path: str, base: shared.Base | None
                ) -> Adapter:
    rank = config.rank("rank") if "rank" in config.values else None
    alpha = config.number("alpha") if "alpha" in config.values else None
    if rank is None and alpha is not None:
        raise config.bad("rank", "the rank that alpha belongs to")
    scale = 2.0 if alpha is None else alpha / rank
    terms = {layer: shared.term(path, layer, a, b, scale)
             for layer, a, b, _ in oriented(pairs_of(tensors, path), False, rank, ROW_MAJOR, path, base)}
    ranks = [one.rank for one in terms.values()]
    return Adapter(terms, None, {
        "form": "go-mlx", "rank": rank or shared.most_common(ranks), "rslora": False, "dora": False,
        "alpha": shared.whole(scale * (rank or shared.most_common(ranks))), "dropout": 0.0,
        "targets": sorted({parts(layer)[1].rpartition(".")[2] for layer in terms})})


def whole(name, tensor, path):
    if name.endswith((".scales", ".biases")) or tensor.word not in shared.DENSE:
        raise NotImplementedError(f"{path}: {name} is of a quantised matrix; whole weights are read in "
                                  f"{', '.join(shared.DENSE)}")
    return tensor.read()


def pairs_of(tensors, path):
    pairs = shared.Pairs(path)
    for name, tensor in tensors.items():
        found = PART.match(name)
        if not found:
            raise mx.Error(f"{path}: {name} is no tensor of an adapter: expected names that end in .lora_a, .lora_b "
                           "or .m")
        pairs.add(shared.layer_name(found["module"], path), found["part"].removeprefix("lora_"), tensor)
    if not pairs.layers:
        raise mx.Error(f"{path}: no tensors")
    return pairs


def oriented(pairs, dora, rank, own, path, base):
    """(layer, a [rank, in], b [out, rank], magnitude) of each pair. rank: what the config says, or None. own: the
    form's way, which decides where dimensions fit both ways."""
    for layer, a, b, m in pairs.items(dora, NAMES):
        fitting = ways(a.shape, b.shape, rank, base and base.shape(layer))
        if not fitting:
            raise mx.Error(f"{path}: {layer}: lora_a is {list(a.shape)} and lora_b {list(b.shape)}, expected {own}"
                           + (f" of rank {rank}" if rank else ""))
        a, b = a.read(), b.read()
        if (own if own in fitting else fitting[0]) == COLUMN_MAJOR:
            a, b = (mx.contiguous(mx.swapaxes(one, 0, 1)) for one in (a, b))
        yield layer, a, b, m.read() if m else None


def ways(a, b, rank, shape):
    """In which ways a and b may be stored, for a weight [out, in] of this shape, where it is known. Where neither gives
    the shape, those that give any: the error that names both shapes is Adapter.check's."""
    found = {ROW_MAJOR: (a[0], b[1], (b[0], a[1])), COLUMN_MAJOR: (a[1], b[0], (b[1], a[0]))}
    found = {way: made for way, (r, other, made) in found.items() if r == other and rank in (None, r)}
    return [way for way, made in found.items() if shape is not None and made == tuple(shape)] or list(found)


# ---- writing ----

def mlx_lm_contents(adapter: Adapter, base: shared.Base | None) -> dict[str, Any]:
    if adapter.full and adapter.terms:
        raise NotImplementedError("mlx-lm's form holds low-rank terms or whole weights; this adapter has both")
    config = {"model": adapter.meta.get("base_model"), "num_layers": -1}            # all layers are looked at
    prefix = "language_model." if base and base.arch and base.arch.model_type.startswith("qwen3_5") else ""
    if adapter.full:
        tensors = {prefix + name: array for name, array in adapter.full.items()}
        return {MLX_LM: shared.safetensors_of(tensors), CONFIG: shared.json_of(config | {"fine_tune_type": "full"})}
    dora = shared.is_dora(adapter, "mlx-lm's form")
    scale, found = shared.of_one_scale(adapter, lambda one: one.scale)
    rank, tensors = adapter.ranks[-1], {}
    for layer, pair in found.items():
        a, b = shared.padded(*pair, rank)
        tensors |= {f"{prefix}{layer}.lora_a": mx.swapaxes(a, 0, 1), f"{prefix}{layer}.lora_b": mx.swapaxes(b, 0, 1)}
        if dora:
            tensors[f"{prefix}{layer}.m"] = adapter.terms[layer].magnitude
    keys = sorted({parts(layer)[1] for layer in adapter.terms})
    return {MLX_LM: shared.safetensors_of(tensors), CONFIG: shared.json_of(config | {
        "fine_tune_type": "dora" if dora else "lora",
        "lora_parameters": {"rank": rank, "scale": shared.whole(scale), "keys": keys,
                            "dropout": adapter.meta.get("dropout") or 0.0}})}


def go_mlx_contents(adapter: Adapter, base: shared.Base | None) -> dict[str, Any]:
    shared.check_no_more_than_terms(adapter, "go-mlx's form")
    scale, found = shared.of_one_scale(adapter, lambda one: one.scale)
    rank, tensors = adapter.ranks[-1], {}
    for layer, pair in found.items():
        a, b = shared.padded(*pair, rank)
        tensors |= {f"{layer}.lora_a": a, f"{layer}.lora_b": b}
    layers = {found for layer in adapter.terms if (found := parts(layer)[0])}
    return {GO_MLX: shared.safetensors_of(tensors), CONFIG: shared.json_of({
        "rank": rank, "alpha": shared.whole(float(f"{scale * rank:.12g}")), "num_layers": len(layers),
        "lora_layers": sorted({parts(layer)[1] for layer in adapter.terms})})}
