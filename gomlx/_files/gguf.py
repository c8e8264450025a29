"""GGUF: metadata and tensors to bytes and back. Q4_0, Q4_1 and Q8_0 become MLX's weight, scales and biases; other block
formats float16.

Source: the GGUF specification, version 3.
"""
import dataclasses
import math
import struct

from gomlx import _gomlx as mx
from gomlx._files.reading import array_of

MAX_NDIM = 8                   # MLX's limit; llama.cpp reads at most 4
ALIGNMENT = 32
STRING, ARRAY = 8, 9
# Types of metadata: struct's letter and dtype.
VALUES = {0: ("B", mx.uint8), 1: ("b", mx.int8), 2: ("H", mx.uint16), 3: ("h", mx.int16), 4: ("I", mx.uint32),
          5: ("i", mx.int32), 6: ("f", mx.float32), 7: ("?", mx.bool_), 10: ("Q", mx.uint64), 11: ("q", mx.int64),
          12: ("d", mx.float32)}
# Types of tensors that are plain elements; blocks of 32 that become triples, with their bytes.
PLAIN = {0: mx.float32, 1: mx.float16, 24: mx.int8, 25: mx.int16, 26: mx.int32, 27: mx.int64, 28: mx.float64,
         30: mx.bfloat16}
BLOCKS = {2: 18, 3: 20, 8: 34}
# All types: name, values and bytes of a block. Those that multiply come from the engine's table (kernels/quants.def);
# here are the others that files may have.
_FORMATS = {one["gguf"]: (one["name"], one["values"], one["bytes"]) for one in mx.formats() if "gguf" in one}
TYPES = _FORMATS | {24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8),
                    40: ("NVFP4", 64, 36)}
WIDENED = tuple(kind for kind in sorted(_FORMATS) if kind not in PLAIN and kind not in BLOCKS)    # become float16
IDS = {name: kind for kind, (name, _, _) in TYPES.items()}


class _Reader:
    def __init__(self, data, name, longest=None, error=mx.Error):
        self.data, self.name, self.at = memoryview(data), name, 0
        self.longest, self.error = longest, error

    def bad(self, what):
        return self.error(f"{self.name} is not a GGUF file: {what}")

    def take(self, n):
        if n > len(self.data) - self.at:
            raise self.bad(f"{n} bytes at {self.at} are beyond its end")
        self.at += n
        return self.data[self.at - n:self.at]

    def number(self, letter):
        return struct.unpack("<" + letter, self.take(struct.calcsize("<" + letter)))[0]

    def string(self):
        return bytes(self.take(self.number("Q"))).decode("utf-8", "replace")

    def value(self, kind):
        return self.string() if kind == STRING else self.number(self.letter(kind))

    def list(self):
        item, count = self.number("I"), self.number("Q")
        if item == STRING:
            if count > len(self.data) // 8:
                raise self.bad(f"a list of {count} strings")
            return ARRAY, item, self.skip_strings(count) if self.is_long(count) else \
                [self.string() for _ in range(count)]
        letter = self.letter(item)
        items = self.take(count * struct.calcsize("<" + letter))
        return ARRAY, item, count if self.is_long(count) else list(struct.unpack(f"<{count}{letter}", items))

    def is_long(self, count):
        return self.longest is not None and count > self.longest

    def skip_strings(self, count):
        """Skips strings and returns their count; fast, because a vocabulary has hundreds of thousands."""
        data, at, end, unpack = self.data, self.at, len(self.data), struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):
            at = end + 1
        if at > end:
            raise self.bad(f"a list of {count} strings is not inside")
        self.at = at
        return count

    def letter(self, kind):
        if kind not in VALUES:
            raise self.bad(f"metadata of type {kind}")
        return VALUES[kind][0]


def _blocks(kind, data, shape):
    """weight, scales and biases of rows of blocks."""
    count, size = math.prod(shape) // 32, BLOCKS[kind]
    blocks = mx.reshape(mx.array(data), [count, size])
    scales = mx.view(mx.contiguous(blocks[:, :2]), mx.float16)
    if kind == 8:
        fields, biases = mx.bitwise_xor(blocks[:, 2:], mx.array(128, mx.uint8)), scales * -128
    else:
        first = 2 if kind == 2 else 4
        low = mx.bitwise_and(blocks[:, first:], mx.array(15, mx.uint8))
        high = mx.right_shift(blocks[:, first:], mx.array(4, mx.uint8))
        each = mx.concatenate([low, high], axis=1)
        fields = mx.bitwise_or(each[:, 0::2], mx.left_shift(each[:, 1::2], mx.array(4, mx.uint8)))
        biases = scales * -8 if kind == 2 else mx.view(mx.contiguous(blocks[:, 2:4]), mx.float16)
    lead, groups = list(shape[:-1]), shape[-1] // 32
    weight = mx.reshape(mx.view(mx.contiguous(fields), mx.uint32), [*lead, groups * (8 if kind == 8 else 4)])
    return weight, mx.reshape(scales, [*lead, groups]), mx.reshape(biases, [*lead, groups])


@dataclasses.dataclass
class Tensor:
    """A tensor in the header: shape with the contiguous dimension last, and where its bytes are in the file."""
    name: str
    shape: list
    kind: int
    begin: int
    end: int


