"""Pooling: the maximum or the mean of windows that slide over the positions. Channels come last."""
from __future__ import annotations

from itertools import accumulate
from operator import mul

import gomlx.core as mx
from gomlx.nn.layers.base import Module


def per_axis(value, n, name):
    """`value` for each of n axes, as a list."""
    if isinstance(value, int):
        return [value] * n
    if not isinstance(value, (list, tuple)) or len(value) != n:
        raise ValueError(f"{name} must be an integer or a tuple containing {n} integer{'s' if n > 1 else ''}")
    return list(value)


def sliding_windows(x, size, stride):
    """x of (N, *positions, C) as (N, *windows, *size, C): each window's positions get axes of their own."""
    if x.ndim < 3:
        raise ValueError("To extract sliding windows at least 1 spatial dimension (3 total) is needed "
                         f"but the input only has {x.ndim} dimensions.")
    batch, *positions, channels = x.shape
    if not len(positions) == len(size) == len(stride):
        raise ValueError("To extract sliding windows the window shapes and strides must have the same number of "
                         f"spatial dimensions as the signal but the signal has {len(positions)} dims and the window "
                         f"shape has {len(size)} and strides have {len(stride)}.")
    if size == stride and all(p % s == 0 for p, s in zip(positions, size)):
        # Windows that tile the input are a view of it: its gradient needs no scatter.
        split = x.reshape(batch, *(n for p, s in zip(positions, size) for n in (p // s, s)), channels)
        n = len(size)
        return split.transpose(0, *range(1, 2 * n, 2), *range(2, 2 * n + 1, 2), 2 * n + 1)
    strides = list(accumulate(reversed(x.shape + (1,)), mul))[-2::-1]       # of the row-major x, in elements
    x_batch, *x_positions, x_channel = strides
    windows = [(p - k) // s + 1 for p, k, s in zip(positions, size, stride)]
    return mx.as_strided(x, (batch, *windows, *size, channels),
                         (x_batch, *(p * s for p, s in zip(x_positions, stride)), *x_positions, x_channel))


class _Pool(Module):
    """What poolings share; DIMS spatial axes, filled at the border with FILL where they are padded."""

    DIMS: int
    FILL: float

    def __init__(self, kernel_size: int | tuple[int, ...], stride: int | tuple[int, ...] | None = None,
                 padding: int | tuple[int, ...] = 0) -> None:
        super().__init__()
        name = type(self).__name__
        self._kernel_size = per_axis(kernel_size, self.DIMS, f"[{name}] 'kernel_size'")
        self._stride = (self._kernel_size if stride is None
                        else per_axis(stride, self.DIMS, f"[{name}] 'stride'"))
        self._padding = [(p, p) for p in per_axis(padding, self.DIMS, f"[{name}] 'padding'")]
        self._axes = tuple(range(-self.DIMS - 1, -1))

    def _extra_repr(self):
        padding = tuple(before for before, _ in self._padding)
        return f"kernel_size={tuple(self._kernel_size)}, stride={tuple(self._stride)}, padding={padding}"

    def _pool(self, windows):
        raise NotImplementedError

    def __call__(self, x: mx.array) -> mx.array:
        if any(before > 0 for before, _ in self._padding):
            x = mx.pad(x, [(0, 0), *self._padding, (0, 0)], constant_values=self.FILL)
        return self._pool(sliding_windows(x, self._kernel_size, self._stride))


class _MaxPool(_Pool):
    FILL = -float("inf")

    def _pool(self, windows):
        return mx.max(windows, self._axes)


class _AvgPool(_Pool):
    FILL = 0

    def _pool(self, windows):
        return mx.mean(windows, self._axes)


class MaxPool1d(_MaxPool):
    """The largest value of each window of a sequence (N, L, C). The stride is the window's size by default."""

    DIMS = 1

    def __init__(self, kernel_size: int | tuple[int], stride: int | tuple[int] | None = None,
                 padding: int | tuple[int] = 0) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool1d(_AvgPool):
    """The mean of each window of a sequence (N, L, C). The stride is the window's size by default."""

    DIMS = 1

    def __init__(self, kernel_size: int | tuple[int], stride: int | tuple[int] | None = None,
                 padding: int | tuple[int] = 0) -> None:
        super().__init__(kernel_size, stride, padding)


class MaxPool2d(_MaxPool):
    """The largest value of each window of an image (N, H, W, C). The stride is the window's size by default."""

    DIMS = 2

    def __init__(self, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None = None,
                 padding: int | tuple[int, int] | None = 0) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool2d(_AvgPool):
    """The mean of each window of an image (N, H, W, C). The stride is the window's size by default."""

    DIMS = 2

    def __init__(self, kernel_size: int | tuple[int, int], stride: int | tuple[int, int] | None = None,
                 padding: int | tuple[int, int] | None = 0) -> None:
        super().__init__(kernel_size, stride, padding)


class MaxPool3d(_MaxPool):
    """The largest value of each window of a volume (N, D, H, W, C). The stride is the window's size by default."""

    DIMS = 3

    def __init__(self, kernel_size: int | tuple[int, int, int], stride: int | tuple[int, int, int] | None = None,
                 padding: int | tuple[int, int, int] | None = 0) -> None:
        super().__init__(kernel_size, stride, padding)


class AvgPool3d(_AvgPool):
    """The mean of each window of a volume (N, D, H, W, C). The stride is the window's size by default."""

    DIMS = 3

    def __init__(self, kernel_size: int | tuple[int, int, int], stride: int | tuple[int, int, int] | None = None,
                 padding: int | tuple[int, int, int] | None = 0) -> None:
        super().__init__(kernel_size, stride, padding)
