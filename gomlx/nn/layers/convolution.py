"""Convolutions over sequences, images and volumes whose channels come last.

A weight has the shape (out_channels, *kernel, in_channels / groups) and starts uniform within 1 / sqrt(fan in).
"""
from __future__ import annotations

import math

import gomlx.core as mx
from gomlx._base.arguments import integer
from gomlx.nn.layers.base import Module

Sizes = int | tuple[int, ...]         # for all axes, or for each


class Convolution(Module):
    """What the convolutions and the transposed ones share.

    A class says how many spatial axes it has, which function of gomlx.core computes it, and which of its attributes
    that function takes after x and the weight; the repr shows them in the same order.
    """

    _axes = 1
    _function = None
    _options = ("stride", "padding", "dilation", "groups")

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True) -> None:
        super().__init__()
        self._build(in_channels, out_channels, kernel_size, bias, padding=padding, stride=stride, dilation=dilation,
                    groups=groups)

    def _build(self, in_channels, out_channels, kernel_size, bias, **options):
        """Makes the parameters and keeps the options: paddings and strides as one number for each axis."""
        groups = options.get("groups", 1)
        for name, value, least in (("in_channels", in_channels, 1), ("out_channels", out_channels, 0),
                                   ("groups", groups, 1)):
            integer(f"{type(self).__name__}: {name}", value, least)
        if in_channels % groups != 0:
            raise ValueError(f"The number of input channels ({in_channels}) must be divisible by the number of groups "
                             f"({groups})")
        kernel = self._per_axis(kernel_size)
        kernel = (kernel,) if self._axes == 1 else kernel
        scale = math.sqrt(groups / (in_channels * math.prod(kernel)))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *kernel, in_channels // groups))
        if bias:
            self.bias = mx.zeros((out_channels,))
        for name, value in options.items():
            setattr(self, name, value if name in ("dilation", "groups") else self._per_axis(value))

    def _per_axis(self, value):
        """An int for each axis, where there are several; a tuple is taken as it is."""
        return (value,) * self._axes if isinstance(value, int) and self._axes > 1 else value

    def _extra_repr(self):
        out_channels, *kernel, in_channels = self.weight.shape
        options = ", ".join(f"{name}={getattr(self, name)}" for name in self._options)
        return (f"{in_channels * getattr(self, 'groups', 1)}, {out_channels}, "
                f"kernel_size={kernel[0] if self._axes == 1 else tuple(kernel)}, {options}, bias={'bias' in self}")

    def __call__(self, x: mx.array) -> mx.array:
        y = self._function(x, self.weight, *(getattr(self, name) for name in self._options))
        return y + self.bias if "bias" in self else y


class Conv1d(Convolution):
    """Convolution of sequences: (N, L, C) to (N, L', out_channels)."""

    _function = staticmethod(mx.conv1d)


class Conv2d(Convolution):
    """Convolution of images: (N, H, W, C) to (N, H', W', out_channels)."""

    _axes = 2
    _function = staticmethod(mx.conv2d)


class Conv3d(Convolution):
    """Convolution of volumes: (N, D, H, W, C) to (N, D', H', W', out_channels). It has no groups."""

    _axes = 3
    _function = staticmethod(mx.conv3d)
    _options = ("stride", "padding", "dilation")

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, dilation: Sizes = 1, bias: bool = True) -> None:
        Module.__init__(self)
        self._build(in_channels, out_channels, kernel_size, bias, padding=padding, stride=stride, dilation=dilation)
