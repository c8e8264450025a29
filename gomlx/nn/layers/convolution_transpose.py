"""Transposed convolutions: what carries a convolution's output shape back to its input's.

Channels come last; a weight has the shape (out_channels, *kernel, in_channels) and starts uniform within
1 / sqrt(in_channels * kernel).
"""
from __future__ import annotations

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.convolution import Convolution, Sizes


class Transposed(Convolution):
    """What the three share: they have no groups, but an output padding, zeros at the end of each axis."""

    _options = ("stride", "padding", "dilation", "output_padding")

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
                 padding: Sizes = 0, dilation: Sizes = 1, output_padding: Sizes = 0,
                 bias: bool = True) -> None:
        Module.__init__(self)
        self._build(in_channels, out_channels, kernel_size, bias, padding=padding, stride=stride, dilation=dilation,
                    output_padding=output_padding)


class ConvTranspose1d(Transposed):
    """Transposed convolution of sequences: (N, L, C) to (N, L', out_channels)."""

    _function = staticmethod(mx.conv_transpose1d)


class ConvTranspose2d(Transposed):
    """Transposed convolution of images: (N, H, W, C) to (N, H', W', out_channels)."""

    _axes = 2
    _function = staticmethod(mx.conv_transpose2d)


class ConvTranspose3d(Transposed):
    """Transposed convolution of volumes: (N, D, H, W, C) to (N, D', H', W', out_channels)."""

    _axes = 3
    _function = staticmethod(mx.conv_transpose3d)
