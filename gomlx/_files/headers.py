"""What the files of a model say before any weight is read: config, metadata, and where each tensor is stored.

Files are hostile: every length is checked against the file, and what is wrong raises gomlx.Error with the file's name.
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from gomlx import _gomlx
from gomlx._files import gguf, hub, reading, safetensors
from gomlx._files.reading import read_json

LISTED = 4096                                   # arrays of metadata with more items are read as their count


@dataclass(frozen=True)
class Tensor:
    dtype: str                                  # as the file names it: "BF16", "U32", "Q4_K"
    shape: tuple[int, ...]                      # the contiguous dimension last
    bytes: int


@dataclass(frozen=True)
class Header:
    path: str
    format: str                                 # "safetensors", "mlx" (safetensors quantised by MLX) or "gguf"
    model_type: str | None
    config: dict                                # config.json with its text_config on top, or GGUF's metadata
    files: list[str]                            # those with weights
    bytes: int                                  # of these files
    tensors: dict[str, Tensor] = field(repr=False)


def read(path: str | os.PathLike[str]) -> Header:
    """The header of a folder with config.json and safetensors, or of a GGUF file (the first of split ones)."""
    path = os.fspath(path)
    return read_folder(path) if os.path.isdir(path) else read_gguf(path)


def bad(file, what):
    return _gomlx.Error(f"{file}: {what}")


def check_file(file):
    """Raises gomlx.Error unless it is a regular file: reading a pipe by the name of a model would wait forever."""
    if not os.path.isfile(file):
        raise bad(file, "is not a file" if os.path.exists(file) else "no such file")


# ---- folders ----

def weight_files(folder):
    """The safetensors files that make the model in a folder, at least one: those of the index if there is one; else
    those that are called model..., else all but adapters and Mistral's own consolidated files, which repeat the
    weights."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        named = read_json(index).get("weight_map")
        if not isinstance(named, dict) or not all(isinstance(one, str) for one in named.values()):
            raise bad(index, "expected an object weight_map of tensor to file name")
        files = sorted(set(named.values()))
        missing = [one for one in files
                   if os.path.basename(one) != one or not os.path.exists(os.path.join(folder, one))]
        if missing:
            raise bad(index, f"{len(missing)} of {len(files)} files are missing: " + ", ".join(missing[:3]))
        return files
    files = sorted(one for one in os.listdir(folder) if one.endswith(".safetensors") and not one.startswith("."))
    own = [one for one in files if one.startswith("model")] or \
        [one for one in files if not one.startswith(("consolidated", "adapter"))]
    if not own:
        raise FileNotFoundError(f"no .safetensors file of a model in {folder!r}"
                                + (f": {', '.join(files[:3])}" if files else ""))
    return own


def read_folder(folder):
    config_file = os.path.join(folder, "config.json")
    check_file(config_file)
    config = read_json(config_file)
    files = weight_files(folder)
    tensors, total, made_by_mlx = {}, 0, False
    for name in files:
        file = os.path.join(folder, name)
        metadata = safetensors_header(file, tensors)
        total += os.path.getsize(file)
        made_by_mlx = made_by_mlx or metadata.get("format") == "mlx"
    text = config.get("text_config")
    merged = config | text if isinstance(text, dict) else config
    quantised = config.get("quantization") or merged.get("quantization")
    mlx = isinstance(quantised, dict) or (made_by_mlx and any(name.endswith(".scales") for name in tensors))
    kind = config.get("model_type") or merged.get("model_type")
    return Header(folder, "mlx" if mlx else "safetensors", kind if isinstance(kind, str) else None, merged, files,
                  total, tensors)


def safetensors_header(file, tensors):
    """Puts the file's tensors into `tensors`; returns its metadata."""
    check_file(file)
    with open(file, "rb") as source:
        found, metadata = safetensors.read_header(source, file, any_dtype=True)
    for name, (word, shape, begin, end) in found.items():
        tensors[name] = Tensor(word, tuple(shape), end - begin)
    return metadata if isinstance(metadata, dict) else {}


# ---- GGUF ----

