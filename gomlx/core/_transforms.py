"""Function transforms: grad, vjp, jvp, vmap, checkpoint, custom_function. They trace a Python function over arrays that
are its inputs; what they do with the traced graph is the engine's (csrc/transform).

A traced function is given handles of its own: what it does to its arguments' arrays changes neither the caller's arrays
nor what the gradient is taken with respect to. grad and value_and_grad lend them in the caller's own lists, dicts and
modules, as MLX does: what the function writes into those is there afterwards."""
from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from gomlx import _gomlx
from gomlx._gomlx import array
from gomlx.core._dtypes import inexact, issubdtype
from gomlx.core._trees import flatten, hollow, lend, take_back, unflatten

__all__ = ["checkpoint", "custom_function", "grad", "jvp", "value_and_grad", "vjp", "vmap"]
P = ParamSpec("P")
R = TypeVar("R")


class _Tracing:
    """While in its `with` block the calling thread traces: arrays made from tracers are tracers, and keep their inputs.
    shapeless: what is traced is to serve arrays of other shapes too."""

    def __init__(self, shapeless):
        self.shapeless = shapeless

    def __enter__(self):
        _gomlx._trace_enter(self.shapeless)

    def __exit__(self, *exception):
        _gomlx._trace_leave(self.shapeless)


tracing, shapeless_tracing = _Tracing(False), _Tracing(True)


class _Transformed(Generic[P, R]):
    """What a transform returns. As an attribute of a class it is not bound to instances."""

    def __init__(self, fun: Callable[..., Any], call: Callable[P, R]) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._call = call

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(*args, **kwargs)


def need_function(what, f):
    if not callable(f):
        raise TypeError(f"{what}: a function is needed, not {type(f).__name__}")


def _zeros_where_none(found, like):
    return [_gomlx.full(x.shape, 0, x.dtype) if a is None else a for a, x in zip(found, like)]


def _only_arrays(tree, leaves):
    """Appends the arrays of a tree of nothing but arrays."""
    others = []
    flatten(tree, leaves, others)
    if others:
        raise ValueError(f"expected a tree of arrays only, got {type(others[0]).__name__} in it")
    return leaves


def _array_list(what, items):
    """A list of arrays from a list or tuple of them."""
    if not isinstance(items, (list, tuple)) or not all(isinstance(x, array) for x in items):
        raise TypeError(f"{what} must be a list or tuple of arrays")
    return list(items)


# ---- reverse mode ----

def _numbers(argnums, name):
    if not isinstance(argnums, int):
        argnums = list(argnums)
        if not all(isinstance(n, int) for n in argnums):
            raise TypeError(f"{name}: argnums must be an int or ints")
    numbers = [argnums] if isinstance(argnums, int) else sorted(argnums)
    for n in numbers:
        if n < 0:
            raise ValueError(f"{name}: argnums must not be negative, got {n}")
        if numbers.count(n) > 1:
            raise ValueError(f"{name}: argument {n} is given more than once in argnums")
    return numbers


def _names(argnames, name):
    names = [argnames] if isinstance(argnames, str) else list(argnames)
    if not all(isinstance(key, str) for key in names):
        raise TypeError(f"{name}: argnames must be a string or strings")
    if len(set(names)) != len(names):
        raise ValueError(f"{name}: a name is given more than once in argnames")
    return sorted(names)


@overload
def value_and_grad(fun: Callable[Concatenate[array, P], R], argnums: Literal[0] | None = None,
                   argnames: tuple[()] = ()) -> _Transformed[Concatenate[array, P], tuple[R, array]]: ...
@overload
def value_and_grad(fun: Callable[P, R], argnums: int | Sequence[int] | None = None,
                   argnames: str | Sequence[str] = ()) -> _Transformed[P, tuple[R, Any]]: ...
def value_and_grad(fun: Callable[..., Any], argnums: int | Sequence[int] | None = None,
                   argnames: str | Sequence[str] = ()) -> Any:
    """A function that returns (value of fun, its gradient) with respect to the chosen arguments.

    fun returns a scalar array, or a tuple whose first item is one. argnums: an int or ints; by default the first
    argument. argnames: names of keyword arguments. The gradient has the structure of the argument, of dicts where that
    is a module; with several argnums it is a tuple, in the arguments' order; with argnames a pair (positional
    gradients, dict by name). Arrays that are reached as indices have no gradient: ValueError, unless stop_gradient is
    between."""
    return _Transformed(fun, _differentiate(fun, argnums, argnames, "value_and_grad", True))


