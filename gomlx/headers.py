"""What the files of a model say before any weight is read: config, metadata, and where each tensor lies.

Files are hostile: every length is checked against the file, and what is wrong raises gomlx.Error with the file's name.
"""
from __future__ import annotations

import json
import mmap
import os
import re
import struct
from dataclasses import dataclass, field

from gomlx import _gomlx, hub

SAFETENSORS_HEADER = 100 << 20                  # bytes; larger ones are refused, as safetensors itself does
LISTED = 4096                                   # items of an array of metadata that are kept; of longer ones the count
GGML_TYPES = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K",
              11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
              19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
              27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}
# Parts of multimodal checkpoints that no language model loads.
TOWERS = re.compile(r"(?:model\.)?(?:vision_tower|multi_modal_projector|audio_tower|embed_audio|embed_vision|"
                    r"vision_embedder|visual|mtp)\.")


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

    @property
    def weight_bytes(self) -> int:
        """Of the tensors of the language model."""
        return sum(one.bytes for name, one in self.tensors.items() if not TOWERS.match(name))


def read(path: str | os.PathLike) -> Header:
    """The header of a folder with config.json and safetensors, or of a GGUF file (the first of split ones)."""
    path = os.fspath(path)
    return read_folder(path) if os.path.isdir(path) else read_gguf(path)


def bad(file, what):
    return _gomlx.Error(f"{file}: {what}")


def check_file(file):
    """A pipe by the name of a model would be waited for without end."""
    if not os.path.isfile(file):
        raise bad(file, "is no file" if os.path.exists(file) else "no such file")


# ---- folders ----

def weight_files(folder):
    """The safetensors files of a folder: those of the index if there is one."""
    index = os.path.join(folder, "model.safetensors.index.json")
    if os.path.isfile(index):
        from gomlx.loading import read_json
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
    own = [one for one in files if not one.startswith(("consolidated", "adapter"))]
    return own or files


def read_folder(folder):
    from gomlx.loading import read_json
    config_file = os.path.join(folder, "config.json")
    check_file(config_file)
    config = read_json(config_file)
    files = weight_files(folder)
    if not files:
        raise bad(folder, "there are no .safetensors files beside config.json")
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
    size = os.path.getsize(file)
    with open(file, "rb") as source:
        head = source.read(8)
        length = int.from_bytes(head, "little")
        if len(head) < 8 or length > min(size - 8, SAFETENSORS_HEADER):
            raise bad(file, f"no safetensors file: a header of {length} bytes in a file of {size}")
        try:
            header = json.loads(source.read(length))
        except (ValueError, RecursionError) as error:
            raise bad(file, f"the header is not JSON: {error}") from None
    if not isinstance(header, dict):
        raise bad(file, "the header is no JSON object")
    metadata = header.pop("__metadata__", {})
    for name, one in header.items():
        try:
            begin, end = one["data_offsets"]
            if not 0 <= begin <= end <= size - 8 - length:
                raise ValueError
            tensors[name] = Tensor(str(one["dtype"]), tuple(int(n) for n in one["shape"]), end - begin)
        except (KeyError, TypeError, ValueError):
            raise bad(file, f"tensor {name!r:.80}: {one!r:.80} does not say where it lies in the file") from None
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


SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


class Cursor:
    """A place in a mapped GGUF file; what lies beyond the end raises."""

    def __init__(self, data, file):
        self.data, self.file, self.at = data, file, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise bad(self.file, f"{count} bytes at {self.at} are beyond its end")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, letter):
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def string(self):
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self.number(self.letter(kind))
        item, count = self.number("I"), self.number("Q")
        if item == STRING:
            if count > len(self.data) // 8:
                raise bad(self.file, f"a list of {count} strings")
            if count <= LISTED:
                return [self.string() for _ in range(count)]
            return self.skip_strings(count)
        letter = self.letter(item)
        items = self.take(count * struct.calcsize("<" + letter))
        return list(struct.unpack(f"<{count}{letter}", items)) if count <= LISTED else count

    def skip_strings(self, count):
        """Their count; a vocabulary has hundreds of thousands, so this is written to be fast."""
        data, at, end, unpack = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = end + 1
        if at > end:
            raise bad(self.file, f"a list of {count} strings is not inside")
        self.at = at
        return count

    def letter(self, kind):
        if kind not in SCALARS:
            raise bad(self.file, f"metadata of type {kind}")
        return SCALARS[kind]


