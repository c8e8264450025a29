"""Writes the stubs of the extension and of gomlx.core from what they have:  python tests/make_stub.py gomlx
Without a folder it prints gomlx/_gomlx.pyi. Names, arguments and defaults are the extension's own signatures, types
those of tests/support/stub_types.py; tests/project/test_packaging.py compares the stubs with what stands here."""
import inspect
import os
import sys
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))

from catalogue import BINARY, UNARY  # noqa: E402
from stub_types import ARGUMENTS, COMPARED, OPERAND, OVERLOADS, RESULTS, SPECIAL  # noqa: E402

NAMESPACES = ("fast", "fft", "linalg", "random")
# Not the same under every Python, object's own, or put there by gomlx/_base/notebook.py.
LEFT_OUT = {"__annotations__", "__doc__", "__module__", "__new__", "__getattribute__", "__init__", "__weakref__",
            "__dict__", "__buffer__", "__release_buffer__", "_repr_html_"}
MADE = "# Made by tests/make_stub.py from the extension's own signatures.\n"
HEAD = MADE + '''import os
from builtins import slice as _slice
from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias, overload

from numpy.typing import NDArray
from typing_extensions import Buffer

from gomlx.core import fast as fast, fft as fft, linalg as linalg, random as random
from gomlx.core._devices import Device, DeviceType, Stream

class SupportsArray(Protocol):
    def __array__(self) -> Any: ...
class SupportsMLXArray(Protocol):
    def __mlx_array__(self) -> Any: ...
class SupportsDLPack(Protocol):
    def __dlpack__(self) -> Any: ...

StreamOrDevice: TypeAlias = Stream | Device | DeviceType | None
# What an operator takes beside an array: numbers, and arrays of others.
Operand: TypeAlias = array | bool | int | float | complex | SupportsArray | SupportsMLXArray
Nested: TypeAlias = Operand | Sequence[Nested]
ArrayInput: TypeAlias = Nested | Buffer | SupportsDLPack
Ids: TypeAlias = Sequence[int] | SupportsArray
Index: TypeAlias = int | _slice | EllipsisType | array | SupportsArray | Sequence[Any] | None

version: str

class AxisError(ValueError, IndexError): ...
class Error(Exception): ...
class ContextLengthExceeded(ValueError):
    prompt_tokens: int
    context_length: int
class KvStateNotAvailable(ValueError): ...
class ModelNotSupported(ValueError, NotImplementedError): ...

class Token(NamedTuple):
    id: int
    text: str
    logprob: float
    finish_reason: str | None
    top_logprobs: tuple[tuple[int, float], ...]
'''
NAMESPACE_HEAD = MADE + '''from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

from gomlx._gomlx import Dtype, Operand, StreamOrDevice, array
'''
CONSTRUCTORS = {
    "array": "    def __init__(self, val: ArrayInput, dtype: Dtype | None = None) -> None: ...\n"
             "    def __buffer__(self, flags: int, /) -> memoryview: ...",
    "Tokenizer": "    def __new__(cls, *args: Any, **kwargs: Any) -> Self: ...",
}


# They take numbers for arrays.
ELEMENTWISE = {*UNARY, *BINARY}


def type_of(owner, argument):
    """owner: the function's name, with its class or namespace before it."""
    default = argument.default
    bare = owner.split(".")[-1]
    if owner in ELEMENTWISE and argument.name in ("a", "b"):
        return OPERAND
    keys = [f"{owner}.{argument.name}", f"{bare}.{argument.name}" if owner.startswith("array.") else None,
            argument.name]
    found = next((ARGUMENTS[key] for key in keys if key in ARGUMENTS), None)
    if found is None:
        found = type(default).__name__ if isinstance(default, (bool, int, float, str)) else "array"
    optional = default is None and "None" not in found.split(" | ") and found != "StreamOrDevice"
    return f"{found} | None" if optional else found


def parameters(owner, value, first):
    """The typed arguments of a function, in brackets; first: self, cls or nothing."""
    shown, kind_before = [], None
    arguments = [one for one in inspect.signature(value).parameters.values() if one.name != "self"]
    shown += [first] if first else []
    positional = [one for one in arguments if one.kind is one.POSITIONAL_ONLY]
    for one in arguments:
        if kind_before is one.POSITIONAL_ONLY and one.kind is not one.POSITIONAL_ONLY:
            shown.append("/")
        if one.kind is one.KEYWORD_ONLY and kind_before not in (one.KEYWORD_ONLY, one.VAR_POSITIONAL):
            shown.append("*")
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        default = "" if one.default is one.empty else f" = {one.default!r}"
        shown.append(f"{stars}{one.name}: {type_of(owner, one)}{default}")
        kind_before = one.kind
    if positional and len(positional) == len(arguments):
        shown.append("/")
    return f"({', '.join(shown)})"


def function(owner, value, indent="", first=""):
    name = owner.split(".")[-1]
    if owner in OVERLOADS:
        return "\n".join(f"{indent}@overload\n{indent}def {name}{one}: ..." for one in OVERLOADS[owner])
    return f"{indent}def {name}{parameters(owner, value, first)} -> {RESULTS.get(owner, 'array')}: ..."