@overload
def grad(fun: Callable[Concatenate[array, P], array], argnums: Literal[0] | None = None,
         argnames: tuple[()] = ()) -> _Transformed[Concatenate[array, P], array]: ...
@overload
def grad(fun: Callable[P, array], argnums: int | Sequence[int] | None = None,
         argnames: str | Sequence[str] = ()) -> _Transformed[P, Any]: ...
def grad(fun: Callable[..., array], argnums: int | Sequence[int] | None = None,
         argnames: str | Sequence[str] = ()) -> Any:
    """A function that returns the gradient of fun, which returns a scalar array. See value_and_grad."""
    differentiated = _differentiate(fun, argnums, argnames, "grad", False)
    return _Transformed(fun, lambda *args, **kwargs: differentiated(*args, **kwargs)[1])


def _loss_of(value, name, tuples):
    loss = value[0] if tuples and isinstance(value, tuple) and value else value
    if not isinstance(loss, array):
        kind = "a scalar array or a tuple that begins with one" if tuples else "a scalar array"
        raise ValueError(f"{name}: the function must return {kind}, not {type(value).__name__}")
    if loss.ndim != 0:
        raise ValueError(f"{name}: the function must return an array without dimensions, not one of shape {loss.shape}")
    return loss


def _differentiate(fun, argnums, argnames, name, tuples):
    need_function(name, fun)
    names = _names(argnames, name)
    numbers = _numbers(argnums if argnums is not None else [] if names else 0, name)
    if not numbers and not names:
        raise ValueError(f"{name}: no argument is named by argnums or argnames")

    def differentiated(*args, **kwargs):
        for n in numbers:
            if n >= len(args):
                raise ValueError(f"{name}: argnums has {n}, but the function was called with {len(args)} positional "
                                 "arguments")
        for key in names:
            if key not in kwargs:
                raise ValueError(f"{name}: argnames has {key!r}, but the function was called with {sorted(kwargs)}")
        chosen = [*(args[n] for n in numbers), *(kwargs[key] for key in names)]
        leaves = _only_arrays(chosen, [])
        if not leaves:
            raise ValueError(f"{name}: the chosen arguments have no array")
        structure = hollow(chosen)
        with tracing:
            primals = _gomlx._tracers(leaves)
            lent = {}
            try:
                each = iter(_gomlx._copies(primals))
                traced = [lend(tree, each, lent) for tree in chosen]
                positional = list(args)
                for n, tree in zip(numbers, traced):
                    positional[n] = tree
                value = fun(*positional, **{**kwargs, **dict(zip(names, traced[len(numbers):]))})
            finally:
                for tree in chosen:
                    take_back(tree, lent)
            loss = _loss_of(value, name, tuples)
            one = _gomlx.full((), 1, loss.dtype)
            found = _gomlx._vjp([loss], [one], primals)
        found = unflatten(structure, iter(_zeros_where_none(found, primals)))
        by_number = tuple(found[:len(numbers)])
        gradient = by_number[0] if len(by_number) == 1 else by_number or None
        if names:
            gradient = gradient, dict(zip(names, found[len(numbers):]))
        return value, gradient
    return differentiated


def _run(name, fun, tracers):
    """The arrays that fun returns: an array, or a list or tuple of them."""
    out = fun(*_gomlx._copies(tracers))
    if isinstance(out, array):
        return [out]
    if not isinstance(out, (list, tuple)) or not all(isinstance(x, array) for x in out):
        raise ValueError(f"{name}: the function must return an array, or a list or tuple of arrays")
    return list(out)


def vjp(fun: Callable[..., array | Sequence[array]], primals: Sequence[array],
        cotangents: Sequence[array]) -> tuple[list[array], list[array]]:
    """(outputs, vector-Jacobian products): lists of arrays. primals and cotangents: lists or tuples of arrays; a
    cotangent for each output, of its shape. Outputs of stop_gradient need none."""
    need_function("vjp", fun)
    primals, cotangents = _array_list("vjp: primals", primals), _array_list("vjp: cotangents", cotangents)
    with tracing:
        traced = _gomlx._tracers(primals)
        outputs = _run("vjp", fun, traced)
        moving = [out for out in outputs if _gomlx._op_name(out) != "stop_gradient"]
        if len(cotangents) == len(outputs):
            moving = outputs
        if len(cotangents) != len(moving):
            raise ValueError(f"vjp: {len(cotangents)} cotangents for {len(moving)} outputs")
        for out, cotangent in zip(moving, cotangents):
            if out.shape != cotangent.shape:
                raise ValueError(f"vjp: an output of shape {out.shape} with a cotangent of shape {cotangent.shape}")
        found = _gomlx._vjp(moving, cotangents, traced)
    return outputs, _zeros_where_none(found, traced)


