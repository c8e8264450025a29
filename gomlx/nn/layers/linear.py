"""Affine and bilinear maps. Weights and biases start uniform within 1 / sqrt(inputs)."""
from __future__ import annotations

import math
from typing import Any

import gomlx.core as mx
from gomlx._base.arguments import integer
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.quantized import QQLinear, QuantizedLinear


class Identity(Module):
    """Returns its input; takes any arguments when made."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def __call__(self, x: mx.array) -> mx.array:
        return x


class Linear(Module):
    """x @ weight.T + bias; weight is (output_dims, input_dims)."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        integer("Linear: input_dims", input_dims, 1)
        integer("Linear: output_dims", output_dims, 0)
        scale = math.sqrt(1 / input_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input_dims))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    def _extra_repr(self) -> str:
        return f"input_dims={self.weight.shape[1]}, output_dims={self.weight.shape[0]}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        if "bias" in self:
            return mx.addmm(self["bias"], x, self["weight"].T)
        return x @ self["weight"].T

    def to_quantized(self, group_size: int | None = None, bits: int | None = None, mode: str = "affine",
                     quantize_input: bool = False) -> Module:
        """This layer with quantised weights; with quantize_input its inputs are quantised too (nvfp4 and mxfp8)."""
        if not quantize_input:
            return QuantizedLinear.from_linear(self, group_size, bits, mode)
        if mode not in ("nvfp4", "mxfp8"):
            raise ValueError(f"Quantized activations are only supported for 'nvfp4' and 'mxfp8' modes, got {mode}.")
        return QQLinear.from_linear(self, group_size, bits, mode)


class Bilinear(Module):
    """y[i] = x2 @ weight[i] @ x1 + bias[i]; weight is (output_dims, input2_dims, input1_dims)."""

    def __init__(self, input1_dims: int, input2_dims: int, output_dims: int, bias: bool = True) -> None:
        super().__init__()
        for name, value in (("input1_dims", input1_dims), ("input2_dims", input2_dims), ("output_dims", output_dims)):
            integer(f"Bilinear: {name}", value, 0 if name == "output_dims" else 1)
        scale = math.sqrt(1 / input1_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input2_dims, input1_dims))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    def _extra_repr(self) -> str:
        out, in2, in1 = self.weight.shape
        return f"input1_dims={in1}, input2_dims={in2}, output_dims={out}, bias={'bias' in self}"

    def __call__(self, x1: mx.array, x2: mx.array) -> mx.array:
        out, in2, in1 = self.weight.shape
        lead = x1.shape[:-1]
        # One product for all outputs, then x2 against each of them.
        y = (x1.reshape(-1, in1) @ self.weight.reshape(out * in2, in1).T).reshape(-1, out, in2)
        y = (y @ x2.reshape(-1, in2, 1)).reshape(*lead, out)
        return y + self.bias if "bias" in self else y
