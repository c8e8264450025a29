"""median and unique, which are read from a sorted array."""
from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx._gomlx import array

if TYPE_CHECKING:
    from gomlx._gomlx import StreamOrDevice

__all__ = ["median", "unique"]


def median(a: array, /, axis: int | Sequence[int] | None = None, keepdims: bool = False, *,
           stream: StreamOrDevice = None) -> array:
    """The middle value over axes, the mean of the two middle ones of an even number; floating point, or complex64 in
    the order of sort. NaN when any is NaN."""
    if not isinstance(a, array):
        raise TypeError(f"median: an array is needed, not {type(a).__name__}")
    one = hasattr(axis, "__index__") and getattr(axis, "ndim", 0) == 0
    axes = range(a.ndim) if axis is None else [axis] if one else axis
    axes = [operator.index(i) for i in axes]
    for i in axes:
        if not -a.ndim <= i < a.ndim:
            raise _gomlx.AxisError(f"median: axis {i} is out of range for {a.ndim} dimensions")
    axes = sorted(i % a.ndim for i in axes)
    if len(set(axes)) != len(axes):
        raise ValueError(f"median: an axis is given twice in {axis}")
    n = math.prod(a.shape[i] for i in axes)
    if n == 0:
        raise ValueError("median: an axis without items has none")
    kept = [i for i in range(a.ndim) if i not in axes]
    if a.dtype not in (_gomlx.float16, _gomlx.bfloat16, _gomlx.float32, _gomlx.float64, _gomlx.complex64):
        a = a.astype(_gomlx.float32)
    lines = _gomlx.sort(a.transpose([*kept, *axes]).reshape([*(a.shape[i] for i in kept), n]))
    out = (lines[..., (n - 1) // 2] + lines[..., n // 2]) / 2 if n % 2 == 0 else lines[..., n // 2]
    out = _gomlx.where(_gomlx.isnan(lines[..., n - 1]), lines[..., n - 1], out)      # NaN is sorted last
    return out.reshape([1 if i in axes else d for i, d in enumerate(a.shape)]) if keepdims else out


def unique(a: array, /, size: int, return_index: bool = False, return_inverse: bool = False,
           return_counts: bool = False, fill_value: Any = None, *, stream: StreamOrDevice = None) -> Any:
    """The sorted distinct values of the flattened array: exactly `size` of them, the smallest, padded with fill_value
    (the first of them) where there are fewer. If requested, in this order after the values: the index of each one's
    first occurrence, the index among the values of each item of a (in a's shape), and how often each occurs."""
    if size < 0:
        raise ValueError(f"unique: size must not be negative, got {size}")
    flat = a.reshape([a.size])
    if a.size == 0 and size > 0 and fill_value is None:
        raise ValueError("unique: an array without items needs a fill_value")
    if a.size == 0:
        fill = _gomlx.full([size], 0 if fill_value is None else fill_value, a.dtype)
        values, index = fill, _gomlx.zeros([size], _gomlx.uint32)
        inverse, counts = _gomlx.zeros(a.shape, _gomlx.uint32), _gomlx.zeros([size], _gomlx.int32)
    else:
        order = _gomlx.argsort(flat)
        ordered = flat[order]
        starts = _gomlx.concatenate([_gomlx.ones([1], _gomlx.bool_), ordered[1:] != ordered[:-1]])
        group = _gomlx.cumsum(starts.astype(_gomlx.int32)) - 1
        slots = _gomlx.where(starts, _gomlx.minimum(group, size), size)      # slot `size` takes what is left out
        fill = ordered[0] if fill_value is None else array(fill_value).astype(a.dtype)
        values = _gomlx.broadcast_to(fill, [size + 1])
        index = _gomlx.broadcast_to(order[0], [size + 1])
        values, index = _scattered(values, slots, ordered)[:size], _scattered(index, slots, order)[:size]
        counts = _gomlx.zeros([size + 1], _gomlx.int32).at[_gomlx.minimum(group, size)].add(1)[:size]
        inverse = _gomlx.zeros([a.size], _gomlx.uint32)
        inverse[order] = _gomlx.minimum(group, max(size - 1, 0)).astype(_gomlx.uint32)
        inverse = inverse.reshape(a.shape)
    wanted = [x for x, asked in ((index, return_index), (inverse, return_inverse), (counts, return_counts)) if asked]
    return (values, *wanted) if wanted else values


def _scattered(target, indices, values):
    target = target + 0 if target.dtype != _gomlx.bool_ else _gomlx.contiguous(target)
    target[indices] = values
    return target
