"""Activation functions, and each as a layer.

Those of several operations are compiled: one pass over memory.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import gomlx.core as mx
from gomlx._base.arguments import named
from gomlx.nn.layers.base import Module

F = TypeVar("F", bound=Callable[..., Any])


def fused(function: F) -> F:
    return mx.compile(named(function), shapeless=True)


def sigmoid(x: mx.array) -> mx.array:
    """1 / (1 + e**-x)."""
    return mx.sigmoid(x)


def relu(x: mx.array) -> mx.array:
    """max(x, 0)."""
    return mx.maximum(x, 0)


@fused
def relu2(x: mx.array) -> mx.array:
    """max(x, 0)**2: https://arxiv.org/abs/2109.08668."""
    return mx.square(mx.maximum(x, 0))


@fused
def relu6(x: mx.array) -> mx.array:
    """min(max(x, 0), 6): https://arxiv.org/abs/1704.04861."""
    return mx.minimum(mx.maximum(x, 0), 6.0)


@fused
def leaky_relu(x: mx.array, negative_slope: float = 0.01) -> mx.array:
    """max(negative_slope * x, x)."""
    return mx.maximum(negative_slope * x, x)


@fused
def log_softmax(x: mx.array, axis: int = -1) -> mx.array:
    """x - log(sum(e**x)) along the axis."""
    x = x - mx.stop_gradient(mx.max(x, axis=axis, keepdims=True))       # else a shared offset would cost digits
    return x - mx.logsumexp(x, axis=axis, keepdims=True)


@fused
def elu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """x where positive, alpha * (e**x - 1) elsewhere: https://arxiv.org/abs/1511.07289."""
    return mx.where(x > 0, x, alpha * (mx.exp(x) - 1))


def softmax(x: mx.array, axis: int = -1) -> mx.array:
    """e**x / sum(e**x) along the axis."""
    return mx.softmax(x, axis=axis)


def softmin(x: mx.array, axis: int = -1) -> mx.array:
    """softmax(-x)."""
    return mx.softmax(-x, axis=axis)


def softplus(x: mx.array) -> mx.array:
    """log(1 + e**x)."""
    return mx.logaddexp(x, 0)


@fused
def softsign(x: mx.array) -> mx.array:
    """x / (1 + |x|)."""
    return mx.divide(x, 1 + mx.abs(x))


@fused
def softshrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """x brought nearer to zero by lambd; zero within lambd of it."""
    return mx.where(mx.abs(x) > lambd, x - mx.sign(x) * lambd, 0)


@fused
def hard_shrink(x: mx.array, lambd: float = 0.5) -> mx.array:
    """x, but zero within lambd of zero."""
    return mx.where(mx.abs(x) > lambd, x, 0)


@fused
def celu(x: mx.array, alpha: float = 1.0) -> mx.array:
    """max(x, 0) + min(0, alpha * (e**(x / alpha) - 1)): https://arxiv.org/abs/1704.07483."""
    return mx.maximum(x, 0.0) + alpha * (mx.exp(mx.minimum(x, 0.0) / alpha) - 1)


@fused
def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x): https://arxiv.org/abs/1702.03118."""
    return x * mx.sigmoid(x)


@fused
def log_sigmoid(x: mx.array) -> mx.array:
    """log(sigmoid(x))."""
    return -softplus(-x)


def gelu(x: mx.array) -> mx.array:
    """x times the normal distribution's cumulative function: https://arxiv.org/abs/1606.08415."""
    return mx.fast.gelu(x)


@fused
def gelu_approx(x: mx.array) -> mx.array:
    """gelu by tanh, within 0.0005 of it."""
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@fused
def gelu_fast_approx(x: mx.array) -> mx.array:
    """x * sigmoid(1.702 * x), within 0.015 of gelu."""
    return x * mx.sigmoid(1.702 * x)


def glu(x: mx.array, axis: int = -1) -> mx.array:
    """a * sigmoid(b), for the two halves of x along the axis: https://arxiv.org/abs/1612.08083."""
    a, b = mx.split(x, indices_or_sections=2, axis=axis)
    return a * mx.sigmoid(b)


def step(x: mx.array, threshold: float = 0.0) -> mx.array:
    """1 where x >= threshold, 0 elsewhere."""
    return mx.where(x >= threshold, 1, 0)


@fused
def selu(x: mx.array) -> mx.array:
    """elu scaled so that activations keep mean 0 and variance 1: https://arxiv.org/abs/1706.02515."""
    return elu(x, 1.67326) * 1.0507


