"""Attention with many heads, and the transformer of https://arxiv.org/abs/1706.03762."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx.nn.layers.activations import relu
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.dropout import Dropout
from gomlx.nn.layers.linear import Linear
from gomlx.nn.layers.normalization import LayerNorm
from gomlx.nn.utils import checkpoint as checkpointed


class MultiHeadAttention(Module):
    """Scaled dot product attention of `num_heads` projections of queries, keys and values.

    The mask is added to the scores, or is boolean; it broadcasts with (batch, heads, queries, keys).
    """

    def __init__(self, dims: int, num_heads: int, query_input_dims: int | None = None,
                 key_input_dims: int | None = None, value_input_dims: int | None = None,
                 value_dims: int | None = None, value_output_dims: int | None = None, bias: bool = False) -> None:
        super().__init__()
        if dims % num_heads != 0:
            raise ValueError("The input feature dimensions should be divisible by the number of heads "
                             f"({dims} % {num_heads}) != 0")
        key_input_dims = key_input_dims or dims
        value_dims = value_dims or dims
        self.num_heads = num_heads
        self.query_proj = Linear(query_input_dims or dims, dims, bias=bias)
        self.key_proj = Linear(key_input_dims, dims, bias=bias)
        self.value_proj = Linear(value_input_dims or key_input_dims, value_dims, bias=bias)
        self.out_proj = Linear(value_dims, value_output_dims or dims, bias=bias)

    def __call__(self, queries: mx.array, keys: mx.array, values: mx.array, mask: mx.array | None = None) -> mx.array:
        def heads(x):
            return mx.unflatten(x, -1, (self.num_heads, -1)).transpose(0, 2, 1, 3)

        queries = heads(self.query_proj(queries))
        keys = heads(self.key_proj(keys))
        values = heads(self.value_proj(values))
        scale = math.sqrt(1 / queries.shape[-1])
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale, mask=mask)
        return self.out_proj(out.transpose(0, 2, 1, 3).flatten(-2, -1))

    @staticmethod
    def create_additive_causal_mask(N: int, dtype: mx.Dtype = mx.float32) -> mx.array:
        """(N, N): the dtype's least value where the key comes after the query, zero elsewhere."""
        index = mx.arange(N)
        return (index[:, None] < index[None]).astype(dtype) * mx.finfo(dtype).min


