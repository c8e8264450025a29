"""Recurrent layers over sequences (N, L, D) or (L, D); they return the state after each step.

Weights start uniform within 1 / sqrt(hidden_size). The inputs' share of all steps is one product, before the loop.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import gomlx.core as mx
from gomlx.nn.layers.activations import tanh
from gomlx.nn.layers.base import Module


def project(x, weight, bias):
    """x @ weight.T, plus the bias if there is one."""
    return x @ weight.T if bias is None else mx.addmm(bias, x, weight.T)


class RNN(Module):
    """Elman's: h = nonlinearity(Wxh x + Whh h + b), tanh by default. Elman 1990, "Finding structure in time"."""

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True,
                 nonlinearity: Callable[[mx.array], mx.array] | None = None) -> None:
        super().__init__()
        self.nonlinearity = tanh if nonlinearity is None else nonlinearity
        if not callable(self.nonlinearity):
            raise ValueError(f"Nonlinearity must be callable. Current value: {nonlinearity}.")
        scale = 1 / math.sqrt(hidden_size)
        self.hidden_size = hidden_size
        self.Wxh = mx.random.uniform(-scale, scale, (hidden_size, input_size))
        self.Whh = mx.random.uniform(-scale, scale, (hidden_size, hidden_size))
        self.bias = mx.random.uniform(-scale, scale, (hidden_size,)) if bias else None

    def _extra_repr(self):
        return (f"input_dims={self.Wxh.shape[1]}, hidden_size={self.hidden_size}, "
                f"nonlinearity={self.nonlinearity}, bias={self.bias is not None}")

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        x = project(x, self.Wxh, self.bias)
        states = []
        for i in range(x.shape[-2]):
            step = x[..., i, :]
            if hidden is not None:
                step = mx.addmm(step, hidden, self.Whh.T)
            hidden = self.nonlinearity(step)
            states.append(hidden)
        return mx.stack(states, axis=-2)


class GRU(Module):
    """Gated recurrent unit: https://arxiv.org/abs/1406.1078, with the reset gate applied after the product.

    Wx, Wh and b hold, one under the other, the reset gate r, the update gate z and the candidate n:
    n = tanh(Wxn x + bn + r (Whn h + bhn)); h' = (1 - z) n + z h.
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        scale = 1 / math.sqrt(hidden_size)
        self.hidden_size = hidden_size
        self.Wx = mx.random.uniform(-scale, scale, (3 * hidden_size, input_size))
        self.Wh = mx.random.uniform(-scale, scale, (3 * hidden_size, hidden_size))
        self.b = mx.random.uniform(-scale, scale, (3 * hidden_size,)) if bias else None
        self.bhn = mx.random.uniform(-scale, scale, (hidden_size,)) if bias else None

    def _extra_repr(self):
        return f"input_dims={self.Wx.shape[1]}, hidden_size={self.hidden_size}, bias={self.b is not None}"

    def __call__(self, x: mx.array, hidden: mx.array | None = None) -> mx.array:
        x = project(x, self.Wx, self.b)
        gates, candidates = x[..., :-self.hidden_size], x[..., -self.hidden_size:]
        states = []
        for i in range(x.shape[-2]):
            rz, n = gates[..., i, :], candidates[..., i, :]
            if hidden is not None:
                h = hidden @ self.Wh.T
                rz = rz + h[..., :-self.hidden_size]
                h = h[..., -self.hidden_size:]
                if self.bhn is not None:
                    h = h + self.bhn
            else:
                h = self.bhn
            r, z = mx.split(mx.sigmoid(rz), 2, axis=-1)
            n = mx.tanh(n if h is None else n + r * h)
            hidden = (1 - z) * n if hidden is None else (1 - z) * n + z * hidden
            states.append(hidden)
        return mx.stack(states, axis=-2)


class LSTM(Module):
    """Long short-term memory, Hochreiter and Schmidhuber 1997; returns the hidden and the cell states.

    Wx, Wh and bias hold, one under the other, the gates i, f, the candidate g and the gate o:
    c' = f c + i tanh(g); h' = o tanh(c').
    """

    def __init__(self, input_size: int, hidden_size: int, bias: bool = True) -> None:
        super().__init__()
        scale = 1 / math.sqrt(hidden_size)
        self.hidden_size = hidden_size
        self.Wx = mx.random.uniform(-scale, scale, (4 * hidden_size, input_size))
        self.Wh = mx.random.uniform(-scale, scale, (4 * hidden_size, hidden_size))
        self.bias = mx.random.uniform(-scale, scale, (4 * hidden_size,)) if bias else None

    def _extra_repr(self):
        return f"input_dims={self.Wx.shape[1]}, hidden_size={self.hidden_size}, bias={self.bias is not None}"

    def __call__(self, x: mx.array, hidden: mx.array | None = None,
                 cell: mx.array | None = None) -> tuple[mx.array, mx.array]:
        x = project(x, self.Wx, self.bias)
        hiddens, cells = [], []
        for i in range(x.shape[-2]):
            gates = x[..., i, :]
            if hidden is not None:
                gates = mx.addmm(gates, hidden, self.Wh.T)
            i_gate, f_gate, g, o_gate = mx.split(gates, 4, axis=-1)
            g = mx.sigmoid(i_gate) * mx.tanh(g)
            cell = g if cell is None else mx.sigmoid(f_gate) * cell + g
            hidden = mx.sigmoid(o_gate) * mx.tanh(cell)
            hiddens.append(hidden)
            cells.append(cell)
        return mx.stack(hiddens, axis=-2), mx.stack(cells, axis=-2)
