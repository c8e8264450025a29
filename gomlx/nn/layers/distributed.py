"""Layers whose weights are cut across a group of processes.

"all-to-sharded" cuts a layer's outputs: every process has the whole input and makes its part of the output.
"sharded-to-all" cuts its inputs: every process has its part of the input, and the sum of what they make is the output.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx.nn.layers.base import Module
from gomlx.nn.layers.linear import Linear
from gomlx.nn.layers.quantized import complete, describe, multiply, pack
from gomlx.utils import tree_flatten, tree_map_with_path, tree_unflatten

SHARDINGS = ("all-to-sharded", "sharded-to-all")


def sum_gradients(group):
    """The identity, whose gradient is summed over the group."""
    if group.size() == 1:
        return lambda x: x

    @mx.custom_function
    def identity(x):
        return x

    @identity.vjp
    def sum_cotangents(x, cotangent, _):
        return mx.distributed.all_sum(cotangent, group=group)

    return identity


def cut(weight, segments, axis):
    """The segments of the weight: n equal ones, or those between the given indices or fractions."""
    if isinstance(segments, int):
        return mx.split(weight, segments, axis=axis)
    if any(isinstance(one, float) for one in segments):
        segments = [int(one * weight.shape[axis]) if isinstance(one, float) else one for one in segments]
    return mx.split(weight, segments, axis=axis)


def outputs_predicate(segments):
    """Where "all-to-sharded" cuts a parameter: biases at their last axis, weights at their first."""
    return lambda path, weight: (-1 if path.endswith("bias") else max(weight.ndim - 2, 0), segments)


def inputs_predicate(segments):
    """Where "sharded-to-all" cuts a parameter: weights at their last axis, biases nowhere."""
    return lambda path, weight: None if path.endswith("bias") else (-1, segments)


def predicate_of(sharding, segments):
    if sharding not in SHARDINGS:
        raise ValueError(f"Sharding type sharding={sharding!r} not supported, "
                         f"choose one of {SHARDINGS[0]!r} or {SHARDINGS[1]!r}")
    return (outputs_predicate if sharding == "all-to-sharded" else inputs_predicate)(segments)


def shards(parameters: dict[str, Any], predicate: Callable[..., Any], group):
    """The tree of this process's part of each parameter.

    predicate(path, weight) is the axis to cut, (axis, segments), or None: the whole.
    """
    size, rank = group.size(), group.rank()

    def shard(path, weight):
        if not isinstance(weight, mx.array):
            return weight
        where = predicate(path, weight)
        if where is None:
            return weight
        axis, segments = where if isinstance(where, tuple) else (where, 1)
        parts = [mx.split(segment, size, axis=axis)[rank] for segment in cut(weight, segments, axis)]
        return mx.contiguous(mx.concatenate(parts, axis=axis))

    return tree_map_with_path(shard, parameters)


def shard_inplace(module: Module, sharding: str | Callable[..., Any], *, segments: int | list[Any] = 1, group=None):
    """Keeps this process's part of the module's parameters.

    `sharding` is one of the two ways, or a callable: of a parameter's path and value, the axis to cut it at, perhaps
    with its segments (3 for fused queries, keys and values), or None. The module itself must do the communication.
    """
    group = group or mx.distributed.init()
    predicate = predicate_of(sharding, segments) if isinstance(sharding, str) else sharding
    module.update(shards(module.parameters(), predicate, group))


def shard_linear(module: Module, sharding: str, *, segments: int | list[Any] = 1, group=None):
    """A layer like the Linear or QuantizedLinear given, cut and communicating the way `sharding` says."""
    predicate_of(sharding, segments)
    outputs = sharding == "all-to-sharded"
    if isinstance(module, Linear):
        cls = AllToShardedLinear if outputs else ShardedToAllLinear
        return cls.from_linear(module, segments=segments, group=group)
    cls = QuantizedAllToShardedLinear if outputs else QuantizedShardedToAllLinear
    return cls.from_quantized_linear(module, segments=segments, group=group)


def divide(dims, group, what):
    """dims / group.size(), which must come out even."""
    size = group.size()
    if dims % size != 0:
        raise ValueError(f"Cannot shard the {what} of size {dims} across {size} devices.")
    return dims // size


class AllToShardedLinear(Module):
    """A Linear that makes this process's part of the output; gradients of its input are summed over the group."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True,
                 group: mx.distributed.Group | None = None) -> None:
        super().__init__()
        scale = math.sqrt(1 / input_dims)
        self.group = group or mx.distributed.init()
        own = divide(output_dims, self.group, "output")
        self.weight = mx.random.uniform(-scale, scale, (own, input_dims))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (own,))

    def _extra_repr(self) -> str:
        own, inputs = self.weight.shape
        return f"input_dims={inputs}, output_dims={own * self.group.size()}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        x = sum_gradients(self.group)(x)
        if "bias" in self:
            return mx.addmm(self["bias"], x, self["weight"].T)
        return x @ self["weight"].T

    @classmethod
    def from_linear(cls, linear_layer: Module, *, segments: int | list[Any] = 1,
                    group: mx.distributed.Group | None = None) -> Module:
        group = group or mx.distributed.init()
        outputs, inputs = linear_layer.weight.shape
        layer = cls(inputs, outputs, "bias" in linear_layer, group)
        layer.update(shards(linear_layer.parameters(), outputs_predicate(segments), group))
        return layer


