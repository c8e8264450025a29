"""Normalisation: activations to mean 0 and variance 1 over some of their axes, then a learned scale and shift.

They differ in what they average over. Channels are the last axis, the batch is the first.
"""
from __future__ import annotations

from typing import Any

import gomlx.core as mx
from gomlx.nn.layers.base import Module


def check_eps(module, eps):
    if eps <= 0:
        raise ValueError(f"[{type(module).__name__}] 'eps' must be positive but got {eps}.")


def standardize(x, axes, eps):
    """x less its mean, over the square root of its variance, along the axes; of half precision by way of float32."""
    dtype = x.dtype
    if dtype in (mx.float16, mx.bfloat16):
        return standardize(x.astype(mx.float32), axes, eps).astype(dtype)
    mean = mx.mean(x, axis=axes, keepdims=True)
    variance = mx.var(x, axis=axes, keepdims=True)
    return (x - mean) * mx.rsqrt(variance + eps)


class InstanceNorm(Module):
    """Over the positions of each channel of each example: https://arxiv.org/abs/1607.08022."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__()
        check_eps(self, eps)
        if affine:
            self.weight = mx.ones((dims,))
            self.bias = mx.zeros((dims,))
        self.dims = dims
        self.eps = eps

    def _extra_repr(self):
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        if x.ndim < 3:
            raise ValueError("InstanceNorm expects inputs with at least 3 dimensions (N, ..., C) "
                             f"but the input has {x.ndim} dimensions.")
        y = standardize(x, list(range(1, x.ndim - 1)), self.eps)
        return self.weight * y + self.bias if "weight" in self else y


class LayerNorm(Module):
    """Over the channels of each position: https://arxiv.org/abs/1607.06450."""

    def __init__(self, dims: int, eps: float = 1e-5, affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        check_eps(self, eps)
        if affine:
            self.weight = mx.ones((dims,))
            if bias:
                self.bias = mx.zeros((dims,))
        self.eps = eps
        self.dims = dims

    def _extra_repr(self):
        return f"{self.dims}, eps={self.eps}, affine={'weight' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.layer_norm(x, self.get("weight"), self.get("bias"), self.eps)


class RMSNorm(Module):
    """x over its root mean square along the channels, times a learned scale: https://arxiv.org/abs/1910.07467."""

    def __init__(self, dims: int, eps: float = 1e-5) -> None:
        super().__init__()
        check_eps(self, eps)
        self.weight = mx.ones((dims,))
        self.eps = eps

    def _extra_repr(self):
        return f"{self.weight.shape[0]}, eps={self.eps}"

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self["weight"], self.eps)


class GroupNorm(Module):
    """Over the positions and a group of channels of each example: https://arxiv.org/abs/1803.08494.

    Channel c is in group c % num_groups; with pytorch_compatible, groups are runs of neighbouring channels instead.
    """

    def __init__(self, num_groups: int, dims: int, eps: float = 1e-5, affine: bool = True,
                 pytorch_compatible: bool = False) -> None:
        super().__init__()
        check_eps(self, eps)
        for what, count in ("groups", num_groups), ("features", dims):
            if count <= 0:
                raise ValueError(f"The number of {what} ({count}) must be a positive integer.")
        if dims % num_groups != 0:
            raise ValueError(f"The number of features ({dims}) must be evenly divisible by the number of groups "
                             f"({num_groups}).")
        if affine:
            self.bias = mx.zeros((dims,))
            self.weight = mx.ones((dims,))
        self.num_groups = num_groups
        self.dims = dims
        self.eps = eps
        self.pytorch_compatible = pytorch_compatible

    def _extra_repr(self):
        return (f"{self.num_groups}, {self.dims}, eps={self.eps}, affine={'weight' in self}, "
                f"pytorch_compatible={self.pytorch_compatible}")

    def _neighbours(self, x):
        batch, *rest, dims = x.shape
        size = dims // self.num_groups
        groups = x.reshape(batch, -1, self.num_groups, size).transpose(0, 2, 1, 3).reshape(batch, self.num_groups, -1)
        groups = mx.fast.layer_norm(groups, eps=self.eps, weight=None, bias=None)
        return groups.reshape(batch, self.num_groups, -1, size).transpose(0, 2, 1, 3).reshape(batch, *rest, dims)

    def _strided(self, x):
        return standardize(x.reshape(x.shape[0], -1, self.num_groups), 1, self.eps).reshape(x.shape)

    def __call__(self, x: mx.array) -> mx.array:
        y = self._neighbours(x) if self.pytorch_compatible else self._strided(x)
        return self.weight * y + self.bias if "weight" in self else y


class BatchNorm(Module):
    """Over the batch and the positions of each channel: https://arxiv.org/abs/1502.03167.

    In training, by the batch's own statistics, which running ones follow by `momentum`; otherwise by the running ones
    (unless track_running_stats is off). Input is (N, C), (N, L, C) or (N, H, W, C). The running ones are never trained.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True) -> None:
        super().__init__()
        check_eps(self, eps)
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.track_running_stats = track_running_stats
        if affine:
            self.weight = mx.ones((num_features,))
            self.bias = mx.zeros((num_features,))
        if track_running_stats:
            self.running_mean = mx.zeros((num_features,))
            self.running_var = mx.ones((num_features,))
            self._freeze_running()

    def _freeze_running(self):
        self.freeze(keys=["running_mean", "running_var"], recurse=False)

    def unfreeze(self, *args: Any, **kwargs: Any) -> Module:
        """Module.unfreeze, but the running statistics stay frozen."""
        super().unfreeze(*args, **kwargs)
        if self.track_running_stats:
            self._freeze_running()

    def _extra_repr(self):
        return (f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={'weight' in self}, "
                f"track_running_stats={self.track_running_stats}")

    def __call__(self, x: mx.array) -> mx.array:
        if x.ndim < 2 or x.ndim > 4:
            raise ValueError(f"Expected input tensor to have 2, 3 or 4 dimensions, but got {x.ndim}")
        if self.training or not self.track_running_stats:
            axes = list(range(x.ndim - 1))
            if self.training and x.size == x.shape[-1]:
                raise ValueError("BatchNorm training requires more than one value per channel.")
            mean, variance = mx.mean(x, axis=axes), mx.var(x, axis=axes)
            if self.training and self.track_running_stats:
                self._follow(mean, mx.var(x, axis=axes, ddof=1))
        else:
            mean, variance = self.running_mean, self.running_var
        y = (x - mean) * mx.rsqrt(variance + self.eps)
        return self.weight * y + self.bias if "weight" in self else y

    def _follow(self, mean, variance):
        mu = self.momentum
        self.running_mean = (1 - mu) * self.running_mean + mu * mean
        self.running_var = (1 - mu) * self.running_var + mu * variance
