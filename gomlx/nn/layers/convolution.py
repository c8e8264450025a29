"""Convolutions over sequences, images and volumes whose channels come last.

A weight has the shape (out_channels, *kernel, in_channels / groups) and starts uniform within 1 / sqrt(fan in).
"""
import math

import gomlx.core as mx
from gomlx.nn.layers.base import Module


def per_axis(value, n):
    """An int for each of n axes; a tuple is taken as it is."""
    return (value,) * n if isinstance(value, int) else value


def weight_shape(weight, groups):
    """(in_channels, out_channels, kernel) of a convolution's weight."""
    return weight.shape[-1] * groups, weight.shape[0], weight.shape[1:-1]


class Conv1d(Module):
    """Convolution of sequences: (N, L, C) to (N, L', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
                 dilation: int = 1, groups: int = 1, bias: bool = True):
        super().__init__()
        if in_channels % groups != 0:
            raise ValueError(f"The number of input channels ({in_channels}) must be divisible by the number of groups "
                             f"({groups})")
        scale = math.sqrt(groups / (in_channels * kernel_size))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, kernel_size, in_channels // groups))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = padding
        self.dilation = dilation
        self.stride = stride
        self.groups = groups

    def _extra_repr(self):
        in_channels, out_channels, (kernel,) = weight_shape(self.weight, self.groups)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, groups={self.groups}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv1d(x, self.weight, self.stride, self.padding, self.dilation, self.groups)
        return y + self.bias if "bias" in self else y


class Conv2d(Module):
    """Convolution of images: (N, H, W, C) to (N, H', W', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | tuple, stride: int | tuple = 1,
                 padding: int | tuple = 0, dilation: int | tuple = 1, groups: int = 1, bias: bool = True):
        super().__init__()
        if in_channels % groups != 0:
            raise ValueError(f"The number of input channels ({in_channels}) must be divisible by the number of groups "
                             f"({groups})")
        kernel_size = per_axis(kernel_size, 2)
        scale = math.sqrt(groups / (in_channels * math.prod(kernel_size)))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *kernel_size, in_channels // groups))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = per_axis(padding, 2)
        self.stride = per_axis(stride, 2)
        self.dilation = dilation
        self.groups = groups

    def _extra_repr(self):
        in_channels, out_channels, kernel = weight_shape(self.weight, self.groups)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, groups={self.groups}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv2d(x, self.weight, self.stride, self.padding, self.dilation, self.groups)
        return y + self.bias if "bias" in self else y


class Conv3d(Module):
    """Convolution of volumes: (N, D, H, W, C) to (N, D', H', W', out_channels)."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int | tuple, stride: int | tuple = 1,
                 padding: int | tuple = 0, dilation: int | tuple = 1, bias: bool = True):
        super().__init__()
        kernel_size = per_axis(kernel_size, 3)
        scale = math.sqrt(1 / (in_channels * math.prod(kernel_size)))
        self.weight = mx.random.uniform(-scale, scale, (out_channels, *kernel_size, in_channels))
        if bias:
            self.bias = mx.zeros((out_channels,))
        self.padding = per_axis(padding, 3)
        self.stride = per_axis(stride, 3)
        self.dilation = dilation

    def _extra_repr(self):
        in_channels, out_channels, kernel = weight_shape(self.weight, 1)
        return (f"{in_channels}, {out_channels}, kernel_size={kernel}, stride={self.stride}, padding={self.padding}, "
                f"dilation={self.dilation}, bias={'bias' in self}")

    def __call__(self, x):
        y = mx.conv3d(x, self.weight, self.stride, self.padding, self.dilation)
        return y + self.bias if "bias" in self else y