def jvp(fun: Callable[..., array | Sequence[array]], primals: Sequence[array],
        tangents: Sequence[array]) -> tuple[list[array], list[array]]:
    """(outputs, Jacobian-vector products): lists of arrays. A tangent for each primal, of its shape."""
    need_function("jvp", fun)
    primals, tangents = _array_list("jvp: primals", primals), _array_list("jvp: tangents", tangents)
    if len(primals) != len(tangents):
        raise ValueError(f"jvp: {len(tangents)} tangents for {len(primals)} primals")
    for primal, tangent in zip(primals, tangents):
        if primal.shape != tangent.shape:
            raise ValueError(f"jvp: a primal of shape {primal.shape} with a tangent of shape {tangent.shape}")
    with tracing:
        traced = _gomlx._tracers(primals)
        outputs = _run("jvp", fun, traced)
        found = _gomlx._jvp(outputs, traced, tangents)
    return outputs, _zeros_where_none(found, outputs)


# ---- vmap ----

def _is_axis(axis):
    return axis is None or isinstance(axis, int)


def _valid_axes(tree):
    if isinstance(tree, (list, tuple)):
        return all(map(_valid_axes, tree))
    if isinstance(tree, dict):
        return all(map(_valid_axes, tree.values()))
    return _is_axis(tree)


def _axes_below(tree, axes, out):
    if _is_axis(axes):
        out += [axes] * len(_only_arrays(tree, []))
    elif isinstance(axes, dict) and isinstance(tree, dict) and tree.keys() == axes.keys():
        for key, item in tree.items():
            _axes_below(item, axes[key], out)
    elif isinstance(axes, (list, tuple)) and isinstance(tree, list if isinstance(axes, list) else tuple) \
            and len(tree) == len(axes):
        for item, axis in zip(tree, axes):
            _axes_below(item, axis, out)
    else:
        raise ValueError("vmap: the axes are not a prefix of the tree that they are given for")


def _axes_for(tree, axes):
    """One axis (or None) for each array of the tree, from an int, None or a tree that is a prefix of it. For one array
    a tuple of one axis will do."""
    if isinstance(tree, array) and isinstance(axes, tuple) and len(axes) == 1:
        axes = axes[0]
    out = []
    _axes_below(tree, axes, out)
    return out


def _front(x, axis, what):
    if not -x.ndim <= axis < x.ndim:
        raise _gomlx.AxisError(f"vmap: axis {axis} is out of range for an {what} with {x.ndim} dimensions, of shape "
                               f"{x.shape}")
    return x.moveaxis(axis, 0) if axis % x.ndim else x


class _Batches(threading.local):
    """Of the vmaps that this thread is in: (array, axis) as the caller gave them, by the node with its batch in
    front."""

    def __init__(self):
        self.given = []

    def find(self, x, batched):
        if batched:
            node = _gomlx._node_id(x)
            for given in reversed(self.given):
                if node in given:
                    return given[node]
        return x, 0 if batched else None


_batches = _Batches()