def split_files(path):
    """The parts of a split GGUF model, or the file alone."""
    found = hub.SPLIT.search(path.removesuffix(".gguf"))
    if found is None:
        return [path]
    stem, count = path[:found.start()], int(found["count"])
    parts = [f"{stem}-{i + 1:05}-of-{count:05}.gguf" for i in range(min(count, 100000))]
    missing = [os.path.basename(one) for one in parts if not os.path.exists(one)]
    if missing:
        raise bad(path, f"{len(missing)} of {count} files are missing: " + ", ".join(missing[:3]))
    return parts


def read_gguf(path):
    files, metadata, tensors, total = split_files(path), {}, {}, 0
    for file in files:
        own = gguf_header(file, tensors)
        total += os.path.getsize(file)
        metadata = metadata or own
    kind = metadata.get("general.architecture")
    return Header(path, "gguf", kind if isinstance(kind, str) else None, metadata,
                  [os.path.basename(one) for one in files], total, tensors)


def gguf_header(file, tensors):
    """Puts the file's tensors into `tensors`; returns its metadata, of long arrays the count."""
    check_file(file)
    metadata, found = gguf.read_header(reading.mapped(file), file, LISTED)
    for one in found:
        word = gguf.TYPES[one.kind][0] if one.kind in gguf.TYPES else f"type {one.kind}"
        tensors[one.name] = Tensor(word, tuple(one.shape), one.end - one.begin)
    return {key: value for key, (_, _, value) in metadata.items()}


def quantisation(header: Header) -> dict:
    """{"bits", "group", "type"} of most of the weights; bits None where they are plain floats."""
    if header.format == "gguf":
        return gguf_quantisation(header)
    stated = stated_quantisation(header.config)
    if stated is not None:
        return stated
    sizes = {}
    for one in header.tensors.values():
        sizes[one.dtype] = sizes.get(one.dtype, 0) + one.bytes
    return {"bits": None, "group": None, "type": max(sizes, key=sizes.get, default=None)}


def stated_quantisation(config):
    """What a config.json states; None if it states nothing."""
    found = config.get("quantization")
    if isinstance(found, dict) and "bits" in found:
        return checked(found["bits"], found.get("group_size"), found.get("mode", "affine"))
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return None
    method = found.get("quant_method")
    method = method if isinstance(method, str) else None
    blocks = found.get("weight_block_size")
    bits = {"mxfp4": 4, "fp8": 8}.get(method, found.get("bits"))
    last = blocks[-1] if isinstance(blocks, list) and blocks else None
    group = 32 if method == "mxfp4" else found.get("group_size", last)
    return checked(bits, group, method or found.get("mode", "affine"))


def checked(bits, group, kind):
    """The values as they are in a file, which may be of any type; None for one of the wrong type."""
    bits, group = (one if type(one) is int else None for one in (bits, group))
    return {"bits": bits, "group": group, "type": kind if isinstance(kind, str) else None}


def quantisation_of_loaded(config, weight_types):
    """{"quant_bits", "quant_group", "quant_type"} of a loaded model: config of a folder, None for a GGUF file;
    weight_types: bytes of each type, as in model.info."""
    kind = max(weight_types, key=weight_types.get, default=None)
    text = (config or {}).get("text_config")
    found = stated_quantisation((config or {}) | (text if isinstance(text, dict) else {})) or of_block_type(kind)
    return {f"quant_{name}": value for name, value in found.items()}


def gguf_quantisation(header):
    sizes = {}
    for one in header.tensors.values():
        if len(one.shape) > 1:
            sizes[one.dtype] = sizes.get(one.dtype, 0) + one.bytes
    return of_block_type(max(sizes, key=sizes.get, default=None))


def of_block_type(kind):
    """{"bits", "group", "type"} of a GGUF type by its name."""
    found = re.match(r"(?:I|T)?Q(\d)|(?:MX|NV)FP(\d)", kind or "")
    if found is None:
        return {"bits": None, "group": None, "type": kind}
    blocks = {name: values for name, values, _ in gguf.TYPES.values()} | {"MXFP8": 32, "NVFP4": 16}
    if kind not in blocks:
        raise _gomlx.Error(f"weights in {kind}: unknown format; expected one of {', '.join(blocks)}")
    return {"bits": int(found[1] or found[2]), "group": blocks[kind], "type": kind}


def context_length(header: Header) -> int | None:
    """The context length that the files state, in tokens, or None."""
    key = f"{header.model_type}.context_length" if header.format == "gguf" else "max_position_embeddings"
    value = header.config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