def read_header(data, name, longest=None, error=mx.Error):
    """({key: (type, type of items or None, value)}, tensors) of a file's bytes; arrays are lists, those of more than
    `longest` items their count. Lengths are checked against the file, and so are the offsets of tensors of known types;
    what is wrong raises `error`."""
    r = _Reader(data, name, longest, error)
    if bytes(r.take(4)) != b"GGUF":
        raise r.bad("it does not begin with its magic")
    version, tensors, entries = r.number("I"), r.number("Q"), r.number("Q")
    if version not in (2, 3):
        raise r.bad(f"version {version}")
    if tensors > len(r.data) // 24 or entries > len(r.data) // 12:
        raise r.bad(f"{tensors} tensors and {entries} entries in {len(r.data)} bytes")
    metadata = {}
    for _ in range(entries):
        key, kind = r.string(), r.number("I")
        metadata[key] = r.list() if kind == ARRAY else (kind, None, r.value(kind))
    infos = []
    for _ in range(tensors):
        key, n = r.string(), r.number("I")
        if n > MAX_NDIM:
            raise r.bad(f"tensor {key!r} of {n} dimensions")
        shape = [r.number("Q") for _ in range(n)][::-1]
        infos.append((key, shape, r.number("I"), r.number("Q")))
    alignment = metadata.get("general.alignment", (4, None, ALIGNMENT))[2]
    if not isinstance(alignment, int) or alignment < 1:
        raise r.bad("general.alignment is not a positive integer")
    start, found = -(-r.at // alignment) * alignment, []
    left = max(len(r.data) - start, 0)
    for key, shape, kind, offset in infos:
        values, size = TYPES[kind][1:] if kind in TYPES else (1, 0)
        count = math.prod(shape)
        if any(n >= 1 << 31 for n in shape) or offset > left or count // values * size > left - offset:
            raise r.bad(f"tensor {key!r} of shape {shape} is not inside")
        if values > 1 and (not shape or shape[-1] % values or not count):
            raise r.bad(f"tensor {key!r} of type {TYPES[kind][0]} has shape {shape}")
        found.append(Tensor(key, shape, kind, start + offset, start + offset + count // values * size))
    return metadata, found


def parse(data, name):
    """(arrays, metadata) of a whole file."""
    header, tensors = read_header(data, name, error=RuntimeError)
    metadata = {key: value if (item if kind == ARRAY else kind) == STRING
                else mx.array(value, VALUES[item if kind == ARRAY else kind][1])
                for key, (kind, item, value) in header.items()}
    body, arrays = memoryview(data), {}
    for t in tensors:
        if t.kind not in PLAIN and t.kind not in BLOCKS and t.kind not in WIDENED:
            raise RuntimeError(f"load: {name}: tensor {t.name!r} is of type {t.kind}; readable are F32, F16, BF16, "
                               f"F64, integers, {', '.join(TYPES[kind][0] for kind in sorted([*BLOCKS, *WIDENED]))}")
        part = body[t.begin:t.end]
        if t.kind in PLAIN:
            arrays[t.name] = array_of(part, PLAIN[t.kind], t.shape)
        elif t.kind in WIDENED:
            _, values, size = TYPES[t.kind]
            rows = mx.reshape(mx.array(part), [*t.shape[:-1], t.shape[-1] // values * size])
            arrays[t.name] = mx.fast.dequantize_blocks(rows, TYPES[t.kind][0]).astype(mx.float16)
        else:
            stem = t.name.removesuffix(".weight")
            for end, array in zip(("weight", "scales", "biases"), _blocks(t.kind, part, t.shape)):
                arrays[f"{stem}.{end}"] = array
    return arrays, metadata


# ---- writing ----

def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _values(kind, values):
    if kind == STRING:
        return b"".join(map(_string, values))
    return struct.pack(f"<{len(values)}{VALUES[kind][0]}", *values)


def typed(key, value):
    """(type, type of items or None, value) of a metadata value as save_gguf takes them."""
    if isinstance(value, str):
        return STRING, None, value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return ARRAY, STRING, list(value)
    if not isinstance(value, mx.array):
        raise RuntimeError(f"save_gguf: metadata {key!r} is {type(value).__name__}, expected str, list of str or array")
    kind = next((kind for kind, (_, dtype) in VALUES.items() if dtype == value.dtype), None)
    if value.ndim > 1:
        raise RuntimeError(f"save_gguf: metadata {key!r} has {value.ndim} dimensions, expected at most one")
    if kind is None:
        raise ValueError(f"save_gguf: metadata {key!r} is {value.dtype}, which GGUF cannot hold")
    return (kind, None, value.item()) if value.ndim == 0 else (ARRAY, kind, value.tolist())


def padding(size):
    """The zeros after a tensor of `size` bytes."""
    return bytes(-size % ALIGNMENT)


def head(metadata, tensors):
    """The file up to the bytes of its tensors, each padded. metadata as read_header's; tensors: (name, shape,
    type id, bytes)."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, (kind, item, value) in metadata.items():
        parts.append(_string(key) + struct.pack("<I", kind))
        parts.append(struct.pack("<IQ", item, len(value)) + _values(item, value) if kind == ARRAY
                     else _values(kind, [value]))
    at = 0
    for name, shape, kind, size in tensors:
        parts.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kind, at))
        at += size + len(padding(size))
    text = b"".join(parts)
    return text + padding(len(text))


def layout(arrays, metadata):
    """(the file up to its tensors, the arrays whose bytes follow, each padded)."""
    tensors = []
    for name, array in arrays.items():
        kind = next((kind for kind, dtype in PLAIN.items() if dtype == array.dtype), None)
        if kind is None or array.ndim > MAX_NDIM:
            raise RuntimeError(f"save_gguf: {name!r} is {array.dtype} of {array.ndim} dimensions, which GGUF cannot "
                               "hold")
        tensors.append((name, list(array.shape), kind, array.nbytes))
    return head({key: typed(key, value) for key, value in metadata.items()}, tensors), list(arrays.values())