def vmap(fun: Callable[P, R], in_axes: Any = 0, out_axes: Any = 0) -> _Transformed[P, R]:
    """fun over a batch: each array of its arguments has a batch axis, or None. in_axes and
    out_axes: an int, or a tree of ints and None that is a prefix of the arguments (of the one argument, where there is
    one) or of what fun returns. An output with None has no batch axis; it must not depend on the batch."""
    need_function("vmap", fun)
    for axes in (in_axes, out_axes):
        if axes is None:
            raise TypeError("vmap: the axes must be an int or a tree of ints and None, not None")
        if not _valid_axes(axes):
            raise ValueError("vmap: an axis must be an int or None")

    def mapped(*args):
        inputs = _only_arrays(args, [])
        axes = _axes_for(args[0] if len(args) == 1 else args, in_axes)
        if all(axis is None for axis in axes):
            raise ValueError("vmap: an axis of the batch is needed for at least one array")
        values = [x if axis is None else _front(x, axis, "array") for x, axis in zip(inputs, axes)]
        batches = [v for v, axis in zip(values, axes) if axis is not None]
        sizes = {x.shape[0] for x in batches}
        if len(sizes) > 1:
            raise ValueError(f"vmap: batch axes of different sizes {sorted(sizes)}")
        with tracing:
            # What has no batch axis keeps its value: only the batch is unknown inside the function.
            placeholders = _gomlx._placeholders(batches, [0] * len(batches))
            each = iter(_gomlx._copies(placeholders))
            result = fun(*unflatten(args, iter([v if axis is None else next(each) for v, axis in zip(values, axes)])))
            outputs = _only_arrays(result, [])
            out_places = _axes_for(result, out_axes)
            _batches.given.append({_gomlx._node_id(v): (x, axis) for x, v, axis in zip(inputs, values, axes)
                                   if axis is not None})
            try:
                arrays, flags = _gomlx._vmap(outputs, placeholders, batches, [True] * len(placeholders))
            finally:
                _batches.given.pop()
        return unflatten(result, iter([_placed(x, batched, axis, *sizes)
                                       for x, batched, axis in zip(arrays, flags, out_places)]))
    return _Transformed(fun, mapped)


def _placed(x, batched, axis, size):
    """A result with the batch axis at its position in out_axes."""
    if axis is None:
        if batched:
            raise ValueError("vmap: an output with axis None depends on the batch")
        return x
    if not batched:
        x = _gomlx.broadcast_to(x, (size, *x.shape))
    if not -x.ndim <= axis < x.ndim:
        raise _gomlx.AxisError(f"vmap: out axis {axis} is out of range for an output with {x.ndim} dimensions, of "
                               f"shape "
                              f"{x.shape}")
    return x.moveaxis(0, axis % x.ndim) if axis % x.ndim else x


# ---- custom rules ----

def _single(items):
    return items[0] if len(items) == 1 else tuple(items)


class custom_function(Generic[P, R]):
    """A function with custom rules for gradients and batching: a decorator, whose methods vjp, jvp and vmap
    decorate the rules. vjp(primals, cotangents, outputs) gives a gradient for each primal; jvp(primals, tangents) a
    tangent for each output; vmap(inputs, axes) gives (outputs, their axes). What is not given is derived as usual. A
    function with rules is pure: arrays that it captures have no gradient."""

    def __init__(self, f: Callable[P, R]) -> None:
        need_function("custom_function", f)
        functools.update_wrapper(self, f, updated=())
        self._fun = f
        self._vjp = self._jvp = self._vmap = None

    def vjp(self, f: Callable[..., Any]) -> custom_function[P, R]:
        """Decorates the rule of the gradient."""
        need_function("custom_function.vjp", f)
        self._vjp = f
        return self

    def jvp(self, f: Callable[..., Any]) -> custom_function[P, R]:
        """Decorates the rule of the forward derivative."""
        need_function("custom_function.jvp", f)
        self._jvp = f
        return self

    def vmap(self, f: Callable[..., Any]) -> custom_function[P, R]:
        """Decorates the rule of batching."""
        need_function("custom_function.vmap", f)
        self._vmap = f
        return self

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        out = self._fun(*args, **kwargs)
        if not (self._vjp or self._jvp or self._vmap):
            return out
        rules = _Rules(self._fun, self._vjp, self._jvp, self._vmap, args, kwargs, out)
        # Derivatives follow the rules, not the graph of the function.
        outputs = [_gomlx.stop_gradient(x) for x in _only_arrays(out, [])]
        made = _gomlx._custom(flatten((args, kwargs), []), outputs, rules.on_vjp, rules.on_jvp,
                              rules.on_vmap if self._vmap else None)
        return unflatten(out, iter(made))


