"""llama.cpp's form: a GGUF file with general.type "adapter".

<tensor>.lora_a is [rank, in], <tensor>.lora_b [out, rank], where <tensor> is GGUF's name of the weight; the scale is
adapter.lora.alpha / rank, or 1 where alpha is 0. Rows of b are in the order of the weight's rows: those of queries and
keys of Llama are permuted.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

from gomlx import _gomlx as mx
from gomlx._files import architectures, gguf, names, reading, writing
from gomlx._files.adapters import shared
from gomlx._training.adapter import Adapter, kinds, listed

PART = re.compile(r"(?P<weight>.+\.weight)\.lora_(?P<part>[ab])$")
NAMES = {"a": "lora_a", "b": "lora_b"}
FLOATS = {kind: dtype for kind, dtype in gguf.PLAIN.items() if dtype in (mx.float32, mx.float16, mx.bfloat16)}


def is_adapter(path: str) -> bool:
    """Whether it is a GGUF file that says so."""
    if not os.path.isfile(path):                # a pipe, which would have to be waited for
        return False
    try:
        header, _ = gguf.read_header(reading.mapped(path), path, 64)
    except (mx.Error, OSError):
        return False
    return value_of(header, "general.type") == "adapter"


def value_of(header, key):
    found = header.get(key)
    return found[2] if found else None


def read(path: str, base: shared.Base | None, ordered: bool = True) -> Adapter:
    """ordered: with rows in our order, for which a base may be needed."""
    data = reading.mapped(path)
    header, tensors = gguf.read_header(data, path)
    arch, alpha = checked(header, path, base)
    pairs, origin = shared.Pairs(path), {}
    for t in tensors:
        found = PART.match(t.name)
        if not found:
            raise mx.Error(f"{path}: {t.name} is no tensor of an adapter: expected names that end in .weight.lora_a or "
                           ".weight.lora_b")
        ours = names.hf_name(arch, found["weight"])
        if ours is None:
            raise mx.Error(f"{path}: {t.name}: {arch.gguf} has no such layer; it has "
                           f"{listed(kinds([*arch.layer.values()]))}")
        layer = layer_of(ours, t.name, path)
        origin[layer] = found["weight"]
        pairs.add(layer, found["part"], stored(data, t, path))
    if not pairs.layers:
        raise mx.Error(f"{path}: no tensors")
    terms = {}
    for layer, a, b, _ in pairs.items(False, NAMES):
        rank = a.shape[0]
        if b.shape[1] != rank or rank < 1:
            raise mx.Error(f"{path}: {origin[layer]}: lora_a is {list(a.shape)} and lora_b {list(b.shape)}, expected "
                           "[rank, in] and [out, rank] (in GGUF's own order [in, rank] and [rank, out])")
        rows = b.read()
        order = row_order(arch, layer, rows.shape[0], base, names.halves_apart, path) if ordered else None
        terms[layer] = shared.term(path, layer, a.read(), rows if order is None else mx.take(rows, order, axis=0),
                                   alpha / rank if alpha else 1.0)
    ranks = [one.rank for one in terms.values()]
    rank = shared.most_common(ranks)
    return Adapter(terms, None, {
        "form": "gguf", "base_model": value_of(header, "general.base_model.0.name"), "rank": rank,
        "alpha": shared.whole(alpha or rank), "dropout": 0.0, "rslora": False, "dora": False,
        "targets": sorted({names.parts(layer)[1].rpartition(".")[2] for layer in terms})})


def checked(header, path, base):
    """(architecture, alpha) of a header that says what it has to."""
    for key, expected in (("general.type", "adapter"), ("adapter.type", "lora")):
        if value_of(header, key) != expected:
            raise mx.Error(f"{path}: {key} is {value_of(header, key)!r:.80}, expected {expected!r}")
    if "adapter.alora.invocation_tokens" in header:
        raise NotImplementedError(f"{path}: adapter.alora.invocation_tokens: adapters that begin at a token are not "
                                  "read")
    name, alpha = value_of(header, "general.architecture"), value_of(header, "adapter.lora.alpha")
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) < 1e30:
        raise mx.Error(f"{path}: adapter.lora.alpha is {alpha!r:.80}, expected a finite number")
    arch = base.arch if base is not None and base.arch is not None else architectures.named(name)
    if arch is None:
        raise NotImplementedError(f"{path}: general.architecture is {name!r:.80}, which is not known")
    if arch.gguf != name:
        raise ValueError(f"{path}: an adapter for {name!r:.80}, and the model is {arch.gguf!r}")
    return arch, alpha


def layer_of(ours, name, path):
    layer = shared.layer_name(ours.removesuffix(".weight"), path)
    if ".linear_attn." in layer:
        raise NotImplementedError(f"{path}: {name}: recurrent layers, whose rows GGUF has in another order, are not "
                                  "read and written in this form")
    return layer


def row_order(arch, layer, rows, base, order, path):
    """In which order rows of b are taken, an array of ints; None: as they are."""
    if names.parts(layer)[1] not in arch.permuted:
        return None
    if base is None or not base.head_dim:
        raise ValueError(f"{path}: {layer} has rows by heads; give the model that the adapter belongs to (model=), "
                         "whose head_dim says which")
    if rows % base.head_dim or base.head_dim % 2:
        raise ValueError(f"{path}: {layer}: lora_b has {rows} rows, expected heads of {base.head_dim}")
    return mx.array(order(rows, base.head_dim), mx.int32)


def stored(data, t, path):
    def read():
        part = memoryview(data)[t.begin:t.end]
        if t.kind in FLOATS:
            return reading.array_of(part, FLOATS[t.kind], t.shape)
        if t.kind not in (*gguf.BLOCKS, *gguf.WIDENED):
            raise NotImplementedError(f"{path}: {t.name} is of type {t.kind}; readable are F32, F16, BF16 and blocks")
        name, values, size = gguf.TYPES[t.kind]
        blocks = reading.array_of(part, mx.uint8, [*t.shape[:-1], t.shape[-1] // values * size])
        return mx.fast.dequantize_blocks(blocks, name).astype(mx.float32)

    return shared.Stored(tuple(t.shape), str(t.kind), read)


# ---- writing ----

def contents(adapter: Adapter, base: shared.Base | None) -> Iterator[bytes]:
    shared.check_no_more_than_terms(adapter, "GGUF")
    if base is None or base.arch is None:
        raise ValueError("save_adapter: GGUF's names and orders of rows are those of an architecture: give the model "
                         "that the adapter belongs to (model=)")
    arch, tensors = base.arch, {}
    alpha, found = shared.of_one_scale(adapter, lambda one: one.scale * one.rank)
    for layer, (a, b) in found.items():
        theirs = names.gguf_name(arch, layer_of(layer + ".weight", layer, "save_adapter") + ".weight")
        if theirs is None:
            raise NotImplementedError(f"save_adapter: {layer}: GGUF's {arch.gguf} has no name for it")
        order = row_order(arch, layer, b.shape[0], base, names.pairs_together, "save_adapter")
        b = b if order is None else mx.take(b, order, axis=0)
        tensors |= {theirs + ".lora_a": in_gguf(a), theirs + ".lora_b": in_gguf(b)}
    return file_of(header_of(adapter, arch, alpha), tensors)


def in_gguf(array):
    """llama.cpp multiplies float32 and float16 on all its devices."""
    return array.astype(mx.float32) if array.dtype == mx.bfloat16 else array


def header_of(adapter, arch, alpha) -> dict[str, Any]:
    text = {"general.type": "adapter", "general.architecture": arch.gguf, "adapter.type": "lora"}
    if isinstance(adapter.meta.get("base_model"), str):
        text |= {"general.base_model.0.name": adapter.meta["base_model"]}
    return {key: (gguf.STRING, None, value) for key, value in text.items()} | {
        "adapter.lora.alpha": (6, None, float(f"{alpha:.9g}"))} | (
        {"general.base_model.count": (4, None, 1)} if len(text) > 3 else {})


def file_of(header, tensors):
    kinds_of = {repr(dtype): kind for kind, dtype in FLOATS.items()}
    for name in tensors:
        if len(name.encode()) > 63:
            raise mx.Error(f"save_adapter: {name!r} is longer than the 63 bytes of GGUF's names")
    yield gguf.head(header, [(name, list(array.shape), kinds_of[repr(array.dtype)], array.nbytes)
                             for name, array in tensors.items()])
    for array in tensors.values():
        yield writing.bytes_of(array)
        yield gguf.padding(array.nbytes)
