"""Initialisers: each makes a function that gives an array of the same shape as its argument, filled anew."""
import math
from collections.abc import Callable
from typing import Literal, Protocol

import gomlx.core as mx
from gomlx._base.arguments import name_public


class Scaled(Protocol):
    def __call__(self, a: mx.array, gain: float = 1.0) -> mx.array: ...


class ScaledByFan(Protocol):
    def __call__(self, a: mx.array, mode: Literal["fan_in", "fan_out"] = "fan_in", gain: float = 1.0) -> mx.array: ...


def constant(value: float, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """`value` everywhere."""
    def initializer(a: mx.array) -> mx.array:
        return mx.full(a.shape, value, dtype=dtype)

    return initializer


def normal(mean: float = 0.0, std: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """Normal samples."""
    def initializer(a: mx.array) -> mx.array:
        return mx.random.normal(shape=a.shape, scale=std, loc=mean, dtype=dtype)

    return initializer


def uniform(low: float = 0.0, high: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """Uniform samples from low to high."""
    def initializer(a: mx.array) -> mx.array:
        return mx.random.uniform(low, high, a.shape, dtype=dtype)

    return initializer


def identity(dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """The identity matrix."""
    def initializer(arr: mx.array) -> mx.array:
        if arr.ndim != 2 or arr.shape[0] != arr.shape[1]:
            raise ValueError(f"The input array must be a square matrix but got shape {arr.shape}.")
        return mx.eye(n=arr.shape[0], dtype=dtype)

    return initializer


def fans(x):
    """(fan_in, fan_out) of a weight (outputs, *kernel, inputs)."""
    if x.ndim < 2:
        raise ValueError("Glorot / He initialization requires at least 2 dimensional input "
                         f"but input with {x.ndim} dimensions.")
    kernel = math.prod(x.shape[1:-1])
    return x.shape[-1] * kernel, x.shape[0] * kernel


def chosen_fan(x, mode):
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"Invalid mode: {mode}. Valid modes are: fan_in, fan_out")
    return fans(x)[mode == "fan_out"]


def glorot_normal(dtype: mx.Dtype = mx.float32) -> Scaled:
    """Normal samples of deviation gain * sqrt(2 / (fan_in + fan_out)).

    https://proceedings.mlr.press/v9/glorot10a.html.
    """
    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        std = gain * math.sqrt(2 / sum(fans(a)))
        return mx.random.normal(shape=a.shape, scale=std, dtype=dtype)

    return initializer


def glorot_uniform(dtype: mx.Dtype = mx.float32) -> Scaled:
    """Uniform samples within gain * sqrt(6 / (fan_in + fan_out)): https://proceedings.mlr.press/v9/glorot10a.html."""
    def initializer(a: mx.array, gain: float = 1.0) -> mx.array:
        limit = gain * math.sqrt(6 / sum(fans(a)))
        return mx.random.uniform(-limit, limit, a.shape, dtype=dtype)

    return initializer


def he_normal(dtype: mx.Dtype = mx.float32) -> ScaledByFan:
    """Normal samples of deviation gain / sqrt(fan): https://arxiv.org/abs/1502.01852."""
    def initializer(a: mx.array, mode: Literal["fan_in", "fan_out"] = "fan_in", gain: float = 1.0) -> mx.array:
        std = gain / math.sqrt(chosen_fan(a, mode))
        return mx.random.normal(shape=a.shape, scale=std, dtype=dtype)

    return initializer


def he_uniform(dtype: mx.Dtype = mx.float32) -> ScaledByFan:
    """Uniform samples within gain * sqrt(3 / fan): https://arxiv.org/abs/1502.01852."""
    def initializer(a: mx.array, mode: Literal["fan_in", "fan_out"] = "fan_in", gain: float = 1.0) -> mx.array:
        limit = gain * math.sqrt(3 / chosen_fan(a, mode))
        return mx.random.uniform(-limit, limit, a.shape, dtype=dtype)

    return initializer


def sparse(sparsity: float, mean: float = 0.0, std: float = 1.0,
           dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """Normal samples, of which each row has the same fraction set to zero.

    Martens 2010, "Deep learning via Hessian-free optimization".
    """
    def initializer(a: mx.array) -> mx.array:
        if a.ndim != 2:
            raise ValueError("Only tensors with 2 dimensions are supported")
        zeros = math.ceil(sparsity * a.shape[1])
        order = mx.argsort(mx.random.uniform(shape=a.shape), axis=1)
        values = mx.random.normal(shape=a.shape, scale=std, loc=mean, dtype=dtype)
        return mx.put_along_axis(values, order[:, :zeros], mx.array(0, dtype=dtype), axis=1)

    return initializer


def orthogonal(gain: float = 1.0, dtype: mx.Dtype = mx.float32) -> Callable[[mx.array], mx.array]:
    """A random matrix with orthogonal rows or columns of length `gain`: https://arxiv.org/abs/1312.6120."""
    def initializer(a: mx.array) -> mx.array:
        if a.ndim != 2:
            raise ValueError(f"Orthogonal initialization requires a 2D array but got a {a.ndim}D array.")
        rows, columns = a.shape
        n = max(rows, columns)
        q, r = mx.linalg.qr(mx.random.normal(shape=(n, n)), stream=mx.cpu)
        q = q * mx.sign(mx.diag(r))             # so that Q is uniform among the orthogonal matrices
        return (gain * q[:rows, :columns]).astype(dtype)

    return initializer


name_public(globals())
