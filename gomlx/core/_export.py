"""Functions in files: export_function, exporter, import_function; and export_to_dot, which draws a graph.

A file holds one graph for each kind of arguments that the function was traced with, and the constants of all. It is a
program: load it from sources that are trusted as code is."""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import IO, Any, Literal, overload

from gomlx import _gomlx
from gomlx._gomlx import array
from gomlx.core._compile import FUSED, PLAIN, WHOLE
from gomlx.core._primitives import steps
from gomlx.core._transforms import need_function, shapeless_tracing, tracing
from gomlx.core._trees import flatten

__all__ = ["FunctionExporter", "export_function", "export_to_dot", "exporter", "import_function"]


def _arguments(what, args, kwargs):
    """(positional arrays, arrays by name) of arrays, or of one list or tuple and/or one dict of them."""
    if not kwargs:
        if len(args) == 2 and isinstance(args[0], (list, tuple)) and isinstance(args[1], dict):
            args, kwargs = args
        elif len(args) == 1 and isinstance(args[0], (list, tuple)):
            args = args[0]
        elif len(args) == 1 and isinstance(args[0], dict):
            args, kwargs = (), args[0]
    if not all(isinstance(x, array) for x in (*args, *kwargs.values())) or not all(isinstance(k, str) for k in kwargs):
        raise ValueError(f"{what}: the inputs are arrays, by position or by name, or one tuple and/or one dict of "
                         "arrays")
    return list(args), {key: kwargs[key] for key in sorted(kwargs)}


def _kind(positional, named, shapeless):
    """The key of a trace: what distinguishes it from other traces of the function."""
    arrays = [*positional, *named.values()]
    return len(positional), tuple(named), tuple((x.dtype, x.ndim if shapeless else x.shape) for x in arrays)


def _traced(fun, positional, named, shapeless):
    """(placeholders, outputs) of the function over such arguments."""
    arrays = [*positional, *named.values()]
    with shapeless_tracing if shapeless else tracing:
        placeholders = _gomlx._placeholders(arrays, [None] * len(arrays))
        given = _gomlx._copies(placeholders)
        out = fun(*given[:len(positional)], **dict(zip(named, given[len(positional):])))
        outputs = [out] if isinstance(out, array) else out
        if not isinstance(outputs, (list, tuple)) or not all(isinstance(x, array) for x in outputs):
            raise ValueError("export_function: the function must return an array, or a list or tuple of arrays")
        return placeholders, list(outputs)


class FunctionExporter:
    """Writes traces of one function to a file: each call adds what the function does with arguments of such shapes and
    dtypes. Made by exporter(); as a context manager it closes the file at the end, and leaves none after an
    exception."""

    def __init__(self, file: str, fun: Callable[..., Any], shapeless: bool, metadata: str | None) -> None:
        self._fun, self._shapeless, self._kinds = fun, shapeless, set()
        self._file = _gomlx._exporter(file, shapeless, metadata)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._file is None:
            raise RuntimeError("exporter: it is closed")
        positional, named = _arguments("exporter", args, kwargs)
        kind = _kind(positional, named, self._shapeless)
        if kind in self._kinds:
            raise RuntimeError("exporter: the function was traced with such arguments already")
        placeholders, outputs = _traced(self._fun, positional, named, self._shapeless)
        self._file.trace(placeholders, [None] * len(positional) + list(named), outputs)
        self._kinds.add(kind)

    def close(self) -> None:
        """Completes the file. From then on it has its name."""
        file, self._file = self._file, None
        if file is not None:
            file.close(True)

    def __enter__(self) -> FunctionExporter:
        return self

    def __exit__(self, exc_type: object = None, exc_value: object = None, traceback: object = None) -> None:
        if exc_type is None:
            self.close()
        elif self._file is not None:
            self._file.close(False)
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()


def exporter(file: str | os.PathLike[str], fun: Callable[..., Any], *, shapeless: bool = False,
             metadata: str | None = None) -> FunctionExporter:
    """A FunctionExporter, which exports several traces of a function to a file.

    shapeless: a trace serves any shapes of the same numbers of dimensions. metadata: a text that is saved with it."""
    need_function("exporter", fun)
    return FunctionExporter(_path("exporter", file), fun, bool(shapeless), _metadata(metadata))


