"""GGUF's block formats that the engine has no kernels for: MXFP4 to MLX's form of it and back, and the values of others,
with operations on arrays. Blocks are uint8 [..., bytes of a row]."""
from __future__ import annotations

from gomlx import _gomlx as mx

IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)


def mxfp4_of_blocks(blocks):
    """MLX's weight and scales of MXFP4: a scale, then bytes whose halves are values i and i + 16."""
    lead, count = list(blocks.shape[:-1]), blocks.shape[-1] // 17
    blocks = mx.reshape(blocks, [*lead, count, 17])
    values = nibbles(blocks[..., 1:])
    packed = mx.bitwise_or(values[..., 0::2], mx.left_shift(values[..., 1::2], mx.array(4, mx.uint8)))
    weight = mx.view(mx.contiguous(mx.reshape(packed, [*lead, count * 16])), mx.uint32)
    return [weight, mx.reshape(mx.contiguous(blocks[..., 0]), [*lead, count])]


def blocks_of_mxfp4(weight, scales):
    """The way back."""
    lead, count = list(scales.shape[:-1]), scales.shape[-1]
    packed = mx.reshape(mx.view(mx.contiguous(weight), mx.uint8), [*lead, count, 16])
    values = mx.reshape(mx.stack([field(packed, 0, 15), field(packed, 4, 15)], axis=-1), [*lead, count, 32])
    both = mx.bitwise_or(values[..., :16], mx.left_shift(values[..., 16:], mx.array(4, mx.uint8)))
    return mx.reshape(mx.concatenate([mx.reshape(scales, [*lead, count, 1]), both], axis=-1), [*lead, count * 17])


def field(x, shift, mask):
    """Bits of bytes; shift is a number or an array."""
    shift = shift if isinstance(shift, mx.array) else mx.array(shift, mx.uint8)
    return mx.bitwise_and(mx.right_shift(x, shift), mx.array(mask, mx.uint8))


def nibbles(x):
    """Low halves, then high halves, along the last axis."""
    return mx.concatenate([field(x, 0, 15), field(x, 4, 15)], axis=-1)


def half(blocks, at):
    """The float16 at a byte of each block, [blocks, 1]."""
    return mx.view(mx.contiguous(blocks[:, at:at + 2]), mx.float16).astype(mx.float32)


def two_bits(qs):
    """[blocks, 64] as [blocks, 256]: each 32 bytes hold four groups of 32."""
    shifts = mx.array([[0], [2], [4], [6]], mx.uint8)
    return mx.reshape(field(mx.reshape(qs, [-1, 2, 1, 32]), shifts, 3), [-1, 256]).astype(mx.float32)


def q2_k(b):
    scales = (half(b, 80) * field(b[:, :16], 0, 15))[..., None]
    minimums = (half(b, 82) * field(b[:, :16], 4, 15))[..., None]
    return scales * mx.reshape(two_bits(b[:, 16:80]), [-1, 16, 16]) - minimums


def q3_k(b):
    top = field(mx.reshape(b[:, :32], [-1, 1, 32]), mx.reshape(mx.arange(8).astype(mx.uint8), [8, 1]), 1)
    fields = two_bits(b[:, 32:96]) + 4 * mx.reshape(top, [-1, 256]).astype(mx.float32) - 4
    low = nibbles(b[:, 96:104])
    high = mx.reshape(field(mx.reshape(b[:, 104:108], [-1, 1, 4]), mx.array([[0], [2], [4], [6]], mx.uint8), 3), [-1, 16])
    scales = low.astype(mx.float32) + 16 * high.astype(mx.float32) - 32
    return (half(b, 108) * scales)[..., None] * mx.reshape(fields, [-1, 16, 16])


def iq4_nl(b):
    return half(b, 0) * mx.take(mx.array(IQ4, mx.float32), nibbles(b[:, 2:]), axis=0)


def iq4_xs(b):
    low = mx.reshape(mx.stack([field(b[:, 4:8], 0, 15), field(b[:, 4:8], 4, 15)], axis=-1), [-1, 8])
    high = mx.reshape(field(b[:, 2:4][..., None], mx.array([0, 2, 4, 6], mx.uint8), 3), [-1, 8])
    scales = low.astype(mx.float32) + 16 * high.astype(mx.float32) - 32
    values = mx.take(mx.array(IQ4, mx.float32), nibbles(mx.reshape(b[:, 8:], [-1, 8, 16])), axis=0)
    return (half(b, 0) * scales)[..., None] * values


# Name: values and bytes of a block, and its values.
READABLE = {"Q2_K": (256, 84, q2_k), "Q3_K": (256, 110, q3_k), "IQ4_NL": (32, 18, iq4_nl), "IQ4_XS": (256, 136, iq4_xs)}


def values(blocks, name):
    """float32 [..., k] of a format in READABLE."""
    count, size, read = READABLE[name]
    rows = read(mx.reshape(blocks, [-1, size]))
    return mx.reshape(rows, [*blocks.shape[:-1], blocks.shape[-1] // size * count])
