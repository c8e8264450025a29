"""Dropout: in training, elements or whole channels become zero at random, and the rest grow to keep the mean.

Hinton et al., https://arxiv.org/abs/1207.0580; by channels: Tompson et al., https://arxiv.org/abs/1411.4280.
"""
from __future__ import annotations

import gomlx.core as mx
from gomlx.nn.layers.base import Module


class Dropout(Module):
    """Zeroes each element with probability p."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if p < 0 or p >= 1:
            raise ValueError(f"The dropout probability {p} is not in [0, 1)")
        self._p_1 = 1 - p

    def _extra_repr(self) -> str:
        return f"p={1 - self._p_1}"

    def _mask_shape(self, shape):
        return shape

    def __call__(self, x: mx.array) -> mx.array:
        shape = self._mask_shape(x.shape)
        if self._p_1 == 1 or not self.training:
            return x
        keep = mx.random.bernoulli(self._p_1, shape)
        return (keep * x) * (1 / self._p_1)


class Dropout2d(Dropout):
    """Zeroes each channel of (N, H, W, C) or (H, W, C) with probability p."""

    SPATIAL = 2

    def _mask_shape(self, shape):
        n = self.SPATIAL
        if len(shape) not in (n + 1, n + 2):
            raise ValueError(f"Received input with {len(shape)} dimensions. Expected {n + 1} or {n + 2} dimensions.")
        return (*shape[:-1 - n], *[1] * n, shape[-1])


class Dropout3d(Dropout2d):
    """Zeroes each channel of (N, D, H, W, C) or (D, H, W, C) with probability p."""

    SPATIAL = 3