def export_function(file_or_callback: str | os.PathLike[str] | Callable[[dict[str, Any]], object],
                    fun: Callable[..., Any], *args: Any, shapeless: bool = False, metadata: str | None = None,
                    **kwargs: Any) -> None:
    """Exports what a function does with arguments like these (arrays by position or by name, or one tuple and/or one
    dict of arrays) to a file, for import_function.

    With a callable instead of a file nothing is written: it is called with dictionaries that describe the graph,
    those of "type" inputs, keyword_inputs, outputs, constants, and one of "primitive" for each operation. shapeless:
    the file serves any shapes of the same numbers of dimensions. metadata: a text that is saved with it.

    Functions that use custom_function or checkpoint cannot be exported."""
    need_function("export_function", fun)
    if callable(file_or_callback):
        if metadata is not None:
            raise ValueError("export_function: metadata goes to files; there is none with a callback")
        _show(file_or_callback, fun, *_arguments("export_function", args, kwargs), shapeless)
        return
    with exporter(file_or_callback, fun, shapeless=shapeless, metadata=metadata) as export:
        export(*args, **kwargs)


def _path(what, file):
    if not isinstance(file, (str, os.PathLike)):
        raise TypeError(f"{what}: the file is a path, not {type(file).__name__}")
    return os.fspath(file)


def _metadata(metadata):
    if metadata is not None and (not isinstance(metadata, str) or "\0" in metadata):
        raise TypeError("exporter: metadata is a text without zero characters")
    return metadata


# ---- reading ----

class _Imported:
    """The functions of a file: one graph for each kind of arguments."""

    def __init__(self, shapeless: bool, traces: Any) -> None:
        self._shapeless, self._graphs = shapeless, {}
        for placeholders, names, outputs in traces:
            n = names.index(None) if None in names else 0
            n = sum(name is None for name in names[n:])
            kind = _kind(placeholders[:n], dict(zip(names[n:], placeholders[n:])), shapeless)
            # The plain one is for arguments that are traced themselves: gradients go through it op by op.
            self._graphs[kind] = tuple(_gomlx._graph(placeholders, outputs, shapeless, how) for how in (FUSED, PLAIN))

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[array, ...]:
        positional, named = _arguments("import_function", args, kwargs)
        graphs = self._graphs.get(_kind(positional, named, self._shapeless))
        if graphs is None and len(named) == 1:         # the last positional argument may come by name
            positional, named = [*positional, *named.values()], {}
            graphs = self._graphs.get(_kind(positional, named, self._shapeless))
        if graphs is None:
            raise ValueError("import_function: the function was not exported for "
                             f"{[(x.dtype, x.shape) for x in positional]} and "
                             f"{({k: (x.dtype, x.shape) for k, x in named.items()})}")
        arrays = [*positional, *named.values()]
        return tuple(graphs[_gomlx._any_tracer(arrays)](arrays))


@overload
def import_function(file: str | os.PathLike[str], return_metadata: Literal[False] = False) -> _Imported: ...
@overload
def import_function(file: str | os.PathLike[str], return_metadata: Literal[True]) -> tuple[_Imported, str]: ...
def import_function(file: str | os.PathLike[str], return_metadata: bool = False) -> _Imported | tuple[_Imported, str]:
    """The function of a file that export_function wrote: it takes arrays as export_function does, and returns a tuple
    of arrays. With return_metadata a pair: the function, and the text that was saved with it ("" when there was none).

    A file that is damaged, cut short or of another version is RuntimeError. One that is whole is a program: it is
    checked so that it stays inside its memory, but it may ask for any amount of work, so load what you would run."""
    metadata, shapeless, traces = _gomlx._import(_path("import_function", file))
    function = _Imported(shapeless, traces)
    return (function, metadata) if return_metadata else function


# ---- showing graphs ----

def _letters():
    """A, B, ..., Z, AA, AB, ..."""
    n = 0
    while True:
        name, k = "", n
        while k >= 0:
            name, k = chr(ord("A") + k % 26) + name, k // 26 - 1
        yield name
        n += 1


