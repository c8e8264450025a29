"""Adapters that a loaded model serves beside its own weights: loaded, unloaded, and chosen for each generation."""
from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._training.adapter import MOST_SCALE, Adapter

if TYPE_CHECKING:
    from gomlx._generation.prompt_cache import PromptCache

# The name of one that is loaded, or several with weights, which add up ({}: none); None: what the model has by default.
AdapterChoice = str | Mapping[str, float] | None
NAME_BYTES = 63


class Adaptable:
    """The part of Model that has adapters: low-rank terms of its linear layers. Any number may be loaded, and each
    generation chooses; generations with different ones share forward passes, each to the bits that it has alone.

    adapter     what is used where nothing else is said: a name, {name: weight}, or None
    """
    adapter: AdapterChoice = None
    prompt_cache: PromptCache
    _engine: _gomlx.Model

    def load_adapter(self, source: str | os.PathLike[str] | Adapter, name: str | None = None) -> str:
        """Loads an adapter while the model is in use, and returns its name.

        source      a folder or file that gomlx.read_adapter() reads, or an Adapter
        name        up to 63 bytes; None: the file's or folder's, with a number where that is taken

        Raises ValueError where it does not fit the model (the error names the tensor and both shapes), has numbers that
        are not finite, or the name is taken; NotImplementedError for what cannot be served: terms of experts and
        embeddings, weights that replace the model's."""
        if isinstance(source, (str, os.PathLike)):
            from gomlx._files.adapters import read_adapter  # the readers of four forms, which few programs need
            path = arguments.path("source", source)
            adapter, stem = read_adapter(path, self._engine), stem_of(path)
        else:
            if not isinstance(source, Adapter):
                raise TypeError(f"source: expected a path or a gomlx.Adapter, got {arguments.shown(source)}")
            adapter, stem = source, "adapter"
            adapter.check_finite()
        terms = adapter.engine_terms(self._engine)
        if name is not None:
            self._engine.load_adapter(arguments.text("name", name, "a name"), terms)
            return name
        taken = {one["name"] for one in self._engine.adapters()}
        name = next(one for i in range(1, len(taken) + 2) if (one := stem if i == 1 else f"{stem}-{i}") not in taken)
        self._engine.load_adapter(name, terms)
        return name

    def unload_adapter(self, name: str) -> None:
        """Forgets an adapter; generations that use it go on to their end. What the prompt cache keeps of it goes too,
        and so does its part of model.adapter; the others of a mix keep their weights. ValueError names those that are
        loaded."""
        used = dict(self._shares(None))
        known = {one["name"]: one["hash"] for one in self._engine.adapters()}
        self._engine.unload_adapter(arguments.text("name", name, "a name"))
        if name in known and known[name] not in {one["hash"] for one in self._engine.adapters()}:
            self.prompt_cache.forget_adapter(known[name])
        if name in used:
            del used[name]
            self.adapter = used or None

    @property
    def adapters(self) -> dict[str, dict[str, Any]]:
        """Those that are loaded, by name: "hash" of what it contains, how many "terms" (layers) and "parameters" it
        has, its "bytes" in memory, "ranks" (least, greatest)."""
        return {one["name"]: {"hash": f"{one['hash']:016x}", "terms": one["terms"], "parameters": one["parameters"],
                              "bytes": one["bytes"], "ranks": (one["least_rank"], one["most_rank"])}
                for one in self._engine.adapters()}

    def _shares(self, choice: AdapterChoice) -> list[tuple[str, float]]:
        """What a generation uses, as the engine takes it."""
        if choice is not None:
            return shares_of(checked_choice("adapter", choice))
        return shares_of(None if self.adapter is None else checked_choice("model.adapter", self.adapter))

    def _uses(self, shares: Sequence[tuple[str, float]]) -> tuple[tuple[int, float], ...] | None:
        """What keys that are computed with these shares are known by; None where one is not loaded."""
        known = {one["name"]: one["hash"] for one in self._engine.adapters()} if shares else {}
        if any(name not in known for name, _ in shares):
            return None
        return tuple(sorted((known[name], single(weight)) for name, weight in shares))

    def _check_session(self, session: _gomlx.Session, shares: Sequence[tuple[str, float]], reset: bool) -> None:
        """KvStateNotAvailable where what a session has was computed with other adapters; with reset it is forgotten."""
        begun = session.adapters
        if uses_of(session) == self._uses(shares) or not session.ids:
            return
        if not reset:
            raise _gomlx.KvStateNotAvailable(
                f"the session was begun with {described([(name, weight) for name, _, weight in begun])} and cannot go "
                f"on with {described(shares)}; reset=True forgets what it has")
        session.truncate(0)


def uses_of(session: _gomlx.Session) -> tuple[tuple[int, float], ...]:
    """What a session's keys were computed with, whatever it is called."""
    return tuple(sorted((hashed, weight) for _, hashed, weight in session.adapters))


def shares_of(choice: AdapterChoice) -> list[tuple[str, float]]:
    return [(choice, 1.0)] if isinstance(choice, str) else list((choice or {}).items())


def checked_choice(name: str, value: Any) -> AdapterChoice:
    """A name, or a dict of finite numbers below MOST_SCALE by name."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: expected the name of an adapter or {{name: weight}}, got {arguments.shown(value)}")
    for one, weight in value.items():
        if not isinstance(one, str) or isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise TypeError(f"{name}: expected {{name: weight}}, got {arguments.shown(value)}")
        if not abs(weight) < MOST_SCALE:
            raise ValueError(f"{name}: the weight of {one!r} is {arguments.shown(weight)}, expected a finite number "
                             f"below {MOST_SCALE:g}")
    return {one: float(weight) for one, weight in value.items()}


def described(shares):
    if not shares:
        return "no adapter"
    named = [repr(name) + (f" times {weight:g}" if weight != 1 else "") for name, weight in shares]
    return ("adapter " if len(named) == 1 else "adapters ") + " and ".join(named)


def single(number):
    """A float as the engine has it, in float32."""
    return struct.unpack("f", struct.pack("f", number))[0]


def stem_of(path):
    """What an adapter from there is called: its folder, or its file where that says more."""
    whole = os.path.abspath(path)
    stem, ending = os.path.splitext(os.path.basename(whole))
    if ending == ".safetensors":                # its name is that of its form
        stem = os.path.basename(os.path.dirname(whole))
    elif ending != ".gguf":
        stem += ending
    return stem.encode()[:NAME_BYTES - 4].decode(errors="ignore") or "adapter"
