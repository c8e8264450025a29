"""Function transforms: grad, vjp, jvp, vmap, checkpoint, custom_function, compile. They trace a Python function over arrays
that stand for its inputs; what they do with the traced graph is the engine's (csrc/transform)."""
import functools
import os
from contextlib import contextmanager

from gomlx import _gomlx
from gomlx._gomlx import array
from gomlx.trees import fill, flatten, unflatten

__all__ = ["checkpoint", "compile", "custom_function", "disable_compile", "enable_compile", "grad", "jvp",
           "value_and_grad", "vjp", "vmap"]


@contextmanager
def _tracing():
    _gomlx._trace_enter()
    try:
        yield
    finally:
        _gomlx._trace_leave()


def _zeros_where_none(found, like):
    return [_gomlx.full(x.shape, 0, x.dtype) if a is None else a for a, x in zip(found, like)]


def _only_arrays(tree, leaves):
    """Appends the arrays of a tree of nothing but arrays."""
    if isinstance(tree, array):
        leaves.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            _only_arrays(item, leaves)
    elif isinstance(tree, dict):
        for item in tree.values():
            _only_arrays(item, leaves)
    else:
        raise ValueError(f"expected a tree of arrays only, got {type(tree).__name__} in it")
    return leaves


# ---- reverse mode ----

def _numbers(argnums):
    numbers = [argnums] if isinstance(argnums, int) else list(argnums)
    for n in numbers:
        if n < 0:
            raise ValueError(f"grad: argnums must not be negative, got {n}")
        if numbers.count(n) > 1:
            raise ValueError(f"grad: argument {n} is given more than once in argnums")
    return numbers


def _is_scalar(value):
    return isinstance(value, array) and value.ndim == 0


def value_and_grad(fun, argnums=None, argnames=()):
    """A function that returns (value of fun, its gradient) with respect to the chosen arguments.

    fun returns a scalar array, or a tuple whose first item is one. argnums: an int or ints; by default the first argument.
    argnames: names of keyword arguments. The gradient has the structure of the argument; with several argnums it is a
    tuple, with argnames a pair (positional gradients, dict by name)."""
    return _differentiate(fun, argnums, argnames, "value_and_grad", True)


def grad(fun, argnums=None, argnames=()):
    """A function that returns the gradient of fun, which returns a scalar array. See value_and_grad."""
    differentiated = _differentiate(fun, argnums, argnames, "grad", False)

    @functools.wraps(fun, updated=())
    def gradient(*args, **kwargs):
        return differentiated(*args, **kwargs)[1]
    return gradient


def _differentiate(fun, argnums, argnames, name, tuples):
    if not callable(fun):
        raise TypeError(f"{name}: a function is needed, not {type(fun).__name__}")
    names = [argnames] if isinstance(argnames, str) else list(argnames)
    if len(set(names)) != len(names):
        raise ValueError(f"{name}: a name is given more than once in argnames")
    numbers = _numbers(argnums if argnums is not None else [] if names else 0)

    @functools.wraps(fun, updated=())
    def differentiated(*args, **kwargs):
        for n in numbers:
            if n >= len(args):
                raise ValueError(f"{name}: argnums has {n}, but the function was called with {len(args)} positional arguments")
        for key in names:
            if key not in kwargs:
                raise ValueError(f"{name}: argnames has {key!r}, but the function was called with {sorted(kwargs)}")
        leaves = []
        for n in numbers:
            _only_arrays(args[n], leaves)
        for key in names:
            _only_arrays(kwargs[key], leaves)
        with _tracing():
            primals = _gomlx._tracers(leaves)
            each = iter(primals)
            traced = list(args)
            for n in numbers:
                traced[n] = unflatten(args[n], each)
            named = {key: unflatten(kwargs[key], each) for key in names}
            value = fun(*traced, **{**kwargs, **named})
            loss = value[0] if tuples and isinstance(value, tuple) and value else value
            if not isinstance(loss, array):
                kind = "a scalar array or a tuple that begins with one" if tuples else "a scalar array"
                raise ValueError(f"{name}: the function must return {kind}, not {type(value).__name__}")
            if loss.ndim != 0:
                raise ValueError(f"{name}: the function must return an array without dimensions, not one of shape {loss.shape}")
        one = _gomlx.full((), 1, loss.dtype)
        found = iter(_zeros_where_none(_gomlx._vjp([loss], [one], primals), primals))
        by_number = tuple(unflatten(args[n], found) for n in numbers)
        gradient = by_number[0] if len(by_number) == 1 else by_number if by_number else None
        if names:
            gradient = gradient, {key: unflatten(kwargs[key], found) for key in names}
        return value, gradient
    return differentiated