class _Names:
    """A name for each value (operands >= 0) and constant (< 0) of a graph, given when it is first needed."""

    def __init__(self, given=()):
        self.letters, self.of = _letters(), dict(given)

    def __getitem__(self, operand):
        if operand not in self.of:
            taken = set(self.of.values())
            self.of[operand] = next(name for name in self.letters if name not in taken)
        return self.of[operand]


class _Shown:
    """A graph by MLX's primitives: `primitives` has (step, its inputs, its outputs) of each, the values by number, as
    in `specs`: (shape, dtype) of each value."""

    def __init__(self, graph):
        inputs, self.constants, code, self.results = _gomlx._describe(graph)
        self.n_inputs, self.primitives = len(inputs), []
        self.specs = dict(enumerate(inputs)) | {-1 - k: (x.shape, x.dtype) for k, x in enumerate(self.constants)
                                                if x is not None}
        for _, _, _, first, made in code:
            self.specs |= {first + k: spec for k, spec in enumerate(made)}
        for name, parameters, operands, first, made in code:
            self._add(name, parameters, list(operands), list(range(first, first + len(made))), made)

    def _add(self, name, parameters, operands, results, made):
        parts = steps(name, parameters, [self.specs.get(o) for o in operands], made)
        for step in parts[:-1]:
            between = max(self.specs) + 1
            self.specs[between] = step.outputs[0]
            if step.operand is None:
                self.primitives.append((step, self._there(operands), [between]))
                operands = [between]
            else:
                self.primitives.append((step, [operands[step.operand]], [between]))
                operands[step.operand] = between
        self.primitives.append((parts[-1], self._there(operands), results))

    def _there(self, operands):
        return [o for o in operands if o in self.specs]


def _show(callback, fun, positional, named, shapeless):
    placeholders, outputs = _traced(fun, positional, named, shapeless)
    shown = _Shown(_gomlx._graph(placeholders, outputs, shapeless, WHOLE))
    names = _Names()

    def entries(operands):
        return [(names[o], *shown.specs[o]) for o in operands]

    callback({"inputs": entries(range(shown.n_inputs)), "type": "inputs"})
    callback({"keywords": [(name, names[len(positional) + k]) for k, name in enumerate(named)],
              "type": "keyword_inputs"})
    callback({"outputs": entries(shown.results), "type": "outputs"})
    callback({"constants": [(names[-1 - k], x) for k, x in enumerate(shown.constants) if x is not None],
              "type": "constants"})
    for step, operands, results in shown.primitives:
        callback({"arguments": step.arguments, "outputs": entries(results), "inputs": entries(operands),
                  "name": step.name, "type": "primitive"})


def _dot(outputs, named):
    shown = _Shown(_gomlx._graph([], [*outputs, *named.values()], False, WHOLE))
    names = _Names(zip(shown.results[len(outputs):], named))
    read, seen = {o for _, operands, _ in shown.primitives for o in operands}, set()
    lines = ["digraph {"]
    for i, (step, operands, results) in enumerate(shown.primitives):
        for o in operands:
            if o < 0 and o not in seen:
                seen.add(o)
                lines.append(f'{{ rank=source; "{names[o]}"; }}')
        lines.append(f'{{ {i} [label ="{step.label}", shape=rectangle]; }}')
        lines += [f'"{names[o]}" -> {i}' for o in operands]
        for o in results:
            lines.append(f'{{ {"" if o in read else "rank=sink; "}"{names[o]}"; }}')
            lines.append(f'{i} -> "{names[o]}"')
    return "\n".join([*lines, "}"])


def export_to_dot(file: str | os.PathLike[str] | IO[str], *args: Any, **kwargs: array) -> None:
    """Writes the graph of what is not evaluated yet in the DOT language, for drawing. file: a path, or an object with
    write(). args: (trees of) the output arrays. kwargs: arrays of the graph by the names they shall have in it."""
    outputs = flatten(args, [])
    for value in args:
        if not isinstance(value, (array, list, tuple, dict)):
            raise ValueError(f"export_to_dot: the outputs are arrays, not {type(value).__name__}")
    text = _dot(outputs, kwargs)
    if hasattr(file, "write"):
        file.write(text)
    else:
        with open(file, "w", encoding="utf-8") as out:
            out.write(text)
