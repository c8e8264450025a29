"""Layers whose weights are quantised, and quantize(), which makes them of the layers of a model.

A quantised weight is three arrays: the packed integers `weight`, and per group of inputs `scales` and, for the mode
"affine", `biases` (see gomlx.core.quantize).
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.utils import tree_map_with_path

DEFAULTS = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}    # mode: group size, bits


def complete(mode, group_size, bits):
    """Group size and bits, the mode's own where they are None."""
    if mode not in DEFAULTS:
        raise ValueError(f"Invalid quantization mode '{mode}'. Valid modes are: {', '.join(DEFAULTS)}.")
    return group_size or DEFAULTS[mode][0], bits or DEFAULTS[mode][1]


def quantize(model: Module, group_size: int | None = None, bits: int | None = None, *, mode: str = "affine",
             quantize_input: bool = False,
             class_predicate: Callable[[str, Module], bool | dict[str, Any]] | None = None) -> None:
    """Replaces, in place, the layers of `model` that have a to_quantized() by what that returns.

    class_predicate(path, module) chooses: False keeps the layer, True quantises it, and a dict are the arguments for
    its to_quantized(). Without one, all layers that can be quantised are.
    """
    if class_predicate is None:
        def class_predicate(_, module):
            return hasattr(module, "to_quantized")

    options = {"group_size": group_size, "bits": bits, "mode": mode}
    if quantize_input:                  # other packages' layers need not know it
        options["quantize_input"] = True

    def convert(path, module):
        choice = class_predicate(path, module)
        if not choice:
            return module
        if not hasattr(module, "to_quantized"):
            raise ValueError(f"Unable to quantize model of type {type(module)}")
        if isinstance(choice, dict):
            return module.to_quantized(**choice)
        if not isinstance(choice, bool):
            raise ValueError("``class_predicate`` must return a bool or a dict of parameters to pass to "
                             f"``to_quantized``, not {choice!r}")
        return module.to_quantized(**options)

    leaves = model.leaf_modules()
    model.update_modules(tree_map_with_path(convert, leaves, is_leaf=Module.is_module))


def pack(module, weight):
    """Gives `module` the arrays of the weight quantised as the module says."""
    packed = mx.quantize(weight, module.group_size, module.bits, mode=module.mode)
    module.weight, module.scales, *biases = packed
    module.biases = biases[0] if biases else None


def unpack(module, rows=...):
    """The weight, or the rows of it, in floating point."""
    biases = module.get("biases")
    return mx.dequantize(module["weight"][rows], module["scales"][rows],
                         None if biases is None else biases[rows],
                         group_size=module.group_size, bits=module.bits, mode=module.mode)


def multiply(module, x):
    """x times the transposed weight."""
    return mx.quantized_matmul(x, module["weight"], module["scales"], module.get("biases"), True, module.group_size,
                               module.bits, module.mode)


def describe(module):
    return f"group_size={module.group_size}, bits={module.bits}, mode={module.mode}"


class QuantizedEmbedding(Module):
    """An Embedding whose table is quantised, and frozen."""

    def __init__(self, num_embeddings: int, dims: int, group_size: int | None = None, bits: int | None = None,
                 mode: str = "affine") -> None:
        super().__init__()
        self.group_size, self.bits = complete(mode, group_size, bits)
        self.mode = mode
        pack(self, mx.random.normal(shape=(num_embeddings, dims), scale=math.sqrt(1 / dims)))
        self.num_embeddings = num_embeddings
        self.dims = dims
        self.freeze()

    def __call__(self, x: mx.array) -> mx.array:
        return unpack(self, x)

    def as_linear(self, x: mx.array) -> mx.array:
        """x times the transposed table."""
        return multiply(self, x)

    def _extra_repr(self):
        return f"{self.num_embeddings}, {self.dims}, {describe(self)}"

    @classmethod
    def from_embedding(cls, embedding_layer: Module, group_size: int | None = None, bits: int | None = None,
                       mode: str = "affine") -> QuantizedEmbedding:
        """The quantised layer of an Embedding."""
        layer = cls(*embedding_layer.weight.shape, group_size, bits, mode=mode)
        pack(layer, embedding_layer.weight)
        return layer


class QuantizedLinear(Module):
    """A Linear whose weight is quantised, and frozen."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True, group_size: int | None = None,
                 bits: int | None = None, mode: str = "affine") -> None:
        super().__init__()
        self.group_size, self.bits = complete(mode, group_size, bits)
        self.mode = mode
        scale = math.sqrt(1 / input_dims)
        pack(self, mx.random.uniform(-scale, scale, (output_dims, input_dims)))
        if bias:
            self.bias = mx.zeros((output_dims,))
        self.freeze()

    def _extra_repr(self):
        out, words = self.weight.shape
        return f"input_dims={words * 32 // self.bits}, output_dims={out}, bias={'bias' in self}, {describe(self)}"

    def __call__(self, x: mx.array) -> mx.array:
        y = multiply(self, x)
        return y + self["bias"] if "bias" in self else y

    @classmethod
    def from_linear(cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None,
                    mode: str = "affine") -> QuantizedLinear:
        """The quantised layer of a Linear."""
        out, inputs = linear_layer.weight.shape
        layer = cls(inputs, out, False, group_size, bits, mode=mode)
        pack(layer, linear_layer.weight)
        if "bias" in linear_layer:
            layer.bias = linear_layer.bias
        return layer


class QQLinear(Module):
    """A linear layer without bias that quantises its input as well as its weight.

    In training the weight stays in floating point, is quantised as it is used, and gets gradients; eval() quantises it
    for good, train() brings it back.
    """

    def __init__(self, input_dims: int, output_dims: int, group_size: int | None = None, bits: int | None = None,
                 mode: str = "nvfp4") -> None:
        super().__init__()
        self.group_size, self.bits = complete(mode, group_size, bits)
        self.mode = mode
        scale = math.sqrt(1 / input_dims)
        self.weight = mx.random.uniform(-scale, scale, (output_dims, input_dims))
        self._quantized = False

    def _extra_repr(self):
        out, inputs = self.weight.shape
        if self._quantized:
            inputs = inputs * 32 // self.bits
        return f"input_dims={inputs}, output_dims={out}, {describe(self)}"

    def quantize(self) -> None:
        """Packs the weight."""
        if not self._quantized:
            self.weight, self.scales = mx.quantize(self.weight, self.group_size, self.bits, mode=self.mode)
            self._quantized = True

    def dequantize(self) -> None:
        """Brings the weight back to floating point."""
        if self._quantized:
            self.weight = unpack(self)
            del self.scales
            self._quantized = False

    def _set_training_mode(self, mode: bool):
        super()._set_training_mode(mode)
        if mode:
            self.dequantize()
        else:
            self.quantize()

    def __call__(self, x: mx.array) -> mx.array:
        return mx.qqmm(x, self["weight"], scales=self.get("scales"), group_size=self.group_size, bits=self.bits,
                       mode=self.mode)

    @classmethod
    def from_linear(cls, linear_layer: Module, group_size: int | None = None, bits: int | None = None,
                    mode: str = "nvfp4") -> QQLinear:
        """The layer of a Linear without bias."""
        if "bias" in linear_layer:
            raise NotImplementedError("QQLinear does not support bias yet.")
        out, inputs = linear_layer.weight.shape
        layer = cls(inputs, out, group_size, bits, mode=mode)
        layer.weight = linear_layer.weight
        layer.train(linear_layer.training)
        return layer