def _run(fun, tracers):
    """The arrays that fun returns: an array, or a list or tuple of them."""
    out = fun(*tracers)
    return [out] if isinstance(out, array) else _only_arrays(out, [])


def vjp(fun, primals, cotangents):
    """(outputs, vector-Jacobian products): lists of arrays. primals and cotangents: lists or tuples of arrays; a cotangent
    for each output, of its shape."""
    primals, cotangents = _only_arrays(primals, []), _only_arrays(cotangents, [])
    with _tracing():
        traced = _gomlx._tracers(primals)
        outputs = _run(fun, traced)
    if len(outputs) != len(cotangents):
        raise ValueError(f"vjp: {len(cotangents)} cotangents for {len(outputs)} outputs")
    for out, cotangent in zip(outputs, cotangents):
        if out.shape != cotangent.shape:
            raise ValueError(f"vjp: an output of shape {out.shape} with a cotangent of shape {cotangent.shape}")
    return outputs, _zeros_where_none(_gomlx._vjp(outputs, cotangents, traced), traced)


def jvp(fun, primals, tangents):
    """(outputs, Jacobian-vector products): lists of arrays. A tangent for each primal, of its shape."""
    primals, tangents = _only_arrays(primals, []), _only_arrays(tangents, [])
    if len(primals) != len(tangents):
        raise ValueError(f"jvp: {len(tangents)} tangents for {len(primals)} primals")
    for primal, tangent in zip(primals, tangents):
        if primal.shape != tangent.shape:
            raise ValueError(f"jvp: a primal of shape {primal.shape} with a tangent of shape {tangent.shape}")
    with _tracing():
        traced = _gomlx._tracers(primals)
        outputs = _run(fun, traced)
    return outputs, _zeros_where_none(_gomlx._jvp(outputs, traced, tangents), outputs)


# ---- vmap ----

def _axes_for(tree, axes, out):
    """One axis (or None) for each array of the tree, from an int, None or a prefix of the tree."""
    if isinstance(axes, (list, tuple)):
        if not isinstance(tree, (list, tuple)) or len(tree) != len(axes):
            raise ValueError("vmap: the axes are not a prefix of the tree that they are given for")
        for item, axis in zip(tree, axes):
            _axes_for(item, axis, out)
    elif isinstance(axes, dict):
        if not isinstance(tree, dict) or tree.keys() != axes.keys():
            raise ValueError("vmap: the axes are not a prefix of the tree that they are given for")
        for key, item in tree.items():
            _axes_for(item, axes[key], out)
    elif axes is None or (isinstance(axes, int) and not isinstance(axes, bool)):
        out += [axes] * len(_only_arrays(tree, []))
    else:
        raise ValueError(f"vmap: an axis must be an int or None, not {type(axes).__name__}")
    return out


def _valid_axes(tree):
    if isinstance(tree, (list, tuple)):
        return all(_valid_axes(item) for item in tree)
    if isinstance(tree, dict):
        return all(_valid_axes(item) for item in tree.values())
    return tree is None or isinstance(tree, int)