class ShardedToAllLinear(Module):
    """A Linear of this process's part of the input; every process gets the sum, so the whole output."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True,
                 group: mx.distributed.Group | None = None) -> None:
        super().__init__()
        scale = math.sqrt(1 / input_dims)
        self.group = group or mx.distributed.init()
        own = divide(input_dims, self.group, "input")
        self.weight = mx.random.uniform(-scale, scale, (output_dims, own))
        if bias:
            self.bias = mx.random.uniform(-scale, scale, (output_dims,))

    def _extra_repr(self) -> str:
        outputs, own = self.weight.shape
        return f"input_dims={own * self.group.size()}, output_dims={outputs}, bias={'bias' in self}"

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.distributed.all_sum(x @ self["weight"].T, group=self.group)
        return y + self["bias"] if "bias" in self else y

    @classmethod
    def from_linear(cls, linear_layer: Module, *, segments: int | list[Any] = 1,
                    group: mx.distributed.Group | None = None) -> Module:
        group = group or mx.distributed.init()
        outputs, inputs = linear_layer.weight.shape
        layer = cls(inputs, outputs, "bias" in linear_layer, group)
        layer.update(shards(linear_layer.parameters(), inputs_predicate(segments), group))
        return layer


class _QuantizedSharded(Module):
    """What the two quantised layers share; their parameters are frozen, and stay so."""

    def __init__(self, own_inputs: int, own_outputs: int, bias_dims: int | None, group_size: int, bits: int, mode: str,
                 group: mx.distributed.Group | None) -> None:
        super().__init__()
        self.group_size, self.bits = complete(mode, group_size, bits)
        self.mode = mode
        self.group = group
        scale = math.sqrt(1 / own_inputs)
        pack(self, mx.random.uniform(-scale, scale, (own_outputs, own_inputs)))
        if bias_dims:
            self.bias = mx.zeros((bias_dims,))
        self.freeze()

    def unfreeze(self, *args: Any, **kwargs: Any) -> Module:
        """Unfreezes the modules below, if there are any."""
        super().unfreeze(*args, **kwargs)
        self.freeze(recurse=False)

    def _take(self, layer, predicate):
        """Takes this process's part of a QuantizedLinear's arrays."""
        self.update(shards(layer.parameters(), predicate, self.group))
        return self


def quantized_dims(layer):
    """(inputs, outputs) of a QuantizedLinear."""
    outputs, words = layer.weight.shape
    return words * 32 // layer.bits, outputs


class QuantizedAllToShardedLinear(_QuantizedSharded):
    """AllToShardedLinear with a quantised weight."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True, group_size: int = 64, bits: int = 4,
                 mode: str = "affine", group: mx.distributed.Group | None = None) -> None:
        group = group or mx.distributed.init()
        own = divide(output_dims, group, "output")
        super().__init__(input_dims, own, own if bias else 0, group_size, bits, mode, group)

    def _extra_repr(self) -> str:
        inputs, own = quantized_dims(self)
        return (f"input_dims={inputs}, output_dims={own * self.group.size()}, bias={'bias' in self}, "
                f"{describe(self)}")

    def __call__(self, x: mx.array) -> mx.array:
        y = multiply(self, sum_gradients(self.group)(x))
        return y + self["bias"] if "bias" in self else y

    @classmethod
    def from_quantized_linear(cls, quantized_linear_layer: Module, *, segments: int | list[Any] = 1,
                              group: mx.distributed.Group | None = None) -> Module:
        q = quantized_linear_layer
        layer = cls(*quantized_dims(q), "bias" in q, q.group_size, q.bits, q.mode, group)
        return layer._take(q, outputs_predicate(segments))


