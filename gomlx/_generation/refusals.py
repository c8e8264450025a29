"""Where in a schema the matcher's refusal comes from: the innermost part that it refuses alone, and the keyword there.
It is asked about parts, by halves, until one is found or it has been asked often enough."""
from __future__ import annotations

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gomlx._generation.negation import NOTES
from gomlx.schema import INNER, LIST, MAP, ONE, Place, Prepared, found_at, pointer_of_fragment

MOST_ASKED = 80
MOST_SECONDS = 1.0
UNKNOWN = "(unknown)"
UNSATISFIABLE = "nsatisfiable"                  # in what the matcher says where no document is valid
DEFINITIONS = ("$defs", "definitions")
# Keywords that have become others, and those that are to blame only where no narrower one is.
REWRITTEN = ("oneOf", *INNER, "uniqueItems", "dependentRequired", "dependentSchemas", "dependencies", "$dynamicRef",
             "$recursiveRef")
WIDE = ("type", "required", *MAP, *LIST, *ONE)

Why = Callable[[Any], str]                      # what the matcher says against a schema; "": it takes it


class _Enough(Exception):
    pass


@dataclass(eq=False)
class _Part:
    """A schema within the prepared one. pointer: of the user's schema that it was made of, or that what it is in was
    made of, by these keywords; is_needed: where it has no valid document, neither has what it is in."""
    schema: dict[str, Any]
    pointer: str
    keywords: tuple[str, ...]
    is_needed: bool
    inner: list[_Part]


def place_of(prepared: Prepared, said: str, why: Why) -> Place:
    """The Place of what the matcher says against a prepared schema; its reason is what it says of that part alone: of
    several faults it names the one that it meets first."""
    search = _Search(prepared, said, why)
    keyword = None
    with contextlib.suppress(_Enough):
        search.descend(search.reachable())
        if search.innermost is None:            # references have to do with it
            search.keeps_references = True
            search.descend([search.root])
        keyword = search.keyword(search.innermost or search.root)
    pointer, keyword = _named(prepared.document, search.innermost or search.root, keyword, search.reason)
    return Place(pointer, keyword, search.reason)