def _front(x, axis):
    """(the array with the axis in front, its size)"""
    if not -x.ndim <= axis < x.ndim:
        raise IndexError(f"vmap: axis {axis} of an array of shape {x.shape}")
    axis %= x.ndim
    return (x.moveaxis(axis, 0) if axis else x), x.shape[axis]


def vmap(fun, in_axes=0, out_axes=0):
    """fun over a batch: each array of its arguments has an axis of the batch, or None where it has not. in_axes and
    out_axes: an int, or a tree that is a prefix of the arguments or of what fun returns."""
    for axes in (in_axes, out_axes):
        if axes is None:
            raise TypeError("vmap: the axes must be an int or a tree of ints and None, not None")
        if not _valid_axes(axes):
            raise ValueError("vmap: an axis must be an int or None")

    @functools.wraps(fun, updated=())
    def mapped(*args):
        inputs = _only_arrays(args, [])
        tree = args if isinstance(in_axes, (list, tuple)) else args if not isinstance(in_axes, dict) else args[0]
        axes = _axes_for(tree, in_axes, [])
        if len(axes) != len(inputs):
            raise ValueError("vmap: in_axes does not fit the arguments")
        values, sizes = [], set()
        for x, axis in zip(inputs, axes):
            value, size = (x, None) if axis is None else _front(x, axis)
            values.append(value)
            sizes.add(size)
        sizes.discard(None)
        if len(sizes) > 1:
            raise ValueError(f"vmap: batch axes of different sizes {sorted(sizes)}")
        batched = [axis is not None for axis in axes]
        with _tracing():
            # What has no batch axis keeps its value: only the batch is unknown inside the function.
            places = _gomlx._placeholders([v for v, b in zip(values, batched) if b], [0] * sum(batched))
            each = iter(places)
            traced = [next(each) if b else v for v, b in zip(values, batched)]
            result = fun(*unflatten(args, iter(traced)))
            outputs = _only_arrays(result, [])
        out_places = _axes_for(result, out_axes, [])
        arrays, flags = _gomlx._vmap(outputs, places, [v for v, b in zip(values, batched) if b], [True] * len(places))
        done = []
        for x, has_batch, axis in zip(arrays, flags, out_places):
            if axis is None:
                done.append(x)
                continue
            if not has_batch and sizes:
                x = _gomlx.broadcast_to(x, (*sizes, *x.shape))
            if axis and not -x.ndim <= axis < x.ndim:
                raise IndexError(f"vmap: out axis {axis} of an array of shape {x.shape}")
            done.append(x.moveaxis(0, axis % x.ndim) if axis else x)
        return unflatten(result, iter(done))
    return mapped


# ---- rules of one's own ----

def _single(items):
    return items[0] if len(items) == 1 else tuple(items)