def gguf_header(file, tensors):
    """Puts the file's tensors into `tensors`; returns its metadata, of long arrays the count."""
    check_file(file)
    if os.path.getsize(file) < 24:
        raise bad(file, "no GGUF file: it is too short")
    with open(file, "rb") as source, mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = Cursor(data, file)
        if cursor.take(4) != b"GGUF":
            raise bad(file, "no GGUF file: it does not begin with its magic")
        version, n_tensors, n_entries = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
        if version not in (2, 3):
            raise bad(file, f"GGUF version {version}, expected 2 or 3")
        if n_tensors > len(data) // 24 or n_entries > len(data) // 12:
            raise bad(file, f"{n_tensors} tensors and {n_entries} entries in {len(data)} bytes")
        metadata = {}
        for _ in range(n_entries):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.number("I"))
        found = []
        for _ in range(n_tensors):
            name, n_dims = cursor.string(), cursor.number("I")
            if n_dims > 4:
                raise bad(file, f"tensor {name!r:.80} of {n_dims} dimensions")
            shape = tuple(cursor.number("Q") for _ in range(n_dims))[::-1]
            found.append((name, shape, cursor.number("I"), cursor.number("Q")))
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
            raise bad(file, f"general.alignment is {alignment!r}")
        body = len(data) - -(-cursor.at // alignment) * alignment
        ends = sorted({offset for *_, offset in found} | {max(body, 0)})
        following = dict(zip(ends, ends[1:], strict=False))
        for name, shape, kind, offset in found:
            if offset >= body and 0 not in shape:
                raise bad(file, f"tensor {name!r:.80} begins at {offset} of {max(body, 0)} bytes: the file was cut "
                          "short")
            tensors[name] = Tensor(GGML_TYPES.get(kind, f"type {kind}"), shape, following.get(offset, offset) - offset)
    return metadata


def quantisation(header: Header) -> dict:
    """{"bits", "group", "type"} of most of the weights; bits None where they are plain floats."""
    if header.format == "gguf":
        return gguf_quantisation(header)
    found = header.config.get("quantization")
    if isinstance(found, dict) and "bits" in found:
        return {"bits": found["bits"], "group": found.get("group_size"), "type": found.get("mode", "affine")}
    found = header.config.get("quantization_config")
    if isinstance(found, dict):
        method = found.get("quant_method")
        bits = {"mxfp4": 4, "fp8": 8}.get(method, found.get("bits"))
        group = 32 if method == "mxfp4" else found.get("group_size", (found.get("weight_block_size") or [None])[-1])
        return {"bits": bits, "group": group, "type": method or found.get("mode", "affine")}
    sizes = {}
    for one in header.tensors.values():
        sizes[one.dtype] = sizes.get(one.dtype, 0) + one.bytes
    return {"bits": None, "group": None, "type": max(sizes, key=sizes.get, default=None)}


def gguf_quantisation(header):
    sizes = {}
    for one in header.tensors.values():
        if len(one.shape) > 1:
            sizes[one.dtype] = sizes.get(one.dtype, 0) + one.bytes
    kind = max(sizes, key=sizes.get, default=None)
    found = re.match(r"(?:I|T)?Q(\d)|(?:MX|NV)FP(\d)", kind or "")
    if found is None:
        return {"bits": None, "group": None, "type": kind}
    group = 16 if kind == "NVFP4" else 32 if re.fullmatch(r"Q\d_[01]|IQ4_NL|MXFP4", kind) else 256
    return {"bits": int(found[1] or found[2]), "group": group, "type": kind}


def context_length(header: Header) -> int | None:
    """The tokens that the architecture was made for."""
    key = f"{header.model_type}.context_length" if header.format == "gguf" else "max_position_embeddings"
    value = header.config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