class TransformerEncoderLayer(Module):
    """Attention of a sequence to itself, then an MLP, each added to what it read."""

    def __init__(self, dims: int, num_heads: int, mlp_dims: int | None = None, dropout: float = 0.0,
                 activation: Callable[[Any], Any] = relu, norm_first: bool = True) -> None:
        super().__init__()
        mlp_dims = mlp_dims or dims * 4
        self.attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.linear1 = Linear(dims, mlp_dims)
        self.linear2 = Linear(mlp_dims, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.activation = activation
        self.norm_first = norm_first

    def _attend(self, x, mask):
        return self.dropout1(self.attention(x, x, x, mask))

    def _mlp(self, x):
        return self.linear2(self.dropout2(self.activation(self.linear1(x))))

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        if self.norm_first:
            x = x + self._attend(self.ln1(x), mask)
            return x + self._mlp(self.ln2(x))
        x = self.ln1(x + self._attend(x, mask))
        return self.ln2(x + self._mlp(x))


class TransformerEncoder(Module):
    """Encoder layers, then a LayerNorm. With `checkpoint` the layers are computed again in the backward pass."""

    def __init__(self, num_layers: int, dims: int, num_heads: int, mlp_dims: int | None = None,
                 dropout: float = 0.0, activation: Callable[[Any], Any] = relu, norm_first: bool = True,
                 checkpoint: bool = False) -> None:
        super().__init__()
        self.layers = [TransformerEncoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
                       for _ in range(num_layers)]
        self.ln = LayerNorm(dims)
        self.checkpoint = checkpoint

    def __call__(self, x: mx.array, mask: mx.array | None) -> mx.array:
        for layer in self.layers:
            x = (checkpointed(layer) if self.checkpoint else layer)(x, mask)
        return self.ln(x)


class TransformerDecoderLayer(Module):
    """Attention of a sequence to itself and to `memory`, then an MLP, each added to what it read."""

    def __init__(self, dims: int, num_heads: int, mlp_dims: int | None = None, dropout: float = 0.0,
                 activation: Callable[[Any], Any] = relu, norm_first: bool = True) -> None:
        super().__init__()
        mlp_dims = mlp_dims or dims * 4
        self.self_attention = MultiHeadAttention(dims, num_heads)
        self.cross_attention = MultiHeadAttention(dims, num_heads)
        self.ln1 = LayerNorm(dims)
        self.ln2 = LayerNorm(dims)
        self.ln3 = LayerNorm(dims)
        self.linear1 = Linear(dims, mlp_dims)
        self.linear2 = Linear(mlp_dims, dims)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)
        self.activation = activation
        self.norm_first = norm_first

    def _attend(self, x, mask):
        return self.dropout1(self.self_attention(x, x, x, mask))

    def _recall(self, x, memory, mask):
        return self.dropout2(self.cross_attention(x, memory, memory, mask))

    def _mlp(self, x):
        return self.linear2(self.dropout3(self.activation(self.linear1(x))))

    def __call__(self, x: mx.array, memory: mx.array, x_mask: mx.array | None,
                 memory_mask: mx.array | None) -> mx.array:
        if self.norm_first:
            x = x + self._attend(self.ln1(x), x_mask)
            x = x + self._recall(self.ln2(x), memory, memory_mask)
            return x + self._mlp(self.ln3(x))
        x = self.ln1(x + self._attend(x, x_mask))
        x = self.ln2(x + self._recall(x, memory, memory_mask))
        return self.ln3(x + self._mlp(x))


class TransformerDecoder(Module):
    """Decoder layers, then a LayerNorm. With `checkpoint` the layers are computed again in the backward pass."""

    def __init__(self, num_layers: int, dims: int, num_heads: int, mlp_dims: int | None = None,
                 dropout: float = 0.0, activation: Callable[[Any], Any] = relu, norm_first: bool = True,
                 checkpoint: bool = False) -> None:
        super().__init__()
        self.layers = [TransformerDecoderLayer(dims, num_heads, mlp_dims, dropout, activation, norm_first)
                       for _ in range(num_layers)]
        self.ln = LayerNorm(dims)
        self.checkpoint = checkpoint

    def __call__(self, x: mx.array, memory: mx.array, x_mask: mx.array | None,
                 memory_mask: mx.array | None) -> mx.array:
        for layer in self.layers:
            x = (checkpointed(layer) if self.checkpoint else layer)(x, memory, x_mask, memory_mask)
        return self.ln(x)


class Transformer(Module):
    """Encoder and decoder: the encoder reads `src`, the decoder `tgt` and what the encoder made."""

    def __init__(self, dims: int = 512, num_heads: int = 8, num_encoder_layers: int = 6,
                 num_decoder_layers: int = 6, mlp_dims: int | None = None, dropout: float = 0.0,
                 activation: Callable[[Any], Any] = relu, custom_encoder: Any | None = None,
                 custom_decoder: Any | None = None, norm_first: bool = True, checkpoint: bool = False) -> None:
        super().__init__()
        rest = (dims, num_heads, mlp_dims, dropout, activation, norm_first, checkpoint)
        self.encoder = TransformerEncoder(num_encoder_layers, *rest) if custom_encoder is None else custom_encoder
        self.decoder = TransformerDecoder(num_decoder_layers, *rest) if custom_decoder is None else custom_decoder

    def __call__(self, src: mx.array, tgt: mx.array, src_mask: mx.array | None, tgt_mask: mx.array | None,
                 memory_mask: mx.array | None) -> mx.array:
        memory = self.encoder(src, src_mask)
        return self.decoder(tgt, memory, tgt_mask, memory_mask)
