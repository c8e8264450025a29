"""Names of weights: those of Hugging Face, which are ours, and those of GGUF; and the order of rows that differs
between them."""
from __future__ import annotations

import re

PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."), ("language_model.", "model."))
LAYER = re.compile(r"(model\.layers\.|blk\.)(\d+)\.(.+)$")


def without_prefix(name):
    """The name without what larger models, of which a language model is a part, put before it."""
    for old, new in PREFIXES:
        if name.startswith(old):
            return new + name[len(old):]
    return name


def parts(name):
    """(the layer's number as text, or None, and the rest) of a name in either container."""
    layer = LAYER.match(name)
    return (layer[2], layer[3]) if layer else (None, name)


def gguf_name(arch, name):
    """GGUF's name of a weight, or None."""
    layer, rest = parts(name)
    linear, whole = (arch.top, arch.top_whole) if layer is None else (arch.layer, arch.whole)
    prefix = "" if layer is None else f"blk.{layer}."
    if rest in whole:
        return prefix + whole[rest]
    base, _, ending = rest.rpartition(".")
    return f"{prefix}{linear[base]}.{ending}" if base in linear and ending in ("weight", "bias") else None


def hf_name(arch, name):
    """The name in Hugging Face folders of a weight of a GGUF file, or None."""
    layer, rest = parts(name)
    linear, whole = (arch.top, arch.top_whole) if layer is None else (arch.layer, arch.whole)
    prefix = "" if layer is None else f"model.layers.{layer}."
    for ours, theirs in whole.items():
        if theirs == rest:
            return prefix + ours
    base, _, ending = rest.rpartition(".")
    found = [ours for ours, theirs in linear.items() if theirs == base]
    return f"{prefix}{found[0]}.{ending}" if found and ending in ("weight", "bias") else None


def pairs_together(rows, dim):
    """For each row of GGUF the row of Hugging Face: of a head, j and j + dim / 2 side by side."""
    return [h + j + half for h in range(0, rows, dim) for j in range(dim // 2) for half in (0, dim // 2)]


def halves_apart(rows, dim):
    return [h + 2 * j + half for h in range(0, rows, dim) for half in (0, 1) for j in range(dim // 2)]