class custom_function:
    """A function with rules of its own for gradients and batching: a decorator, whose methods vjp, jvp and vmap decorate the
    rules. vjp(primals, cotangents, outputs) gives a gradient for each primal; jvp(primals, tangents) a tangent for each
    output; vmap(inputs, axes) gives (outputs, their axes). What is not given is derived as usual; captured arrays have no
    gradient where vjp is given."""

    def __init__(self, f):
        if not callable(f):
            raise TypeError(f"custom_function: a function is needed, not {type(f).__name__}")
        functools.update_wrapper(self, f, updated=())
        self._fun = f
        self._vjp = self._jvp = self._vmap = None

    def vjp(self, f):
        """Decorates the rule of the gradient."""
        self._vjp = f
        return self

    def jvp(self, f):
        """Decorates the rule of the forward derivative."""
        self._jvp = f
        return self

    def vmap(self, f):
        """Decorates the rule of batching."""
        self._vmap = f
        return self

    def __call__(self, *args, **kwargs):
        if not (self._vjp or self._jvp or self._vmap):
            return self._fun(*args, **kwargs)
        positional = list(args)
        inputs = flatten((positional, kwargs), [])
        out = self._fun(*args, **kwargs)
        outputs = _only_arrays(out, [])

        def arguments(leaves):
            again, named = unflatten((positional, kwargs), iter(leaves))
            return again, named

        def on_vjp(primals, cotangents, results):
            again, named = arguments(primals)
            each = iter(cotangents)
            grads = self._vjp(_single(again), unflatten(out, each), unflatten(out, iter(results)), **named)
            return self._aligned(grads, again, named)

        def on_jvp(primals, tangents):
            again, _ = arguments(primals)
            given, _ = arguments(_zeros_where_none(tangents, primals))
            return flatten(self._jvp(_single(again), _single(given)), [])

        def on_vmap(values, batched):
            again, _ = arguments(values)
            axes, _ = _unflatten_any((positional, kwargs), iter([0 if b else None for b in batched]))
            batch = next(v.shape[0] for v, b in zip(values, batched) if b)
            results, out_axes = self._vmap(_single(again), _single(axes))
            done = []
            for x, axis in zip(flatten(results, []), _axes_for(results, out_axes, [])):
                done.append(_gomlx.broadcast_to(x, (batch, *x.shape)) if axis is None else _front(x, axis)[0])
            return done

        made = _gomlx._custom(inputs, outputs, on_vjp if self._vjp else None, on_jvp if self._jvp else None,
                              on_vmap if self._vmap else None)
        return unflatten(out, iter(made))

    @staticmethod
    def _aligned(grads, again, named):
        """The rule's gradients in the order of the inputs: one for each positional argument, and a dict for named ones."""
        by_name = {}
        if named and isinstance(grads, tuple) and len(grads) == 2 and isinstance(grads[1], dict):
            grads, by_name = grads
        listed = list(grads) if len(again) != 1 and isinstance(grads, (list, tuple)) else [grads]
        if len(again) == 1 and isinstance(grads, (list, tuple)) and isinstance(again[0], array):
            listed = list(grads)
        if len(listed) < len(again):
            raise ValueError(f"custom_function: the vjp gave {len(listed)} gradients for {len(again)} arguments")
        out = []
        for argument, gradient in zip(again, listed):
            _match(argument, gradient, out)
        for key, argument in named.items():
            _match(argument, by_name.get(key), out)
        return out


def _match(argument, gradient, out):
    """Appends for each array of the argument its gradient, or None."""
    if isinstance(argument, array):
        out.append(gradient if isinstance(gradient, array) else None)
    elif isinstance(argument, (list, tuple)):
        for i, item in enumerate(argument):
            _match(item, gradient[i] if isinstance(gradient, (list, tuple)) and i < len(gradient) else None, out)
    elif isinstance(argument, dict):
        for key, item in argument.items():
            _match(item, gradient.get(key) if isinstance(gradient, dict) else None, out)


def _unflatten_any(tree, leaves):
    """As unflatten, with leaves that are no arrays."""
    if isinstance(tree, array):
        return next(leaves)
    if isinstance(tree, (list, tuple)):
        return [_unflatten_any(item, leaves) for item in tree]
    if isinstance(tree, dict):
        return {key: _unflatten_any(item, leaves) for key, item in tree.items()}
    return tree


def checkpoint(fun):
    """fun, of which only inputs and outputs are kept for the gradient: what lies between is computed again there."""
    if not callable(fun):
        raise TypeError(f"checkpoint: a function is needed, not {type(fun).__name__}")

    @functools.wraps(fun, updated=())
    def checkpointed(*args, **kwargs):
        inputs = flatten((args, kwargs), [])
        out = fun(*args, **kwargs)

        def again(*leaves):
            new_args, new_kwargs = unflatten((args, kwargs), iter(leaves))
            return flatten(fun(*new_args, **new_kwargs), [])

        def on_vjp(primals, cotangents, _):
            # Not before the cotangents are there: else the second run would keep alive what the first let go of.
            primals = _gomlx.depends(primals, cotangents)
            return vjp(again, primals, cotangents)[1]

        made = _gomlx._custom(inputs, flatten(out, []), on_vjp, None, None)
        return unflatten(out, iter(made))
    return checkpointed


