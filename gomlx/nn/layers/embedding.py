"""Embedding: a row of a table for each index."""
from __future__ import annotations

import math

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.quantized import QuantizedEmbedding


class Embedding(Module):
    """A table of num_embeddings rows of dims values; it starts normal with variance 1 / dims."""

    def __init__(self, num_embeddings: int, dims: int) -> None:
        super().__init__()
        self.weight = mx.random.normal(shape=(num_embeddings, dims), scale=math.sqrt(1 / dims))

    def _extra_repr(self):
        rows, dims = self.weight.shape
        return f"{rows}, {dims}"

    def __call__(self, x: mx.array) -> mx.array:
        return self["weight"][x]

    def as_linear(self, x: mx.array) -> mx.array:
        """x @ weight.T: the table as an output projection that shares its weights with the input."""
        return x @ self["weight"].T

    def to_quantized(self, group_size: int | None = None, bits: int | None = None, mode: str = "affine",
                     quantize_input: bool = False) -> Module:
        """This table quantised: a QuantizedEmbedding."""
        if quantize_input:
            raise ValueError("Quantized input is not supported.")
        return QuantizedEmbedding.from_embedding(self, group_size, bits, mode=mode)
