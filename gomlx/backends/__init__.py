"""What runs a model: gomlx's own engine, mlx-lm in a process of its own, or what another package brings.

    gomlx.load("path/to/model", backend="mlx_lm", python="/opt/mlx/bin/python")
    gomlx.backends.available()                          # which there are, and why one cannot be used

A backend is an object with a name, why_not() and load(path_or_name, **options). Packages bring theirs as an entry point
of the group `gomlx.backends`, name and object (or a callable that makes it); it is imported when it is needed, and
one that fails is listed with its error.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import gomlx
from gomlx._base.arguments import name_public

if TYPE_CHECKING:
    from gomlx._generation.model import Model

GROUP = "gomlx.backends"
PREFERENCE = ("native", "mlx_lm")               # of default(); then others by name
VARIABLE = "GOMLX_BACKEND"                      # names the default


class Backend(Protocol):
    name: str

    def why_not(self) -> str | None:
        """What is missing, or None when load() may be called."""

    def load(self, path_or_name: str | os.PathLike[str] | None = None, **options: Any) -> Any:
        """A model with generate, chat, info, tokenizer and close, as gomlx.Model has them."""


@dataclass(frozen=True)
class Status:
    name: str
    available: bool
    why: str                                    # what is missing, or what makes it available
    source: str                                 # "built in", "registered", or the distribution that brings it


class Native:
    """gomlx's own engine."""
    name = "native"

    def why_not(self) -> str | None:
        return None

    def load(self, path_or_name: str | os.PathLike[str] | None = None, **options: Any) -> Model:
        return gomlx.load(path_or_name, backend="native", **options)


def bridge():
    from gomlx.backends.mlx_lm import MlxLm  # few programs use it, and it imports subprocess and selectors
    return MlxLm()


BUILT_IN: dict[str, Callable[[], Backend]] = {"native": Native, "mlx_lm": bridge}
_registered: dict[str, Backend] = {}


def register(backend: Backend) -> None:
    """Adds a backend under its name, before built-in ones and entry points."""
    for member in ("name", "why_not", "load"):
        if not hasattr(backend, member):
            raise TypeError(f"a backend has name, why_not and load; {type(backend).__name__} has no {member}")
    _registered[backend.name] = backend


def unregister(name: str) -> None:
    _registered.pop(name, None)


def entry_points():
    from importlib import metadata
    return {one.name: one for one in metadata.entry_points(group=GROUP)}


def names() -> list[str]:
    """All names, in order of preference."""
    known = {*BUILT_IN, *_registered, *entry_points()}
    return [one for one in PREFERENCE if one in known] + sorted(known - set(PREFERENCE))


def get(name: str) -> Backend:
    """The backend of this name; ValueError lists the names there are, RuntimeError says why one cannot be imported."""
    if name in _registered:
        return _registered[name]
    if name in BUILT_IN:
        return BUILT_IN[name]()
    found = entry_points().get(name)
    if found is None:
        raise ValueError(f"unknown backend {name!r}; expected one of " + ", ".join(names()))
    try:
        made = found.load()
        made = made if hasattr(made, "load") and not isinstance(made, type) else made()
    except Exception as error:                  # a package may raise anything when it is imported
        raise RuntimeError(f"backend {name!r} of {source_of(found)} cannot be imported: {type(error).__name__}: "
                           f"{error}") from error
    return made


def source_of(entry_point):
    return entry_point.dist.name if entry_point.dist is not None else entry_point.value


def available() -> list[Status]:
    """All backends in order of preference: whether each can be used, and why."""
    found, brought = [], entry_points()
    for name in names():
        source = "registered" if name in _registered else "built in" if name in BUILT_IN else source_of(brought[name])
        try:
            missing = get(name).why_not()
        except Exception as error:              # the error is shown in its row, and the others are still listed
            missing = str(error) or type(error).__name__
        found.append(Status(name, missing is None, missing or "ready", source))
    return found


def default() -> Backend:
    """The backend that GOMLX_BACKEND names, else the first available one; RuntimeError lists what each one lacks."""
    named = os.environ.get(VARIABLE)
    if named:
        return get(named)
    statuses = available()
    for status in statuses:
        if status.available:
            return get(status.name)
    raise RuntimeError("no backend is available: " + "; ".join(f"{one.name}: {one.why}" for one in statuses))


name_public(globals())
