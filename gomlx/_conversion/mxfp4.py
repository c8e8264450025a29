"""MXFP4's blocks of GGUF to MLX's form of it and back, with operations on arrays. Blocks are uint8 [..., bytes of a
row]."""
from __future__ import annotations

from gomlx import _gomlx as mx


def mxfp4_of_blocks(blocks):
    """MLX's weight and scales of MXFP4: a scale, then bytes whose halves are values i and i + 16."""
    lead, count = list(blocks.shape[:-1]), blocks.shape[-1] // 17
    blocks = mx.reshape(blocks, [*lead, count, 17])
    values = nibbles(blocks[..., 1:])
    packed = mx.bitwise_or(values[..., 0::2], mx.left_shift(values[..., 1::2], mx.array(4, mx.uint8)))
    weight = mx.view(mx.contiguous(mx.reshape(packed, [*lead, count * 16])), mx.uint32)
    return [weight, mx.reshape(mx.contiguous(blocks[..., 0]), [*lead, count])]


def blocks_of_mxfp4(weight, scales):
    """The blocks of MLX's weight and scales: what mxfp4_of_blocks was given."""
    lead, count = list(scales.shape[:-1]), scales.shape[-1]
    packed = mx.reshape(mx.view(mx.contiguous(weight), mx.uint8), [*lead, count, 16])
    values = mx.reshape(mx.stack([field(packed, 0, 15), field(packed, 4, 15)], axis=-1), [*lead, count, 32])
    both = mx.bitwise_or(values[..., :16], mx.left_shift(values[..., 16:], mx.array(4, mx.uint8)))
    return mx.reshape(mx.concatenate([mx.reshape(scales, [*lead, count, 1]), both], axis=-1), [*lead, count * 17])


def field(x, shift, mask):
    """The bits of each byte under the mask, after the shift."""
    return mx.bitwise_and(mx.right_shift(x, mx.array(shift, mx.uint8)), mx.array(mask, mx.uint8))


def nibbles(x):
    """The low halves of bytes, then their high halves, along the last axis."""
    return mx.concatenate([field(x, 0, 15), field(x, 4, 15)], axis=-1)