class _Search:
    """innermost: of the parts that fail, the one that was found last; reason: what the matcher says of it."""

    def __init__(self, prepared: Prepared, said: str, why: Why) -> None:
        self.said, self.why = said, why
        self.heard = self.reason = said         # heard: of the last schema that failed
        self.left, self.until = MOST_ASKED, time.monotonic() + MOST_SECONDS
        self.pointers = {id(one): pointer for one, pointer in prepared.origins}
        self.keeps_references = False
        self.whole = prepared.schema
        self.parts: dict[int, _Part] = {}       # of what references lead to
        self.root = self.part_of(self.whole)
        self.innermost: _Part | None = None

    def part_of(self, schema: dict[str, Any]) -> _Part:
        if id(schema) not in self.parts:
            self.parts[id(schema)] = self.made(schema, "", (), True)
        return self.parts[id(schema)]

    def made(self, schema, pointer, keywords, is_needed):
        if id(schema) in self.pointers:
            pointer, keywords = self.pointers[id(schema)], ()
        return _Part(schema, pointer, keywords, is_needed, [
            self.made(one, pointer, (*keywords, keyword), needed) for keyword, one, needed in _inner(schema)
            if isinstance(one, dict)])

    def within(self, part: _Part) -> list[_Part]:
        """The parts of a part that can be what is wrong with it."""
        is_unsatisfiable = UNSATISFIABLE in self.said
        return [one for one in part.inner if one.is_needed or not is_unsatisfiable]

    def target(self, part: _Part) -> list[_Part]:
        """What a part refers to."""
        reference = part.schema.get("$ref")
        found = found_at(self.whole, pointer_of_fragment(reference)) if isinstance(reference, str) else None
        return [self.part_of(found)] if isinstance(found, dict) else []

    def reachable(self) -> list[_Part]:
        """The whole, and what is referred to in it."""
        found: dict[_Part, None] = {}
        left = [self.root]
        while left:
            inside = [left.pop()]
            if inside[0] in found:
                continue
            found[inside[0]] = None
            while inside:
                one = inside.pop()
                inside += self.within(one)
                left += self.target(one)
        return list(found)

    def descend(self, parts: Sequence[_Part]) -> None:
        seen: set[_Part] = set()
        while (found := self.one_of([one for one in parts if one not in seen])) is not None:
            self.innermost, self.reason = found, self.heard
            seen.add(found)
            parts = self.within(found) + (self.target(found) if self.keeps_references else [])

    def one_of(self, parts: Sequence[_Part]) -> _Part | None:
        """One of several that fails alone; None: there is none."""
        if not parts or not self.fails([self.alone(one) for one in parts]):
            return None
        if len(parts) == 1:
            return parts[0]
        while len(parts) > 2:
            half = parts[:len(parts) // 2]
            parts = half if self.fails([self.alone(one) for one in half]) else parts[len(half):]
        return next((one for one in parts if self.fails([self.alone(one)])), None)

    def fails(self, schemas: list[dict[str, Any]]) -> bool:
        """Whether the matcher refuses one of several in the way in which it refuses the whole."""
        if self.left == 0 or time.monotonic() > self.until:
            raise _Enough
        self.left -= 1
        schema = schemas[0] if len(schemas) == 1 else {
            "type": "array", "prefixItems": schemas, "items": False, "minItems": len(schemas)}
        if self.keeps_references:
            schema = schema | {"$defs": {"whole": self.beside}}
        said = self.why(schema)
        found = bool(said) and (UNSATISFIABLE in said) == (UNSATISFIABLE in self.said)
        self.heard = said if found else self.heard
        return found

    @functools.cached_property
    def beside(self) -> Any:
        return _copy(self.whole, True, True)

    def alone(self, part: _Part) -> dict[str, Any]:
        return _copy(part.schema, self.keeps_references, False)

    def keyword(self, part: _Part) -> str | None:
        """The one without which, or else with which alone, a part is taken, or not."""
        schema = self.alone(part)
        keys = sorted((key for key in schema if key not in NOTES),
                      key=lambda key: ((key in WIDE) + (key == "type"), not _is_named(key, self.reason)))
        for key in keys:
            if not self.fails([{other: value for other, value in schema.items() if other != key}]):
                return key
        return next((key for key in keys if self.fails([{key: schema[key]}])), None)


def _inner(schema: dict[str, Any]) -> Iterator[tuple[str, Any, bool]]:
    """(keyword, a schema of its value, whether there is no document without one of it)"""
    names, least = (schema[key] if isinstance(schema.get(key), kind) else kind()
                    for key, kind in (("required", list), ("minItems", int)))
    for key, value in schema.items():
        if key in MAP and key not in DEFINITIONS and isinstance(value, dict):
            yield from ((key, one, key == "properties" and name in names) for name, one in value.items())
        elif key in LIST and isinstance(value, list):
            yield from ((key, one, key == "allOf" or i < least and key in ("prefixItems", "items") or len(value) == 1
                         and key == "anyOf") for i, one in enumerate(value))
        elif key in ONE:
            yield key, value, key == "items" and least > len(schema.get("prefixItems", ()))


def _copy(schema: Any, keeps_references: bool, keeps_definitions: bool) -> Any:
    """A schema as it can stand beside the whole one in #/$defs/whole, or without references."""
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "$ref":
            if keeps_references:
                made[key] = "#/$defs/whole" + value[1:]
        elif key in DEFINITIONS and not keeps_definitions:
            continue
        elif key in MAP and isinstance(value, dict):
            made[key] = {name: _copy(one, keeps_references, keeps_definitions) for name, one in value.items()}
        elif key in LIST and isinstance(value, list):
            made[key] = [_copy(one, keeps_references, keeps_definitions) for one in value]
        else:
            made[key] = _copy(value, keeps_references, keeps_definitions) if key in ONE else value
    return made


def _is_named(keyword: str, said: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(keyword)}(?!\w)", said) is not None


def _named(document: Any, part: _Part, keyword: str | None, said: str) -> tuple[str, str]:
    """The pointer of what a part was made of, and the keyword there that has become the one to blame."""
    schema = found_at(document, part.pointer)
    for one in (keyword, *reversed(part.keywords), *REWRITTEN):
        if one is not None and one in schema:
            return part.pointer, one
    around, _, last = part.pointer.rpartition("/")
    if last in REWRITTEN:                       # a condition, of which more became than stands there
        return around, last
    return part.pointer, next((one for one in schema if _is_named(one, said)), UNKNOWN)
