"""GGUF: metadata and tensors to bytes and back. Q4_0, Q4_1 and Q8_0 become MLX's weight, scales and biases; other block
formats float16.

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
        return RuntimeError(f"load: {self.name} is no GGUF file: {what}")

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


def _half(blocks, at):
    return mx.view(mx.contiguous(blocks[:, at:at + 2]), mx.float16).astype(mx.float32)


def _shifted(x, by):
    return mx.right_shift(x, by if isinstance(by, mx.array) else mx.array(by, mx.uint8))


def _fields(x, mask, by=0):
    return mx.bitwise_and(_shifted(x, by), mx.array(mask, mx.uint8)).astype(mx.int32)


def _q5(blocks, high, low):
    """The five-bit fields of blocks of 32: bit i of the bytes from `high` on is the top of value i."""
    bits = _fields(mx.repeat(blocks[:, high:high + 4], 8, axis=1), 1, mx.arange(32).astype(mx.uint8) % 8)
    return mx.concatenate([_fields(blocks[:, low:], 15), _fields(blocks[:, low:], 15, 4)], axis=1) + 16 * bits


def _q5_0(blocks):
    return (_q5(blocks, 2, 6) - 16) * _half(blocks, 0)


def _q5_1(blocks):
    return _q5(blocks, 4, 8) * _half(blocks, 0) + _half(blocks, 2)


def _k_groups(blocks, fields):
    """Values of 8 groups of 32 fields: six-bit scales and minimums, twelve bytes of them from byte 4 on."""
    first, second, last = (blocks[:, at:at + 4] for at in (4, 8, 12))
    scales = mx.concatenate([_fields(first, 63), _fields(last, 15) + 16 * _fields(first, 3, 6)], axis=1)
    minimums = mx.concatenate([_fields(second, 63), _fields(last, 15, 4) + 16 * _fields(second, 3, 6)], axis=1)
    values = fields * (scales * _half(blocks, 0))[..., None] - (minimums * _half(blocks, 2))[..., None]
    return mx.reshape(values, [-1, 256])


def _k_nibbles(blocks, at):
    halves = mx.reshape(blocks[:, at:at + 128], [-1, 4, 1, 32])
    return mx.reshape(mx.concatenate([_fields(halves, 15), _fields(halves, 15, 4)], axis=2), [-1, 8, 32])


def _q4_k(blocks):
    return _k_groups(blocks, _k_nibbles(blocks, 16))


def _q5_k(blocks):
    top = _fields(blocks[:, None, 16:48], 1, mx.arange(8).astype(mx.uint8)[:, None])
    return _k_groups(blocks, _k_nibbles(blocks, 48) + 16 * top)


def _q6_k(blocks):
    low, high = mx.reshape(blocks[:, :128], [-1, 2, 2, 32]), mx.reshape(blocks[:, 128:192], [-1, 2, 1, 32])
    fields = mx.concatenate([_fields(low, 15), _fields(low, 15, 4)], axis=2)
    fields += 16 * _fields(high, 3, mx.array([[0], [2], [4], [6]], mx.uint8))
    scales = mx.view(mx.contiguous(blocks[:, 192:208]), mx.int8) * _half(blocks, 208)
    return mx.reshape((mx.reshape(fields, [-1, 16, 16]) - 32) * scales[..., None], [-1, 256])


# Types whose values MLX's quantised matrices cannot hold, and which become float16: name, values and bytes of a block.
WIDENED = {6: ("Q5_0", 32, 22, _q5_0), 7: ("Q5_1", 32, 24, _q5_1), 12: ("Q4_K", 256, 144, _q4_k),
           13: ("Q5_K", 256, 176, _q5_k), 14: ("Q6_K", 256, 210, _q6_k)}


def _row_bytes(kind):
    """(values, bytes) of the smallest part of a tensor of the type."""
    return (1, PLAIN[kind].size) if kind in PLAIN else (32, BLOCKS[kind][1]) if kind in BLOCKS else WIDENED[kind][1:3]


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
        if kind not in PLAIN and kind not in BLOCKS and kind not in WIDENED:
            raise r.bad(f"tensor {key!r} is of type {kind}; readable are F32, F16, BF16, F64, integers, Q4_0, Q4_1, Q5_0, "
                        "Q5_1, Q8_0, Q4_K, Q5_K and Q6_K")
        values, block = _row_bytes(kind)
        size = math.prod(shape) // values * block
        if any(n >= 1 << 31 for n in shape) or offset > len(body) or size > len(body) - offset:
            raise r.bad(f"tensor {key!r} of shape {shape} is not inside")
        part = body[offset:offset + size]
        if kind in PLAIN:
            arrays[key] = _array(part, PLAIN[kind], shape)
            continue
        if not shape or shape[-1] % values or not size:
            raise r.bad(f"tensor {key!r} of type {kind} has shape {shape}")
        if kind in WIDENED:
            blocks = mx.reshape(mx.array(part), [-1, block])
            arrays[key] = mx.reshape(WIDENED[kind][3](blocks).astype(mx.float16), shape)
            continue
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
    if value.ndim > 1:
        raise RuntimeError(f"save_gguf: metadata {key!r} has {value.ndim} dimensions, expected at most one")
    if kind is None:
        raise ValueError(f"save_gguf: metadata {key!r} is {value.dtype}, which GGUF cannot hold")
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
