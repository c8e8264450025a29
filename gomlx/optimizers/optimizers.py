"""Optimisers: each turns parameters and their gradients, two trees, into new parameters.

What an optimiser remembers is its `state`, a tree that mx.compile can capture: "step" and, as an array,
"learning_rate", beside, for each parameter under its own key, a dict of arrays. Arithmetic is in the gradient's dtype.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx import _gomlx
from gomlx.nn.layers.base import Module
from gomlx.nn.utils import scale_to_norm, sum_of_squares
from gomlx.utils import tree_flatten, tree_map, tree_merge, tree_unflatten

Rate = float | Callable[[mx.array], mx.array]


class Optimizer:
    """The base class. One parameter at a time: init_single makes its state, apply_single its next value."""

    def __init__(self, schedulers: dict[str, Any] | None = None) -> None:
        self._initialized = False
        self._state = {"step": mx.array(0, mx.uint64)}
        self._schedulers = dict((schedulers or {}).items())

    def update(self, model: Module, gradients: dict[str, Any]) -> None:
        """Moves the model's parameters by their gradients."""
        model.update(self.apply_gradients(gradients, model))

    def init(self, parameters: dict[str, Any]) -> None:
        """Makes the state of these parameters; where there is some already (loaded from a file), it stays."""
        self._extend(self._state, parameters)
        self._initialized = True

    def _extend(self, state, parameters):
        if isinstance(parameters, dict):
            state = {} if state is None else state
            for key, value in parameters.items():
                state[key] = self._extend(state.get(key), value)
            return state
        if isinstance(parameters, (list, tuple)):
            old = list(state or ())
            old += [None] * (len(parameters) - len(old))
            return type(parameters)([self._extend(*pair) for pair in zip(old, parameters)])
        if not state:
            state = {}
            self.init_single(parameters, state)
        return state

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        """Puts what `parameter` needs into the empty dict `state`."""
        raise NotImplementedError()

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        """The new parameters, a tree like that of the gradients, which may lack some of the parameters."""
        if not self._initialized:
            self.init(gradients)
        for name, schedule in self._schedulers.items():
            self.state[name] = schedule(self.step)
        self.state["step"] = self.step + 1
        return self._apply_all(gradients, parameters)

    def _apply_all(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        return tree_map(self.apply_single, gradients, parameters, self.state)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        """The new value of `parameter`; changes `state`."""
        raise NotImplementedError()

    @property
    def state(self) -> dict[str, Any]:
        """The state; what is set here may lack parameters, whose state is then made when they first come."""
        return self._state

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._initialized = False
        self._state = state

    @property
    def step(self) -> mx.array:
        return self.state["step"]

    @property
    def learning_rate(self) -> mx.array:
        return self.state["learning_rate"]

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        self.state["learning_rate"] = mx.array(learning_rate)

    def _maybe_schedule(self, name: str, param: Rate):
        """Makes `name` a part of the state: a number, or what a schedule says at each step."""
        if callable(param):
            self._schedulers[name] = param
            param = param(self.step)
        self.state[name] = mx.array(param)

    def _check(self, name, value, sign):
        """`value`, which must be ">" or ">=" 0."""
        if value < 0 or (value == 0 and sign == ">"):
            raise ValueError(f"{type(self).__name__} {name} should be {sign}0, {value} was provided instead")


class MultiOptimizer(Optimizer):
    """Several optimisers, each for the parameters whose filter(path, gradient) is the first to be true.

    The last optimiser has no filter: it takes the rest.
    """

    def __init__(self, optimizers: list[Optimizer], filters: list[Any] = []) -> None:
        super().__init__()
        self._state = {}
        if len(filters) != len(optimizers) - 1:
            raise ValueError(f"Given {len(filters)} filters but {len(optimizers) - 1} needed.")
        self.optimizers = optimizers
        self.filters = [*filters, lambda *args: True]

    def _split(self, tree):
        """A tree for each optimiser, of what is its."""
        parts = [[] for _ in self.optimizers]
        for path, value in tree_flatten(tree):
            chosen = next(i for i, accepts in enumerate(self.filters) if accepts(path, value))
            parts[chosen].append((path, value))
        return [tree_unflatten(part) if part else {} for part in parts]

    def init(self, parameters: dict[str, Any]) -> None:
        for optimizer, part in zip(self.optimizers, self._split(parameters)):
            optimizer.init(part)

    def apply_gradients(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        out = {}
        for optimizer, part in zip(self.optimizers, self._split(gradients)):
            out = tree_merge(out, optimizer.apply_gradients(part, parameters))
        return out

    @property
    def state(self) -> dict[str, Any]:
        """The states of the optimisers, under "states"."""
        return {"states": [optimizer.state for optimizer in self.optimizers]}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        states = state.get("states")
        if states is None or len(states) != len(self.optimizers):
            raise ValueError("Invalid state provided")
        for optimizer, part in zip(self.optimizers, states):
            optimizer.state = part

    @property
    def learning_rate(self) -> mx.array:
        """The first optimiser's; setting it sets everyone's."""
        return self.optimizers[0].learning_rate

    @learning_rate.setter
    def learning_rate(self, learning_rate: float | mx.array) -> None:
        for optimizer in self.optimizers:
            optimizer.learning_rate = learning_rate


class SGD(Optimizer):
    """w - rate * v, where v = momentum * v + (1 - dampening) * (g + weight_decay * w).

    Nesterov's momentum: https://proceedings.mlr.press/v28/sutskever13.html.
    """

    def __init__(self, learning_rate: Rate, momentum: float = 0.0, weight_decay: float = 0.0,
                 dampening: float = 0.0, nesterov: bool = False) -> None:
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening.")
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.dampening = dampening
        self.nesterov = nesterov

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        rate = self.learning_rate.astype(gradient.dtype)
        if self.momentum <= 0:
            return parameter - rate * gradient
        v = self.momentum * state["v"] + ((1 - self.dampening) * gradient if self.dampening > 0 else gradient)
        state["v"] = v
        return parameter - rate * (gradient + self.momentum * v if self.nesterov else v)


class RMSprop(Optimizer):
    """w - rate * g / (sqrt(v) + eps), where v is a running mean of g**2. Tieleman and Hinton 2012, lecture 6.5."""

    def __init__(self, learning_rate: Rate, alpha: float = 0.99, eps: float = 1e-8) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.alpha = alpha
        self.eps = eps
        self._check("alpha", alpha, ">=")
        self._check("epsilon", eps, ">")

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        rate = self.learning_rate.astype(gradient.dtype)
        v = self.alpha * state["v"] + (1 - self.alpha) * mx.square(gradient)
        state["v"] = v
        return parameter - rate * gradient / (mx.sqrt(v) + self.eps)


class Adagrad(Optimizer):
    """w - rate * g / (sqrt(v) + eps), where v is the sum of g**2: https://jmlr.org/papers/v12/duchi11a.html."""

    def __init__(self, learning_rate: Rate, eps: float = 1e-8) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.eps = eps
        self._check("epsilon", eps, ">")

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        rate = self.learning_rate.astype(gradient.dtype)
        v = state["v"] + mx.square(gradient)
        state["v"] = v
        return parameter - rate * gradient / (mx.sqrt(v) + self.eps)


class AdaDelta(Optimizer):
    """w - rate * d, where d = g * sqrt(u + eps) / sqrt(v + eps), v follows g**2 and u follows d**2.

    https://arxiv.org/abs/1212.5701.
    """

    def __init__(self, learning_rate: Rate, rho: float = 0.9, eps: float = 1e-6) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.rho = rho
        self.eps = eps
        self._check("rho", rho, ">=")
        self._check("epsilon", eps, ">")

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["v"] = mx.zeros_like(parameter)
        state["u"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        rate = self.learning_rate.astype(gradient.dtype)
        rho, eps = self.rho, self.eps
        v = rho * state["v"] + (1 - rho) * mx.square(gradient)
        d = mx.sqrt(state["u"] + eps) / mx.sqrt(v + eps) * gradient
        state["v"] = v
        state["u"] = rho * state["u"] + (1 - rho) * mx.square(d)
        return parameter - rate * d


@mx.compile
def adam_step(gradient: mx.array, parameter: mx.array, m: mx.array, v: mx.array, rate: mx.array, step: mx.array | None,
              b1: float, b2: float, eps: float, decay: float | None) -> tuple[mx.array, mx.array, mx.array]:
    """(the parameter's next value, m, v). step: None without bias correction. Compiled, for it is done for each
    parameter that adam_steps does not take: four launches on a GPU instead of fifteen."""
    rate = rate.astype(gradient.dtype)
    if decay is not None:
        parameter = parameter * (1 - rate * decay)
    m = b1 * m + (1 - b1) * gradient
    v = b2 * v + (1 - b2) * mx.square(gradient)
    if step is None:
        return parameter - rate * m / (mx.sqrt(v) + eps), m, v
    m_rate = (rate / (1 - b1**step)).astype(gradient.dtype)
    v_scale = mx.rsqrt(1 - b2**step).astype(gradient.dtype)
    return parameter - m_rate * m / (mx.sqrt(v) * v_scale + eps), m, v


ADAM_MOST = 1024    # parameters of one adam_steps


def adam_steps(parts: list[list[mx.array]], rate: mx.array, step: mx.array | None, b1: float, b2: float, eps: float,
               decay: float | None) -> list[mx.array]:
    """What adam_step gives for each of [gradient, parameter, m, v], of float32, one after the other: the same bits, by
    one operation for all of them."""
    rate = rate.astype(mx.float32)
    shrink = None if decay is None else 1 - rate * decay
    scale = None
    if step is not None:
        rate = (rate / (1 - b1**step)).astype(mx.float32)
        scale = mx.rsqrt(1 - b2**step).astype(mx.float32)
    moved = []
    for first in range(0, len(parts), ADAM_MOST):
        arrays = [array for part in parts[first:first + ADAM_MOST] for array in part]
        moved += _gomlx._adam([rate, shrink, scale, *arrays], b1, b2, eps)
    return moved


class Adam(Optimizer):
    """w - rate * m / (sqrt(v) + eps), where m and v are running means of g and g**2: https://arxiv.org/abs/1412.6980.

    bias_correction makes up for the means having started at zero.
    """

    def __init__(self, learning_rate: Rate, betas: list[float] = [0.9, 0.999], eps: float = 1e-8,
                 bias_correction: bool = False) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        check_betas("Adam", betas)
        self._check("epsilon", eps, ">=")
        self.betas = betas
        self.eps = eps
        self.bias_correction = bias_correction

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["m"] = mx.zeros_like(parameter)
        state["v"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        moved, state["m"], state["v"] = adam_step(gradient, parameter, state["m"], state["v"], *self._numbers())
        return moved

    def _numbers(self):
        return (self.learning_rate, self.step if self.bias_correction else None, *self.betas, self.eps, self._decay())

    def _decay(self) -> float | None:
        return None

    def _apply_all(self, gradients: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
        # The processor moves each parameter as soon as its gradient is there, which keeps less; a GPU in one launch.
        one_step = _gomlx._current_device() > 0 and \
            getattr(self.apply_single, "__func__", None) is Adam.apply_single and \
            self.learning_rate.ndim == 0 and all(isinstance(one, int | float) for one in (*self.betas, self.eps))
        parts: list[list[mx.array]] = []
        states: list[dict[str, Any]] = []

        def collect(gradient, parameter, state):
            """The number of a parameter that moves with others, or its next value."""
            arrays = [gradient, parameter, state["m"], state["v"]]
            if not one_step or any(one.dtype != mx.float32 or one.shape != parameter.shape for one in arrays):
                return self.apply_single(gradient, parameter, state)
            parts.append(arrays)
            states.append(state)
            return len(parts) - 1

        moved = tree_map(collect, gradients, parameters, self.state)
        if not parts:
            return moved
        steps = adam_steps(parts, *self._numbers())
        for k, state in enumerate(states):
            state["m"], state["v"] = steps[3 * k + 1:3 * k + 3]
        return tree_map(lambda one: steps[3 * one] if isinstance(one, int) else one, moved)


class AdamW(Adam):
    """Adam, after the parameter has shrunk by rate * weight_decay of itself: https://arxiv.org/abs/1711.05101."""

    def __init__(self, learning_rate: Rate, betas: list[float] = [0.9, 0.999], eps: float = 1e-8,
                 weight_decay: float = 0.01, bias_correction: bool = False) -> None:
        super().__init__(learning_rate, betas, eps, bias_correction)
        self.weight_decay = weight_decay

    def _decay(self) -> float | None:
        return self.weight_decay


class Adamax(Adam):
    """Adam with a decaying maximum of |g| instead of sqrt(v): https://arxiv.org/abs/1412.6980, section 7."""

    def __init__(self, learning_rate: Rate, betas: list[float] = [0.9, 0.999], eps: float = 1e-8) -> None:
        super().__init__(learning_rate, betas, eps)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        rate = self.learning_rate.astype(gradient.dtype)
        b1, b2 = self.betas
        m = b1 * state["m"] + (1 - b1) * gradient
        v = mx.maximum(b2 * state["v"], mx.abs(gradient))
        state["m"] = m
        state["v"] = v
        return parameter - rate * m / (v + self.eps)


class Lion(Optimizer):
    """w - rate * (sign(c) + weight_decay * w), where c mixes g into the running mean m.

    https://arxiv.org/abs/2302.06675.
    """

    def __init__(self, learning_rate: Rate, betas: list[float] = [0.9, 0.99], weight_decay: float = 0.0) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        check_betas("Lion", betas)
        self.betas = betas
        self.weight_decay = weight_decay

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["m"] = mx.zeros_like(parameter)

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        rate = self.learning_rate.astype(gradient.dtype)
        b1, b2 = self.betas
        m = state["m"]
        c = b1 * m + (1 - b1) * gradient
        state["m"] = b2 * m + (1 - b2) * gradient
        if self.weight_decay > 0:
            parameter = (1 - rate * self.weight_decay) * parameter
        return parameter - rate * mx.sign(c)


class Adafactor(Optimizer):
    """Adam's second moment kept as its rows' and columns' means, and steps relative to the parameter's own size.

    https://arxiv.org/abs/1804.04235; names of the arguments are those of its section 9.
    """

    def __init__(self, learning_rate: Rate | None = None, eps: tuple[float, float] = (1e-30, 1e-3),
                 clip_threshold: float = 1.0, decay_rate: float = -0.8, beta_1: float | None = None,
                 weight_decay: float = 0.0, scale_parameter: bool = True, relative_step: bool = True,
                 warmup_init: bool = False) -> None:
        super().__init__()
        if learning_rate is not None:
            self._maybe_schedule("learning_rate", learning_rate)
        self.eps = eps
        self.clip_threshold = clip_threshold
        self.decay_rate = decay_rate
        self.beta_1 = beta_1
        self.weight_decay = weight_decay
        self.scale_parameter = scale_parameter
        self.relative_step = relative_step
        self.warmup_init = warmup_init

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        shape, dtype = parameter.shape, parameter.dtype
        if parameter.ndim >= 2:
            state["exp_avg_sq_row"] = mx.zeros(shape[:-1], dtype=dtype)
            state["exp_avg_sq_col"] = mx.zeros(shape[:-2] + shape[-1:], dtype=dtype)
        else:
            state["exp_avg_sq"] = mx.zeros_like(parameter)
        if self.beta_1 is not None:
            state["exp_avg"] = mx.zeros_like(parameter)

    def _rate(self, step, parameter):
        if self.relative_step:
            limit = 1e-6 * step if self.warmup_init else 1e-2
            rate = mx.minimum(limit, mx.rsqrt(step))
        else:
            rate = self.learning_rate
        rate = rate.astype(parameter.dtype)
        return rate * mx.maximum(self.eps[1], rms(parameter)) if self.scale_parameter else rate

    def _approximate_exp_moving_avg(self, row, column):
        """One over the root of the second moment, from the means of its rows (..., m) and its columns (..., n)."""
        row = mx.rsqrt(row / mx.mean(row, axis=-1, keepdims=True))
        return row[..., None] * mx.rsqrt(column)[..., None, :]

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        step = self.step
        rate = self._rate(step, parameter)
        b2 = 1.0 - (step**self.decay_rate).astype(gradient.dtype)
        square = mx.square(gradient) + self.eps[0]

        def follow(name, value):
            state[name] = b2 * state[name] + (1 - b2) * value
            return state[name]

        if gradient.ndim >= 2:
            row = follow("exp_avg_sq_row", mx.mean(square, axis=-1))
            column = follow("exp_avg_sq_col", mx.mean(square, axis=-2))
            update = gradient * self._approximate_exp_moving_avg(row, column)
        else:
            update = gradient * mx.rsqrt(follow("exp_avg_sq", square))
        update = rate * (update / mx.maximum(1.0, rms(update) / self.clip_threshold))
        if self.beta_1 is not None:
            update = self.beta_1 * state["exp_avg"] + (1 - self.beta_1) * update
            state["exp_avg"] = update
        if self.weight_decay != 0:
            parameter = parameter - parameter * (self.weight_decay * rate)
        return parameter - update


class Muon(Optimizer):
    """Momentum whose matrices are made orthogonal before they move the parameter: kellerjordan.github.io/posts/muon.

    Not for embeddings, output layers and vectors; convolutions' filters count as matrices of one row per output.
    """

    def __init__(self, learning_rate: Rate, momentum: float = 0.95, weight_decay: float = 0.01,
                 nesterov: bool = True, ns_steps: int = 5) -> None:
        super().__init__()
        self._maybe_schedule("learning_rate", learning_rate)
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.nesterov = nesterov
        self.ns_steps = ns_steps

    def init_single(self, parameter: mx.array, state: dict[str, Any]) -> None:
        state["v"] = mx.zeros_like(parameter)

    def _orthogonalize(self, x):
        """Brings the singular values of the matrix near 1, by a quintic Newton-Schulz iteration."""
        a, b, c = 3.4445, -4.7750, 2.0315
        tall = x.shape[-2] > x.shape[-1]
        if tall:
            x = x.T
        x = x / (mx.linalg.norm(x) + 1e-7)
        for _ in range(self.ns_steps):
            gram = x @ x.T
            x = a * x + mx.addmm(b * gram, gram, gram, beta=1.0, alpha=c) @ x
        return x.T if tall else x

    def apply_single(self, gradient: mx.array, parameter: mx.array, state: dict[str, Any]) -> mx.array:
        if self.weight_decay != 0:
            gradient = gradient + self.weight_decay * parameter
        v = self.momentum * state["v"] + (1 - self.momentum) * gradient
        state["v"] = v
        update = gradient * (1 - self.momentum) + v * self.momentum if self.nesterov else v
        rate = self.learning_rate.astype(gradient.dtype)
        if update.ndim >= 2:
            shape = update.shape
            matrix = self._orthogonalize(update.reshape(shape[0], -1))
            rate = rate * max(1, shape[-2] / shape[-1]) ** 0.5
            update = matrix.reshape(shape)
        return parameter - rate * update


def check_betas(name, betas):
    for i, beta in enumerate(betas, 1):
        if not 0 <= beta < 1:
            raise ValueError(f"{name} beta{i} should be in [0, 1), {beta} was provided instead")


def rms(x):
    """The root mean square of all elements."""
    return mx.sqrt(mx.mean(mx.square(x)))


def clip_grad_norm(grads: Any, max_norm: float) -> tuple[Any, mx.array]:
    """The gradients scaled so that their global norm is at most max_norm, and the norm they had.

    Floating ones keep their dtype; the squares of float16 are summed in float32. https://arxiv.org/abs/1211.5063.
    """
    if max_norm < 0:
        raise ValueError(f"max_norm should be >=0, {max_norm} was provided instead")
    norm = mx.sqrt(sum_of_squares(grads))
    return scale_to_norm(grads, norm, max_norm), norm
