"""Transposed convolutions: what carries a convolution's output shape back to its input's.

Channels come last; a weight has the shape (out_channels, *kernel, in_channels) and starts uniform within
1 / sqrt(in_channels * kernel).
"""
import math

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.convolution import per_axis, weight_shape


class ConvTranspose1d(Module):
    """Transposed convolution of sequences: (N, L, C) to (N, L', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, output_padding: int = 0, bias: bool = True):
        super().__init__()
        scale = math.sqrt(1 / (in_channels * kernel_size))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, kernel_size, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = padding
        self.dilation = dilation
        self.stride = stride
        self.output_padding = output_padding

    def _extra_repr(self):
        in_channels, out_channels, (kernel,) = weight_shape(self.weight, 1)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, output_padding={self.output_padding}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv_transpose1d(x, self.weight, self.stride, self.padding, self.dilation, self.output_padding)
        return y + self.bias if "bias" in self else y


class ConvTranspose2d(Module):
    """Transposed convolution of images: (N, H, W, C) to (N, H', W', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | tuple, stride: int | tuple = 1,
                 padding: int | tuple = 0, dilation: int | tuple = 1, output_padding: int | tuple = 0,
                 bias: bool = True):
        super().__init__()
        kernel_size = per_axis(kernel_size, 2)
        scale = math.sqrt(1 / (in_channels * math.prod(kernel_size)))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *kernel_size, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = per_axis(padding, 2)
        self.stride = per_axis(stride, 2)
        self.output_padding = per_axis(output_padding, 2)
        self.dilation = dilation

    def _extra_repr(self):
        in_channels, out_channels, kernel = weight_shape(self.weight, 1)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, output_padding={self.output_padding}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv_transpose2d(x, self.weight, self.stride, self.padding, self.dilation, self.output_padding)
        return y + self.bias if "bias" in self else y


class ConvTranspose3d(Module):
    """Transposed convolution of volumes: (N, D, H, W, C) to (N, D', H', W', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | tuple, stride: int | tuple = 1,
                 padding: int | tuple = 0, dilation: int | tuple = 1, output_padding: int | tuple = 0,
                 bias: bool = True):
        super().__init__()
        kernel_size = per_axis(kernel_size, 3)
        scale = math.sqrt(1 / (in_channels * math.prod(kernel_size)))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *kernel_size, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = per_axis(padding, 3)
        self.stride = per_axis(stride, 3)
        self.output_padding = per_axis(output_padding, 3)
        self.dilation = dilation

    def _extra_repr(self):
        in_channels, out_channels, kernel = weight_shape(self.weight, 1)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, output_padding={self.output_padding}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv_transpose3d(x, self.weight, self.stride, self.padding, self.dilation, self.output_padding)
        return y + self.bias if "bias" in self else y
