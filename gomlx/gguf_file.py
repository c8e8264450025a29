"""GGUF: metadata and tensors to bytes and back. Q4_0, Q4_1 and Q8_0 become MLX's weight, scales and biases.

Source: the GGUF specification, version 3.
"""
import math
import struct

from . import _gomlx as mx

ALIGNMENT = 32
STRING, ARRAY = 8, 9
# Types of metadata: struct's letter and dtype.
VALUES = {0: ("B", mx.uint8), 1: ("b", mx.int8), 2: ("H", mx.uint16), 3: ("h", mx.int16), 4: ("I", mx.uint32),
          5: ("i", mx.int32), 6: ("f", mx.float32), 7: ("?", mx.bool_), 10: ("Q", mx.uint64), 11: ("q", mx.int64),
          12: ("d", mx.float32)}
# Types of tensors that are plain elements, and blocks of 32: bytes of a block.
PLAIN = {0: mx.float32, 1: mx.float16, 24: mx.int8, 25: mx.int16, 26: mx.int32, 27: mx.int64, 28: mx.float64,
         30: mx.bfloat16}
BLOCKS = {2: ("Q4_0", 18), 3: ("Q4_1", 20), 8: ("Q8_0", 34)}


class _Reader:
    def __init__(self, data, name):
        self.data, self.name, self.at = memoryview(data), name, 0

    def bad(self, what):
        return ValueError(f"load: {self.name} is no GGUF file: {what}")

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
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, count = self.number("I"), self.number("Q")
            if item == STRING:
                if count > len(self.data) // 8:
                    raise self.bad(f"a list of {count} strings")
                return [self.string() for _ in range(count)]
            letter, dtype = self.element(item)
            items = self.take(count * struct.calcsize("<" + letter))
            return mx.array(list(struct.unpack(f"<{count}{letter}", items)), dtype)
        letter, dtype = self.element(kind)
        return mx.array(self.number(letter), dtype)

    def element(self, kind):
        if kind not in VALUES:
            raise self.bad(f"metadata of type {kind}")
        return VALUES[kind]


def _blocks(kind, data, shape):
    """weight, scales and biases of rows of blocks."""
    count, size = math.prod(shape) // 32, BLOCKS[kind][1]
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


def parse(data, name):
    """(arrays, metadata) of a whole file."""
    from .io import _array
    r = _Reader(data, name)
    if bytes(r.take(4)) != b"GGUF":
        raise r.bad("it does not begin with its magic")
    version, tensors, entries = r.number("I"), r.number("Q"), r.number("Q")
    if version not in (2, 3):
        raise r.bad(f"version {version}")
    if tensors > len(r.data) // 24 or entries > len(r.data) // 12:
        raise r.bad(f"{tensors} tensors and {entries} entries in {len(r.data)} bytes")
    metadata = {}
    for _ in range(entries):
        key = r.string()
        metadata[key] = r.value(r.number("I"))
    infos = []
    for _ in range(tensors):
        key, n = r.string(), r.number("I")
        if n > 4:
            raise r.bad(f"tensor {key!r} of {n} dimensions")
        shape = [r.number("Q") for _ in range(n)][::-1]
        infos.append((key, shape, r.number("I"), r.number("Q")))
    alignment = metadata.get("general.alignment", ALIGNMENT)
    alignment = alignment.item() if isinstance(alignment, mx.array) and alignment.size == 1 else alignment
    if not isinstance(alignment, int) or alignment < 1:
        raise r.bad("general.alignment is no number")
    body, arrays = r.data[-(-r.at // alignment) * alignment:], {}
    for key, shape, kind, offset in infos:
        if kind not in PLAIN and kind not in BLOCKS:
            raise r.bad(f"tensor {key!r} is of type {kind}; readable are F32, F16, BF16, F64, integers, Q4_0, Q4_1 "
                        "and Q8_0")
        size = math.prod(shape) * PLAIN[kind].size if kind in PLAIN else math.prod(shape) // 32 * BLOCKS[kind][1]
        if any(n >= 1 << 31 for n in shape) or offset > len(body) or size > len(body) - offset:
            raise r.bad(f"tensor {key!r} of shape {shape} is not inside")
        part = body[offset:offset + size]
        if kind in PLAIN:
            arrays[key] = _array(part, PLAIN[kind], shape)
            continue
        if not shape or shape[-1] % 32 or not size:
            raise r.bad(f"tensor {key!r} of type {BLOCKS[kind][0]} has shape {shape}")
        stem = key.removesuffix(".weight")
        arrays[stem + ".weight"], arrays[stem + ".scales"], arrays[stem + ".biases"] = _blocks(kind, part, shape)
    return arrays, metadata


def _string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _entry(key, value):
    if isinstance(value, str):
        return _string(key) + struct.pack("<I", STRING) + _string(value)
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return _string(key) + struct.pack("<IIQ", ARRAY, STRING, len(value)) + b"".join(map(_string, value))
    if not isinstance(value, mx.array):
        raise RuntimeError(f"save_gguf: metadata {key!r} is {type(value).__name__}, expected str, list of str or array")
    kind = next((kind for kind, (_, dtype) in VALUES.items() if dtype == value.dtype), None)
    if kind is None or value.ndim > 1:
        raise RuntimeError(f"save_gguf: metadata {key!r} is {value.dtype} of {value.ndim} dimensions, expected at most "
                           "one")
    items = [value.item()] if value.ndim == 0 else value.tolist()
    data = struct.pack(f"<{len(items)}{VALUES[kind][0]}", *items)
    if value.ndim == 0:
        return _string(key) + struct.pack("<I", kind) + data
    return _string(key) + struct.pack("<IIQ", ARRAY, kind, len(items)) + data


def layout(arrays, metadata):
    """(what comes before the tensors, the arrays whose bytes follow, each padded to ALIGNMENT)."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(arrays), len(metadata))]
    head += [_entry(key, value) for key, value in metadata.items()]
    at = 0
    for name, array in arrays.items():
        kind = next((kind for kind, dtype in PLAIN.items() if dtype == array.dtype), None)
        if kind is None or array.ndim > 4:
            raise RuntimeError(f"save_gguf: {name!r} is {array.dtype} of {array.ndim} dimensions, which GGUF cannot "
                               "hold")
        head.append(_string(name) + struct.pack(f"<I{array.ndim}QIQ", array.ndim, *reversed(array.shape), kind, at))
        at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    text = b"".join(head)
    return text + bytes(-len(text) % ALIGNMENT), list(arrays.values())