# ---- compile ----

_compiling = {"on": "MLX_DISABLE_COMPILE" not in os.environ}


def disable_compile():
    """Compiled functions run as they are written from now on."""
    _compiling["on"] = False


def enable_compile():
    """Undoes disable_compile."""
    _compiling["on"] = True


def _key_of(tree, shapeless, leaves):
    """What a compiled graph depends on: structure, constants, dtypes and shapes; arrays go to leaves."""
    if isinstance(tree, array):
        leaves.append(tree)
        return tree.dtype, tree.ndim if shapeless else tree.shape
    if isinstance(tree, (list, tuple)):
        return type(tree), *[_key_of(item, shapeless, leaves) for item in tree]
    if isinstance(tree, dict):
        return dict, *[(key, _key_of(item, shapeless, leaves)) for key, item in tree.items()]
    if tree is None or isinstance(tree, (str, int, float)):
        return type(tree), tree
    raise ValueError("compile: arguments must be trees of arrays and constants (numbers, strings, None), not "
                     f"{type(tree).__name__}")


class _Compiled:
    """A function compiled for each combination of structure, constants, dtypes and shapes that it is called with."""

    def __init__(self, fun, inputs, outputs, shapeless):
        functools.update_wrapper(self, fun, updated=())
        self._fun, self._inputs, self._outputs, self._shapeless = fun, inputs, outputs, shapeless
        self._graphs = {}

    def __get__(self, instance, owner=None):
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args, **kwargs):
        leaves = []
        key = _key_of((args, kwargs), self._shapeless, leaves)
        n_arguments = len(leaves)
        if self._inputs is not None:
            flatten(self._inputs, leaves)
            key = key, tuple((x.dtype, x.ndim if self._shapeless else x.shape) for x in leaves[n_arguments:])
        if not _compiling["on"] or any(map(_gomlx._is_tracer, leaves)):
            return self._fun(*args, **kwargs)
        if key not in self._graphs:
            self._graphs[key] = self._trace(args, kwargs, leaves, n_arguments)
        graph, result = self._graphs[key]
        each = iter(graph(leaves))
        value = unflatten(result, each)
        if self._outputs is not None:
            fill(self._outputs, each)
        return value

    def _trace(self, args, kwargs, leaves, n_arguments):
        before = flatten(self._outputs, []) if self._outputs is not None else []
        with _tracing():
            places = _gomlx._placeholders(leaves, [None] * len(leaves))
            new_args, new_kwargs = unflatten((args, kwargs), iter(places[:n_arguments]))
            if self._inputs is not None:
                fill(self._inputs, iter(places[n_arguments:]))
            try:
                result = self._fun(*new_args, **new_kwargs)
                outputs = flatten(result, [])
                if self._outputs is not None:
                    flatten(self._outputs, outputs)
            finally:
                if self._inputs is not None:
                    fill(self._inputs, iter(leaves[n_arguments:]))
                if self._outputs is not None and len(flatten(self._outputs, [])) == len(before):
                    fill(self._outputs, iter(before))
                    if self._inputs is not None:
                        fill(self._inputs, iter(leaves[n_arguments:]))
        skeleton = unflatten(result, iter([array(0)] * len(outputs)))
        return _gomlx._graph(places, outputs, self._shapeless), skeleton


def compile(fun, inputs=None, outputs=None, shapeless=False):
    """fun as a graph that is traced once for each structure, dtypes and shapes of its arguments, simplified, and with its
    elementwise chains fused. inputs, outputs: lists or dicts of state whose arrays the function reads and updates.
    shapeless: a graph serves any shapes of the same number of dimensions. Printing and the like happens while tracing."""
    if not callable(fun):
        raise TypeError(f"compile: a function is needed, not {type(fun).__name__}")
    return _Compiled(fun, inputs, outputs, shapeless)