@fused
def prelu(x: mx.array, alpha: mx.array) -> mx.array:
    """max(x, 0) + alpha * min(x, 0): https://arxiv.org/abs/1502.01852."""
    return mx.maximum(0, x) + alpha * mx.minimum(0, x)


@fused
def mish(x: mx.array) -> mx.array:
    """x * tanh(softplus(x)): https://arxiv.org/abs/1908.08681."""
    return x * mx.tanh(softplus(x))


@fused
def hardswish(x: mx.array) -> mx.array:
    """x * min(max(x + 3, 0), 6) / 6: https://arxiv.org/abs/1905.02244."""
    return x * mx.minimum(mx.maximum(x + 3, 0), 6) / 6


@fused
def hard_tanh(x: mx.array, min_val: float = -1.0, max_val: float = 1.0) -> mx.array:
    """x held between min_val and max_val."""
    return mx.minimum(mx.maximum(x, min_val), max_val)


def tanh(x: mx.array) -> mx.array:
    """The hyperbolic tangent."""
    return mx.tanh(x)


class Sigmoid(Module):
    """sigmoid() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return sigmoid(x)


class Mish(Module):
    """mish() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return mish(x)


class ReLU(Module):
    """relu() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return relu(x)


class ReLU2(Module):
    """relu2() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return relu2(x)


class ReLU6(Module):
    """relu6() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return relu6(x)


class Softmax(Module):
    """softmax() over the last axis, as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return softmax(x)


class Softmin(Module):
    """softmin() over the last axis, as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return softmin(x)


class Softplus(Module):
    """softplus() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return softplus(x)


class Softsign(Module):
    """softsign() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return softsign(x)


class SiLU(Module):
    """silu() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return silu(x)


class LogSoftmax(Module):
    """log_softmax() over the last axis, as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return log_softmax(x)


class LogSigmoid(Module):
    """log_sigmoid() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return log_sigmoid(x)


class HardTanh(Module):
    """hard_tanh() between -1 and 1, as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return hard_tanh(x)


class Hardswish(Module):
    """hardswish() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return hardswish(x)


class Tanh(Module):
    """tanh() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return tanh(x)


class SELU(Module):
    """selu() as a layer."""

    def __call__(self, x: mx.array) -> mx.array:
        return selu(x)


class GLU(Module):
    """glu() as a layer."""

    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def __call__(self, x: mx.array) -> mx.array:
        return glu(x=x, axis=self.axis)


class LeakyReLU(Module):
    """leaky_relu() as a layer."""

    def __init__(self, negative_slope: float = 1e-2) -> None:
        super().__init__()
        self._negative_slope = negative_slope

    def __call__(self, x: mx.array) -> mx.array:
        return leaky_relu(x, self._negative_slope)


class ELU(Module):
    """elu() as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._alpha = alpha

    def __call__(self, x: mx.array) -> mx.array:
        return elu(x, self._alpha)


class CELU(Module):
    """celu() as a layer."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self._alpha = alpha

    def __call__(self, x: mx.array) -> mx.array:
        return celu(x, self._alpha)


class Softshrink(Module):
    """softshrink() as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def __call__(self, x: mx.array) -> mx.array:
        return softshrink(x, self.lambd)


class HardShrink(Module):
    """hard_shrink() as a layer."""

    def __init__(self, lambd: float = 0.5) -> None:
        super().__init__()
        self.lambd = lambd

    def __call__(self, x: mx.array) -> mx.array:
        return hard_shrink(x, self.lambd)


class Step(Module):
    """step() as a layer."""

    def __init__(self, threshold: float = 0.0) -> None:
        super().__init__()
        self.threshold = threshold

    def __call__(self, x: mx.array) -> mx.array:
        return step(x, self.threshold)


class PReLU(Module):
    """prelu() whose slopes are learned: one for all channels, or `num_parameters`."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = mx.full([num_parameters], init)

    def __call__(self, x: mx.array) -> mx.array:
        return prelu(x, self.weight)


class GELU(Module):
    """gelu() as a layer; `approx` "precise" (or "tanh") takes gelu_approx(), "fast" gelu_fast_approx()."""

    FUNCTIONS = {"none": gelu, "precise": gelu_approx, "tanh": gelu_approx, "fast": gelu_fast_approx}

    def __init__(self, approx: str = "none") -> None:
        super().__init__()
        if approx not in self.FUNCTIONS:
            raise ValueError(f"The approximation should be in {list(self.FUNCTIONS)} but '{approx}' was given")
        self._approx = approx

    def __call__(self, x: mx.array) -> mx.array:
        return self.FUNCTIONS[self._approx](x)