def special(owner, name):
    if name in COMPARED:
        return (f"    def {name}(self, value: object, /) -> array: ...  # type: ignore[override]  "
                "# pyright: ignore[reportIncompatibleMethodOverride]") if owner == "array" else \
            f"    def {name}(self, value: object, /) -> bool: ..."
    taken, result = SPECIAL.get(name, ("*args: Any", "Any"))
    return f"    def {name}(self{', ' if taken else ''}{taken}) -> {RESULTS.get(f'{owner}.{name}', result)}: ..."


def stub_class(name, kind):
    yield f"\nclass {name}:"
    members = [(member, value) for member, value in sorted(vars(kind).items()) if member not in LEFT_OUT]
    if name in CONSTRUCTORS:
        yield CONSTRUCTORS[name]
    for member, value in members:
        owner = f"{name}.{member}"
        if member.startswith("__"):
            yield special(name, member)
        elif isinstance(value, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            settable = name == "Model" and member == "tokenizer"
            yield f"    {member}: {RESULTS[owner]}" if settable else \
                f"    @property\n    def {member}(self) -> {RESULTS.get(owner, 'array')}: ..."
        elif isinstance(value, types.ClassMethodDescriptorType):
            yield "    @classmethod\n" + function(owner, getattr(kind, member), "    ", "cls")
        elif isinstance(value, staticmethod):
            yield "    @staticmethod\n" + function(owner, getattr(kind, member), "    ")
        else:
            yield function(owner, value, "    ", "self")
    if not members:
        yield "    ..."


def extension(module):
    """The text of _gomlx.pyi."""
    members = {name: value for name, value in sorted(vars(module).items())
               if not (name.startswith("__") or name in ("Token", "version") or isinstance(value, types.ModuleType)
                       or isinstance(value, type) and issubclass(value, Exception))}
    lines = [HEAD.rstrip("\n")]
    kinds = {name: value for name, value in members.items() if isinstance(value, type)}
    for name, kind in kinds.items():
        lines += stub_class(name, kind)
    lines.append("")
    for name, value in members.items():
        if name in kinds:
            continue
        if name.startswith("_"):            # the project's own
            lines.append(f"def {name}(*args: Any) -> Any: ...")
        else:
            lines.append(function(name, value) if callable(value) else f"{name}: {type(value).__name__}")
    return "\n".join(lines) + "\n"


def namespace(name, module):
    """The text of core/<name>.pyi: the extension's functions, and those in Python that stand among them."""
    lines, elsewhere = [NAMESPACE_HEAD], []
    for member, value in sorted(vars(module).items()):
        if member.startswith("_"):
            continue
        if isinstance(value, types.FunctionType):
            elsewhere.append(f"from {inspect.unwrap(value).__globals__['__name__']} import {member} as {member}")
        elif callable(value):
            lines.append(function(f"{name}.{member}", value))
        else:
            lines.append(f"{member}: list[array]")
    return lines[0] + "\n".join([*elsewhere, "", *lines[1:]]) + "\n"


def core(module):
    """The text of core/__init__.pyi: where each name of gomlx.core is from."""
    lines = [MADE.rstrip("\n")]
    sources = {"gomlx._gomlx": {name: name for name in module._catalogue if name not in NAMESPACES}}
    for part in module._parts:
        sources[part.__name__] = {name: name for name in part.__all__}
    for alias, name in module._aliases.items():
        next(names for names in sources.values() if name in names)[alias] = name
    taken = set()
    for source, names in reversed(sources.items()):     # of two with one name the later one counts
        sources[source] = {alias: name for alias, name in names.items() if alias not in taken}
        taken |= set(names)
    for source, names in sources.items():
        lines.append(f"from {source} import (")
        lines += [f"    {name} as {alias}," for alias, name in sorted(names.items())]
        lines.append(")")
    lines.append("from gomlx.core._namespace_info import ArrayNamespaceInfo as __array_namespace_info__")
    lines.append("")
    lines.append("from gomlx.core import " + ", ".join(f"{name} as {name}" for name in sorted(module._submodules)))
    lines.append("from gomlx.core.linalg import norm as matrix_norm")
    lines.append("")
    lines += ["__version__: str", *(f"{name}: float" for name in ("e", "euler_gamma", "inf", "nan", "pi")),
              "newaxis: None"]
    lines.append("")
    lines.append("__all__ = [" + ", ".join(f'"{name}"' for name in module.__all__) + "]")
    return "\n".join(lines) + "\n"


def stubs():
    """{path below gomlx: text}."""
    import gomlx.core
    from gomlx import _gomlx
    made = {"_gomlx.pyi": extension(_gomlx), "core/__init__.pyi": core(gomlx.core)}
    made |= {f"core/{name}.pyi": namespace(name, getattr(gomlx.core, name)) for name in NAMESPACES}
    return made


if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(stubs()["_gomlx.pyi"], end="")
    else:
        os.makedirs(os.path.join(sys.argv[1], "core"), exist_ok=True)
        for path, text in stubs().items():
            with open(os.path.join(sys.argv[1], path), "w", encoding="utf-8") as file:
                file.write(text)
