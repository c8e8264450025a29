"""Upsampling of the positions of (N, *positions, C), by the nearest value or by linear or cubic interpolation.

Every axis is resampled on its own, each output from a few inputs (taps). Output i of M is at the input coordinate
that keeps the two grids' centres together, or, with align_corners, their ends.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import gomlx.core as mx
from gomlx.nn.layers.base import Module


def coordinates(n, scale, align_corners):
    """The input coordinates, in floating point, of the int(scale * n) outputs of an axis of n inputs."""
    m = int(scale * n)
    i = mx.arange(m, dtype=mx.float32)
    if align_corners:
        return i * ((n - 1) / max(m - 1, 1))
    step = 1 / scale
    return i * step - ((m - 1) * step - n + 1) / 2


def cubic(distance, a):
    """Keys' kernel, reaching 2: https://doi.org/10.1109/TASSP.1981.1163711."""
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * a - 4 * a
    return mx.where(distance <= 1, near, mx.where(distance < 2, far, 0))


def triangle(distance):
    return mx.maximum(1 - distance, 0)


def plain_taps(kernel, reach):
    """Taps for interpolation: the 2 * reach nearest inputs, the border's repeated where there are none."""
    def taps(n, scale, align_corners):
        at = coordinates(n, scale, align_corners)
        if reach == 1:
            at = mx.clip(at, 0, n - 1)
        base = mx.floor(at)
        for k in range(1 - reach, reach + 1):
            yield mx.clip(base + k, 0, n - 1).astype(mx.uint32), kernel(mx.abs(at - (base + k)))

    return taps


def wide_taps(kernel, reach):
    """Taps for antialiasing: where the axis shrinks, the kernel grows by as much; weights sum to one."""
    def taps(n, scale, align_corners):
        at = coordinates(n, scale, align_corners)
        shrink = min(scale, 1.0)
        base = mx.floor(at)
        radius = math.ceil(reach / shrink)
        found = []
        for k in range(1 - radius, radius + 1):
            index = base + k
            weight = kernel(mx.abs(at - index) * shrink)
            weight = mx.where((index >= 0) & (index <= n - 1), weight, 0)
            found.append((mx.clip(index, 0, n - 1).astype(mx.uint32), weight))
        total = sum(weight for _, weight in found)
        for index, weight in found:
            yield index, weight / total

    return taps


def interpolate(x, scale_factor, taps: Callable, align_corners=False):
    for axis, scale in enumerate(scale_factor, 1):
        column = [1] * x.ndim
        column[axis] = -1
        x = sum(mx.take(x, index, axis) * weight.reshape(column)
                for index, weight in taps(x.shape[axis], scale, align_corners))
    return x


def upsample_nearest(x: mx.array, scale_factor: tuple[float, ...]):
    """Each output is the input nearest to its middle; where there are fewer outputs, the first that it covers."""
    for axis, scale in enumerate(scale_factor, 1):
        n = x.shape[axis]
        if scale == int(scale):
            x = mx.repeat(x, int(scale), axis)
            continue
        m = int(scale * n)
        at = mx.arange(m, dtype=mx.float32)
        at = mx.round((at + 0.5) * (n / m) - 0.5) if m > n else at * (n / m)
        x = mx.take(x, at.astype(mx.uint32), axis)
    return x


def upsample_linear(x: mx.array, scale_factor: tuple[float, ...], align_corners: bool = False, antialias: bool = False):
    """Linear interpolation along each axis."""
    check_corners(align_corners, antialias)
    taps = wide_taps(triangle, 1) if antialias else plain_taps(triangle, 1)
    return interpolate(x, scale_factor, taps, align_corners)


def upsample_cubic(x: mx.array, scale_factor: tuple[float, ...], align_corners: bool = False, antialias: bool = False):
    """Cubic interpolation along each axis, with Keys' a = -0.75, or -0.5 when antialiased."""
    check_corners(align_corners, antialias)
    if antialias:
        taps = wide_taps(lambda d: cubic(d, -0.5), 2)
    else:
        taps = plain_taps(lambda d: cubic(d, -0.75), 2)
    return interpolate(x, scale_factor, taps, align_corners)


def check_corners(align_corners, antialias):
    if align_corners and antialias:
        raise ValueError("[Upsample] antialias=True with align_corners=True is not supported. "
                         "Use align_corners=False for antialiased interpolation.")


class Upsample(Module):
    """Resamples each spatial axis to int(scale * size) positions; one scale for all axes or one for each.

    With `antialias` a scale below one averages all the inputs that an output covers.
    """

    def __init__(self, scale_factor: float | tuple[float, ...], mode: Literal["nearest", "linear", "cubic"] = "nearest",
                 align_corners: bool = False, antialias: bool = False) -> None:
        super().__init__()
        if mode not in ("nearest", "linear", "cubic"):
            raise ValueError(f"[Upsample] Got unsupported upsampling algorithm: {mode}")
        if antialias and mode == "nearest":
            raise ValueError("[Upsample] Antialiasing is not supported for nearest neighbor upsampling")
        check_corners(align_corners, antialias)
        if isinstance(scale_factor, (list, tuple)):
            self.scale_factor = tuple(map(float, scale_factor))
        else:
            self.scale_factor = float(scale_factor)
        self.mode = mode
        self.align_corners = align_corners
        self.antialias = antialias

    def _extra_repr(self) -> str:
        text = f"scale_factor={self.scale_factor}, mode={self.mode!r}, align_corners={self.align_corners}"
        return text + ", antialias=True" if self.antialias else text

    def __call__(self, x: mx.array) -> mx.array:
        axes = x.ndim - 2
        if axes <= 0:
            raise ValueError("[Upsample] The input should have at least 1 spatial dimension which means it should be "
                             f"at least 3D but {x.ndim}D was provided")
        scales = self.scale_factor
        if not isinstance(scales, tuple):
            scales = (scales,) * axes
        elif len(scales) != axes:
            raise ValueError(f"[Upsample] One scale per spatial dimension is required but scale_factor={scales} "
                             f"and the number of spatial dimensions were {axes}")
        if self.mode == "nearest":
            return upsample_nearest(x, scales)
        upsample = upsample_linear if self.mode == "linear" else upsample_cubic
        return upsample(x, scales, self.align_corners, self.antialias)