class QuantizedShardedToAllLinear(_QuantizedSharded):
    """ShardedToAllLinear with a quantised weight."""

    def __init__(self, input_dims: int, output_dims: int, bias: bool = True, group_size: int = 64, bits: int = 4,
                 mode: str = "affine", group: mx.distributed.Group | None = None) -> None:
        group = group or mx.distributed.init()
        own = divide(input_dims, group, "input")
        super().__init__(own, output_dims, output_dims if bias else 0, group_size, bits, mode, group)

    def _extra_repr(self) -> str:
        own, outputs = quantized_dims(self)
        return (f"input_dims={own * self.group.size()}, output_dims={outputs}, bias={'bias' in self}, "
                f"{describe(self)}")

    def __call__(self, x: mx.array) -> mx.array:
        y = mx.distributed.all_sum(multiply(self, x), group=self.group)
        return y + self["bias"] if "bias" in self else y

    @classmethod
    def from_quantized_linear(cls, quantized_linear_layer: Module, *, segments: int | list[Any] = 1,
                              group: mx.distributed.Group | None = None) -> Module:
        q = quantized_linear_layer
        layer = cls(*quantized_dims(q), "bias" in q, q.group_size, q.bits, q.mode, group)
        return layer._take(q, inputs_predicate(segments))


def gatherer(group, dtype):
    """A function of this process's parts that gives whole arrays, and whose gradient is the part's own, averaged."""
    size = group.size()

    @mx.custom_function
    def gather(*parts):
        whole = [mx.distributed.all_gather(part, group=group) for part in parts]
        return [w if dtype is None else w.astype(dtype) for w in whole]

    @gather.vjp
    def scatter(parts, cotangents, _):
        return [mx.distributed.sum_scatter(c.astype(part.dtype), group=group) / size
                for part, c in zip(parts, cotangents)]

    return gather


class FullyShardedModule(Module):
    """A module of whose parameters this process keeps its part, cut at the first axis.

    https://arxiv.org/abs/2304.11277. The whole parameters exist only during a call, in `compute_dtype` if that is
    given; gradients are averaged over the group and cut like the parameters.
    """

    def __init__(self, module: Module, group: mx.distributed.Group | None = None,
                 compute_dtype: mx.Dtype | None = None) -> None:
        super().__init__()
        group = group or mx.distributed.init()
        size, rank = group.size(), group.rank()
        parameters = tree_flatten(module.parameters())
        for path, weight in parameters:
            if weight.ndim == 0 or weight.shape[0] % size != 0:
                raise ValueError(f"Cannot shard parameter {path} of shape {weight.shape} across {size} devices.")
        module.update(tree_unflatten([(path, mx.contiguous(mx.split(weight, size, axis=0)[rank]))
                                      for path, weight in parameters]))
        self.module = module
        self._gather_fn = gatherer(group, compute_dtype)

    def _extra_repr(self) -> str:
        return f"num_sharded_params={len(tree_flatten(self.module.parameters()))}"

    def _gathered_call(self, fn, *args, **kwargs):
        """fn(...) while the module has its whole parameters."""
        own = tree_flatten(self.module.parameters(), destination={})
        whole = self._gather_fn(*own.values())
        self.module.update(tree_unflatten(list(zip(own, whole))))
        try:
            return fn(*args, **kwargs)
        finally:
            self.module.update(tree_unflatten(own))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._gathered_call(self.module, *args, **kwargs)

    def as_linear(self, *args: Any, **kwargs: Any) -> Any:
        return self._gathered_call(self.module.as_linear, *args, **kwargs)


def fully_shard(module: Module, *, group: mx.distributed.Group | None = None,
                compute_dtype: mx.Dtype | None = None) -> Module:
    """FullyShardedModule of the module; the module itself where there is nothing to share among."""
    group = group or mx.distributed.init()
    return module if group.size() == 1 else FullyShardedModule(module, group, compute_dtype)