class _Rules:
    """The rules of one call of a custom function, over flat lists of arrays as the engine has them. It keeps the
    structure of arguments and results, not their arrays: those would keep the graph alive that holds these rules."""

    def __init__(self, fun, vjp_rule, jvp_rule, vmap_rule, args, kwargs, out):
        self.fun, self.vjp_rule, self.jvp_rule, self.vmap_rule = fun, vjp_rule, jvp_rule, vmap_rule
        self.arguments, self.n_named, self.results = hollow((args, kwargs)), len(kwargs), hollow(out)

    def again(self, *leaves):
        """The function itself, from arrays to arrays."""
        args, kwargs = unflatten(self.arguments, iter(leaves))
        return flatten(self.fun(*args, **kwargs), [])

    def derivable(self, *leaves):
        """The function itself, to which arrays of integers are constants: they may be indices."""
        return self.again(*[x if issubdtype(x.dtype, inexact) else _gomlx.stop_gradient(x) for x in leaves])

    def on_vjp(self, primals, cotangents, outputs):
        if not self.vjp_rule:
            return vjp(self.derivable, primals, cotangents)[1]
        args, kwargs = unflatten(self.arguments, iter(primals))
        grads = self.vjp_rule(_single(args), unflatten(self.results, iter(cotangents)),
                              unflatten(self.results, iter(outputs)), **kwargs)
        by_name = {}
        if kwargs and isinstance(grads, tuple) and len(grads) == 2 and isinstance(grads[1], dict):
            grads, by_name = grads
        found = []
        if len(args) == 1 and not (isinstance(args[0], array)
                                   and isinstance(grads, (list, tuple))) or not isinstance(grads, (list, tuple)):
            grads = [grads]
        for i, argument in enumerate(args):
            _match(argument, grads[i] if i < len(grads) else None, found)
        for key, argument in kwargs.items():
            _match(argument, by_name.get(key), found)
        return found

    def on_jvp(self, primals, tangents):
        if not self.jvp_rule:
            return jvp(self.derivable, primals, _zeros_where_none(tangents, primals))[1]
        args, kwargs = unflatten(self.arguments, iter(primals))
        if kwargs:
            raise ValueError("custom_function: a jvp rule takes positional arguments only; the function had "
                             f"{sorted(kwargs)} by name")
        given, _ = unflatten(self.arguments, iter(tangents))
        return flatten(self.jvp_rule(_single(args), _single(given)), [])

    def on_vmap(self, values, batched):
        size = next(v.shape[0] for v, b in zip(values, batched) if b)
        given = [_batches.find(v, b) for v, b in zip(values, batched)]
        args, kwargs = unflatten(self.arguments, iter([x for x, _ in given]))
        axes, _ = unflatten(self.arguments, iter([axis for _, axis in given]))
        if kwargs:
            raise ValueError("custom_function: a vmap rule takes positional arguments only; the function had "
                             f"{sorted(kwargs)} by name")
        pair = self.vmap_rule(_single(args), _single(axes))
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise ValueError("custom_function: a vmap rule gives a pair: outputs, and their axes")
        return [_gomlx.broadcast_to(x, (size, *x.shape)) if axis is None else _front(x, axis, "output")
                for x, axis in zip(flatten(pair[0], []), _axes_for(*pair))]


def _match(argument, gradient, out):
    """Appends for each array of the argument its gradient, or None."""
    if isinstance(argument, array):
        if gradient is not None and not isinstance(gradient, array):
            raise ValueError("custom_function: a vjp rule gives arrays or None where the primals have arrays, not "
                             f"{type(gradient).__name__}")
        out.append(gradient)
    elif isinstance(argument, (list, tuple)):
        for i, item in enumerate(argument):
            _match(item, gradient[i] if isinstance(gradient, (list, tuple)) and i < len(gradient) else None, out)
    elif isinstance(argument, dict):
        for key, item in argument.items():
            _match(item, gradient.get(key) if isinstance(gradient, dict) else None, out)


def checkpoint(fun: Callable[P, R]) -> _Transformed[P, R]:
    """fun, of which only inputs and outputs are kept for the gradient: what is between them is computed again there.
    Arrays that fun captures have no gradient."""
    need_function("checkpoint", fun)

    def checkpointed(*args, **kwargs):
        out = fun(*args, **kwargs)
        rules = _Rules(fun, None, None, None, args, kwargs, out)

        def on_vjp(primals, cotangents, _):
            # Only after the cotangents: otherwise the second run would keep alive what the first one has freed.
            return vjp(rules.derivable, _gomlx.depends(primals, cotangents), cotangents)[1]

        outputs = flatten(out, [])
        made = _gomlx._custom(flatten((args, kwargs), []), outputs, on_vjp, None, None) if outputs else []
        return unflatten(out, iter(made))
    return _Transformed(fun, checkpointed)
