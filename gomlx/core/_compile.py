"""compile: a Python function becomes a graph that is traced once for each kind of arguments.

(1) The kind of the arguments is one byte string (_gomlx._signature): structure, constants, dtypes, shapes, and the
    device that is entered, where a function makes its nodes.
(2) While a function is traced, the arrays of its arguments and of its state are placeholders. If it raises, the state's
    containers have afterwards what they had before.
(3) Wrappers of one function share their graphs as long as any of them lives."""
from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from gomlx import _gomlx
from gomlx._gomlx import array
from gomlx.core._transforms import need_function, shapeless_tracing, tracing
from gomlx.core._trees import become, containers, fill, flatten, hollow, restore, unflatten

__all__ = ["compile", "disable_compile", "enable_compile"]

P = ParamSpec("P")
R = TypeVar("R")
MOST_GRAPHS = 4096              # of a function: constants that are others at each call would fill the memory
_enabled = "MLX_DISABLE_COMPILE" not in os.environ


def disable_compile() -> None:
    """Compiled functions run as they are written from now on."""
    global _enabled
    _enabled = False


def enable_compile() -> None:
    """Undoes disable_compile."""
    global _enabled
    _enabled = True


class _Graphs:
    """What was traced of a function: by signature (graph, its result without arrays, the state after it without
    arrays)."""

    def __init__(self):
        self.by_signature = {}


PLAIN, FUSED, WHOLE = range(3)              # what _gomlx._graph makes of a trace: graph_kind of csrc/py/graph/graph.c

_graphs = weakref.WeakValueDictionary()    # by the ids of what a _Compiled holds, so the ids are of living objects


class _Compiled(Generic[P, R]):
    def __init__(self, fun: Callable[P, R], inputs: Any, outputs: Any, shapeless: bool) -> None:
        functools.update_wrapper(self, fun, updated=())
        self._fun, self._inputs, self._outputs, self._shapeless = fun, inputs, outputs, shapeless
        self._graphs = _graphs.setdefault((id(fun), id(inputs), id(outputs), shapeless), _Graphs())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        leaves = []
        signature = _gomlx._signature((args, kwargs), self._shapeless, leaves, True)
        n_arguments = len(leaves)
        if self._inputs is not None:
            signature += _gomlx._signature(self._inputs, self._shapeless, leaves, False)
        if not _enabled or _gomlx._any_tracer(leaves):
            return self._fun(*args, **kwargs)
        traced = self._graphs.by_signature.get(signature)
        if traced is None or not leaves:     # without arrays nothing tells whether the state has changed
            return self._first_call(args, kwargs, leaves, n_arguments, signature)
        graph, result, state = traced
        return self._finish(graph(leaves), result, state)

    def _finish(self, values, result, state):
        if type(result) is array and state is None:
            return values[0]
        each = iter(values)
        value = unflatten(result, each)
        if state is not None:
            become(self._outputs, state, each)
        return value

    def _first_call(self, args, kwargs, leaves, n_arguments, signature):
        before = containers(self._outputs, containers(self._inputs, []))
        try:
            traced = self._trace(args, kwargs, leaves, n_arguments)
            values = traced[0](leaves)
        except BaseException:
            restore(before)
            raise
        written = {id(container) for container, _ in containers(self._outputs, [])}
        restore([pair for pair in before if id(pair[0]) not in written])
        if not traced[0].captures_tracer():      # it would outlive what it holds
            graphs = self._graphs.by_signature
            if len(graphs) >= MOST_GRAPHS:
                graphs.pop(next(iter(graphs)), None)
            graphs[signature] = traced
        return self._finish(values, *traced[1:])

    def _trace(self, args, kwargs, leaves, n_arguments):
        with shapeless_tracing if self._shapeless else tracing:
            placeholders = _gomlx._placeholders(leaves, [None] * len(leaves))
            each = iter(_gomlx._copies(placeholders))
            new_args, new_kwargs = unflatten((args, kwargs), each)
            if fill(self._inputs, each) is not self._inputs:
                raise ValueError("compile: the arrays of inputs must be inside of lists or dicts")
            result = self._fun(*new_args, **new_kwargs)
            outputs = flatten(result, [])
            flatten(self._outputs, outputs)
            graph = _gomlx._graph(placeholders, outputs, self._shapeless, FUSED)
        return graph, hollow(result), None if self._outputs is None else hollow(self._outputs)


def compile(fun: Callable[P, R], inputs: Any = None, outputs: Any = None,
            shapeless: bool = False) -> _Compiled[P, R]:
    """fun as a graph that is traced once for each structure, dtypes and shapes of its arguments and each default
    device, simplified, and with its elementwise chains fused. inputs, outputs: lists or dicts of state whose arrays the
    function reads and updates. shapeless: a graph serves any shapes of the same number of dimensions. Printing and the
    like happens while tracing."""
    need_function("compile", fun)
    return _Compiled(fun, inputs, outputs, shapeless)
