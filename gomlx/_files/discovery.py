"""discover() and gguf_info(): models by their headers alone."""
from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._files import headers, hub
from gomlx._files.locating import gguf_in


@dataclass(frozen=True)
class FoundModel:
    """A model, or files that cannot be one: then error says why, and what is not known is None."""
    path: str                                   # what gomlx.load takes
    model_type: str | None = None               # as config.json or GGUF's general.architecture calls it
    format: str | None = None                   # "safetensors", "mlx" or "gguf"
    quant_bits: int | None = None               # of most of the weights; None: plain floats
    quant_group: int | None = None
    quant_type: str | None = None               # "affine", "mxfp4", "Q4_K", ...; of plain floats their type
    n_files: int = 0                            # with weights
    bytes: int = 0                              # of these files
    context_length: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class GGUFInfo:
    """What the header of a GGUF file says. What it does not say is None."""
    path: str
    architecture: str | None
    name: str | None
    n_layers: int | None
    hidden_size: int | None
    vocab_size: int | None
    n_heads: int | None                         # of layers that differ, the most
    n_kv_heads: int | None
    head_dim: int | None
    context_length: int | None
    quant_bits: int | None                      # of most of the weights; None: plain floats
    quant_group: int | None
    quant_type: str | None                      # "Q4_K"; of plain floats their type
    types: dict[str, int]                       # how many tensors of each type
    n_tensors: int
    parameters: int
    n_files: int                                # of a split model
    bytes: int                                  # of these files
    metadata: dict[str, Any] = field(repr=False)          # of arrays with more than 4096 items the number of items


def gguf_info(path: str | os.PathLike[str]) -> GGUFInfo:
    """The header of a .gguf file (of split ones the first), or of the one in a folder; no weights are read. gomlx.Error
    when it is not a GGUF file, or is damaged."""
    path = arguments.path("path", path)
    path = gguf_in(path) if os.path.isdir(path) else path
    if os.path.isdir(path):
        raise _gomlx.Error(f"{path}: a folder with config.json, expected a .gguf file")
    header = headers.read_gguf(path)
    kind, known = headers.quantisation(header), header.config

    def number(key):
        value = known.get(f"{header.model_type}.{key}")
        values = [one for one in (value if isinstance(value, list) else [value]) if type(one) is int and one >= 0]
        return max(values, default=None)

    heads, width, vocab = number("attention.head_count"), number("embedding_length"), number("vocab_size")
    embedding = header.tensors.get("token_embd.weight")
    if vocab is None and embedding is not None and embedding.shape:
        vocab = embedding.shape[0]
    types = {}
    for one in header.tensors.values():
        types[one.dtype] = types.get(one.dtype, 0) + 1
    dim, name = number("attention.key_length"), known.get("general.name")
    return GGUFInfo(path, header.model_type, name if isinstance(name, str) else None, number("block_count"), width,
                    vocab, heads, number("attention.head_count_kv") or heads,
                    dim or (width // heads if width and heads else None),
                    headers.context_length(header), kind["bits"], kind["group"], kind["type"], types,
                    len(header.tensors), sum(math.prod(one.shape) for one in header.tensors.values()),
                    len(header.files), header.bytes, known)


def discover(path: str | os.PathLike[str]) -> list[FoundModel]:
    """All models in a folder and the folders below it, sorted by path: folders with config.json and safetensors, and
    GGUF files (split ones count once, image projectors are left out). No weights are read. Links are followed, each
    folder is visited once. FileNotFoundError when there is no such path."""
    path = arguments.path("path", path)
    if os.path.isfile(path):
        return [described(path)]
    if not os.path.isdir(path):
        raise FileNotFoundError(f"no such file or folder: {path!r}")
    return sorted(in_folders(path), key=lambda one: one.path)


def in_folders(top) -> Iterator[FoundModel]:
    visited, unreadable = set(), []
    for folder, folders, files in os.walk(top, followlinks=True, onerror=unreadable.append):
        try:
            state = os.stat(folder)
        except OSError as error:                # the folder has been removed meanwhile
            unreadable.append(error)
            continue
        if (state.st_dev, state.st_ino) in visited:
            folders.clear()                     # a link that leads back, or a second way to the same folder
            continue
        visited.add((state.st_dev, state.st_ino))
        folders.sort()
        folders[:] = [one for one in folders if one not in (".git", "__pycache__")]
        if is_model_folder(folder, files):
            yield described(folder)
        for parts in hub.gguf_models(files):
            yield described(os.path.join(folder, parts[0]))
    for error in unreadable:
        yield FoundModel(error.filename, error=f"cannot be read: {error.strerror}")


def is_model_folder(folder, files):
    """With config.json and weights, or with one of them and signs that the other is missing."""
    weights = any(one.endswith(".safetensors") for one in files)
    if "config.json" in files:
        return weights or "model.safetensors.index.json" in files
    return "model.safetensors" in files or "model.safetensors.index.json" in files


def described(path):
    try:
        header = headers.read(path)
        kind = headers.quantisation(header)
        error = None if header.model_type else "the model type is not named"
        return FoundModel(path, header.model_type, header.format, kind["bits"], kind["group"], kind["type"],
                          len(header.files), header.bytes, headers.context_length(header), error)
    except (_gomlx.Error, OSError, ValueError, TypeError) as error:
        return FoundModel(path, format="gguf" if path.endswith(".gguf") else None, error=str(error))
