"""Positions of tokens: rotations, sinusoids, or biases on attention scores."""
from __future__ import annotations

import math

import gomlx.core as mx
from gomlx.nn.layers.base import Module


class RoPE(Module):
    """Rotates pairs of the first `dims` features by angles that grow with the position.

    https://arxiv.org/abs/2104.09864. A pair is feature i and i + dims / 2; with `traditional`, 2i and 2i + 1.
    """

    def __init__(self, dims: int, traditional: bool = False, base: float = 10000, scale: float = 1.0) -> None:
        super().__init__()
        self.dims = dims
        self.traditional = traditional
        self.base = base
        self.scale = scale

    def _extra_repr(self):
        return f"{self.dims}, traditional={self.traditional}"

    def __call__(self, x: mx.array, offset: int = 0) -> mx.array:
        return mx.fast.rope(x, self.dims, traditional=self.traditional, base=self.base, scale=self.scale,
                            offset=offset)


class SinusoidalPositionalEncoding(Module):
    """Sines and cosines of positions at `dims` / 2 frequencies, geometric from max_freq to min_freq.

    https://arxiv.org/abs/1706.03762. `scale` multiplies the result, sqrt(2 / dims) by default.
    """

    def __init__(self, dims: int, min_freq: float = 0.0001, max_freq: float = 1, scale: float | None = None,
                 cos_first: bool = False, full_turns: bool = False) -> None:
        super().__init__()
        if dims <= 0 or dims % 2 != 0:
            raise ValueError(f"[SinusoidalPositionalEncoding] dims must be positive and even but got {dims}.")
        n = dims // 2
        fraction = 1 - mx.arange(0, n) / max(n - 1, 1)             # from 1, the highest frequency, to 0
        low, high = math.log(min_freq), math.log(max_freq)
        self._sigmas = mx.exp(fraction * (high - low) + low)
        if full_turns:
            self._sigmas = self._sigmas * (2 * math.pi)
        self.scale = (2 / dims) ** 0.5 if scale is None else scale
        self.cos_first = cos_first

    def __call__(self, x: mx.array) -> mx.array:
        angles = x[..., None] * self._sigmas
        halves = [mx.sin(angles), mx.cos(angles)]
        y = mx.concatenate(halves[::-1] if self.cos_first else halves, axis=-1)
        return y if self.scale == 1 else y * self.scale


class ALiBi(Module):
    """Attention scores less a slope, one per head, times the distance: https://arxiv.org/abs/2108.12409."""

    @staticmethod
    def create_alibi_matrix(q_sequence_length: int, k_sequence_length: int, num_heads: int, offset: int = 0,
                            dtype: mx.Dtype = mx.float32) -> mx.array:
        """The biases, (1, heads, queries, keys); queries are at `offset` up to q_sequence_length."""
        queries = mx.arange(offset, q_sequence_length)
        keys = mx.arange(0, k_sequence_length)
        distance = -mx.abs(mx.expand_dims(queries[:, None] - keys[None, :], (0, 1)))
        return (distance * ALiBi.create_alibi_slope(num_heads)).astype(dtype)

    @staticmethod
    def create_alibi_slope(num_heads: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """2**(-8 i / n) for n heads, (heads, 1, 1).

        Where n is not a power of two: those of the next lower power, then every second one of the next higher.
        """
        def geometric(n):
            return [2 ** (-8 * (i + 1) / n) for i in range(n)]

        below = 1 << (num_heads.bit_length() - 1)
        slopes = geometric(below) + geometric(2 * below)[::2][:num_heads - below]
        return mx.array(slopes, dtype=dtype)[:, None, None]

    def __call__(self, attention_scores: mx.array, offset: int = 0, mask: mx.array | None = None) -> mx.array:
        bias = ALiBi.create_alibi_matrix(q_sequence_length=attention_scores.shape[-2] + offset,
                                         k_sequence_length=attention_scores.shape[-1],
                                         num_heads=attention_scores.shape[1], offset=offset,
                                         dtype=attention_scores.dtype)
        return attention_scores + (bias if mask is None else bias + mask)
