"""`uniqueItems`: the matcher of a grammar, which does not compare items, and beside it the items of each array.
 (1) An array may be held to it by one of several schemas, say branches of anyOf: it is, then. So no document that is
     not valid passes; one that is, and has equal items in such a place, does not pass either.
 (2) Items are compared as JSON: 1 is 1.0, the order of properties is nothing.
 (3) A mask loses the tokens that make an item equal another one. Where a schema says the values of items, it also loses
     those that lead to no value that is left."""
from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gomlx._generation.array_schemas import all_that
from gomlx.schema import DISTINCT, canonical, found_at, pointer_of_fragment

BLANK = b" \t\n\r"


class _Frame:
    """An object or an array that is open."""
    __slots__ = ("began", "extra", "is_array", "is_distinct", "key", "schemas", "seen", "values", "wants_key")

    def __init__(self, is_array, schemas, is_distinct, values):
        self.is_array, self.schemas, self.is_distinct, self.values = is_array, schemas, is_distinct, values
        self.key = 0 if is_array else None
        self.wants_key = not is_array
        self.began = -1                             # where its item does; -1: none is under way
        self.seen: set[str] = set()                 # its items
        self.extra: tuple[str, ...] = ()            # and those of a trial

    def copy(self, is_trial):
        made = object.__new__(_Frame)
        for name in _Frame.__slots__:
            setattr(made, name, getattr(self, name))
        if not is_trial:
            made.seen = set(self.seen)
        return made

    def left(self):
        """Texts of the values that no item has."""
        return [text for name, text in self.values.items() if name not in self.seen and name not in self.extra]


class Items:
    """A text of JSON, byte by byte, and whether items are equal that may not be."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._text, self._tail = bytearray(), b""
        self._stack: list[_Frame] = []
        self._string = -1                           # where the string began that is under way
        self._escaped = self._is_key = self._is_scalar = False
        self.failed = ""

    def copy(self, is_trial: bool) -> Items:
        made = object.__new__(Items)
        made.__dict__.update(self.__dict__)
        made._stack = [one.copy(is_trial) for one in self._stack]
        if not is_trial:
            made._text = bytearray(self._text)
        return made

    def feed(self, data: bytes) -> None:
        """More of the text."""
        at = len(self._text)
        self._text += data
        for byte in data:
            self._take(byte, at)
            at += 1

    def allows(self, data: bytes) -> bool:
        """Whether the text may go on so."""
        trial = self.copy(True)
        trial._tail = data
        for at, byte in enumerate(data, len(self._text)):
            trial._take(byte, at)
        return not trial.failed and trial._may_end()

    @property
    def in_string(self) -> bool:
        return self._string >= 0

    @property
    def is_held(self) -> bool:
        """Whether an array is open that is."""
        return any(one.is_distinct for one in self._stack)

    @property
    def has_values(self) -> bool:
        """Whether the values of the items of the innermost array are known."""
        return bool(self._stack) and self._stack[-1].is_distinct and self._stack[-1].values is not None

    def _since(self, start):
        return bytes(self._text[start:]) + self._tail[max(0, start - len(self._text)):]

    def _take(self, byte, at):
        if self._string >= 0:
            if self._escaped or byte == 0x5C:
                self._escaped = not self._escaped
            elif byte == 0x22:
                self._end_string(at)
        elif byte in BLANK:
            self._end_scalar(at)
        elif byte in b",]}":
            self._end_scalar(at)
            self._close(byte, at)
        elif byte != 0x3A:
            self._begin(byte, at)

    def _begin(self, byte, at):
        """A value or a name, or a scalar goes on."""
        if self._is_scalar:
            return
        top = self._stack[-1] if self._stack else None
        if top is not None and top.is_array:
            top.began = at
        if byte == 0x22:
            self._string, self._is_key = at, top is not None and top.wants_key
        elif byte in b"{[":
            schemas = [self._root] if top is None else list(self._inner(top))
            self._stack.append(self._frame(byte == 0x5B, [one for each in schemas for one in self._parts(each)]))
        else:
            self._is_scalar = True

    def _end_string(self, at):
        began, self._string = self._string, -1
        if self._is_key:
            self._stack[-1].key = json.loads(self._since(began)[:at + 1 - began])
            self._stack[-1].wants_key = False
        else:
            self._complete(at + 1)

    def _end_scalar(self, at):
        if self._is_scalar:
            self._is_scalar = False
            self._complete(at)

    def _close(self, byte, at):
        top = self._stack[-1]
        if byte != 0x2C:
            self._stack.pop()
            self._complete(at + 1)
        elif top.is_array:
            top.key += 1
            if top.is_distinct and top.values is not None and not top.left():
                self.failed = "no value is left for another item"
        else:
            top.wants_key = True

    def _complete(self, end):
        """A value ends."""
        top = self._stack[-1] if self._stack else None
        if top is None or not top.is_array:
            return
        began, top.began = top.began, -1
        if not top.is_distinct:
            return
        name = canonical(json.loads(self._since(began)[:end - began]))
        if name in top.seen or name in top.extra:
            self.failed = f"two items are {name:.80}"
        elif self._tail:
            top.extra += (name,)
        else:
            top.seen.add(name)

    def _may_end(self):
        """Whether the item that is under way can become another than those before."""
        top = self._stack[-1] if self._stack else None
        if top is None or not top.is_distinct or top.values is None or top.began < 0:
            return True
        part = self._since(top.began)
        return any(one.startswith(part) for one in top.left())

    # ---- which schemas a value is held to ----

    def _frame(self, is_array, schemas):
        is_distinct = is_array and any(one.get(DISTINCT) for one in schemas)
        values = None
        for one in schemas if is_distinct else ():
            said = next((found for inner in self._parts(one.get("items", True)) if (found := all_that(inner))), None)
            if said is not None and "prefixItems" not in one and all(map(_has_one_text, said)):
                values = {canonical(value): json.dumps(value).encode() for value in said}
        return _Frame(is_array, schemas, is_distinct, values)

    def _parts(self, schema) -> Iterator[dict[str, Any]]:
        """The schema and all that it applies to the same value, perhaps."""
        seen, todo = set(), [schema]
        while todo:
            one = todo.pop()
            if not isinstance(one, dict) or id(one) in seen:
                continue
            seen.add(id(one))
            yield one
            for keyword in ("allOf", "anyOf", "oneOf"):
                todo += one.get(keyword, ())
            if "$ref" in one:
                todo.append(found_at(self._root, pointer_of_fragment(one["$ref"])))

    def _inner(self, frame):
        """Schemas of the value that begins in an open one."""
        for one in frame.schemas:
            if frame.is_array:
                first, rest = one.get("prefixItems", ()), one.get("items", True)
                first, rest = (rest, one.get("additionalItems", True)) if isinstance(rest, list) else (first, rest)
                yield first[frame.key] if frame.key < len(first) else rest
                continue
            known, patterns = one.get("properties", {}), one.get("patternProperties", {})
            if frame.key in known:
                yield known[frame.key]
            yield from (inner for pattern, inner in patterns.items() if _may_match(pattern, frame.key))
            if frame.key not in known:
                yield one.get("additionalProperties", True)


def _has_one_text(value):
    """Whether the grammar writes a value as json.dumps does: none with escapes, blanks between parts or fractions."""
    return value is None or isinstance(value, int) or \
        isinstance(value, str) and value.isascii() and value.isprintable() and not set(value) & set('"\\/')


def _may_match(pattern, name):
    """Whether a pattern matches, as far as Python can tell: its own syntax is another one here and there."""
    try:
        return re.search(pattern, name) is not None or not name.isascii()
    except re.error:
        return True


class _Ends:
    """The tokens of a View that may end items: masks of them, by what the text is within."""

    def __init__(self, tokens, special):
        self.special = frozenset(special)
        texts = [b"" if i in self.special else one for i, one in enumerate(tokens)]
        self.in_string = self._mask(texts, lambda one: b'"' in one)
        self.between = self._mask(texts, re.compile(rb'[],} \t\n\r]|".*"', re.DOTALL).search)
        self.opening = self._mask(texts, re.compile(rb"\[.*[],]", re.DOTALL).search)
        self.every = self._mask(texts, bool)

    def _mask(self, texts, are_in):
        import numpy as np  # schemas with uniqueItems alone need it
        return np.packbits([bool(are_in(one)) for one in texts], bitorder="little")


_known: weakref.WeakKeyDictionary[Any, _Ends] = weakref.WeakKeyDictionary()


def _ends_of(view):
    if view not in _known:
        _known[view] = _Ends(view.tokens, view.special_token_ids)
    return _known[view]


class DistinctMatcher:
    """A matcher of llguidance, and the items of what it has read. answer_of: the answer in the text so far."""

    def __init__(self, matcher: Any, view: Any, schema: Any, answer_of: Callable[[str], str] | None) -> None:
        self._matcher, self._view, self._answer_of = matcher, view, answer_of
        self._items, self._ends = Items(schema), _ends_of(view)
        self._before = bytearray() if answer_of is not None else None      # the text, until the answer begins

    def deep_copy(self) -> DistinctMatcher:
        made = object.__new__(DistinctMatcher)
        made.__dict__.update(self.__dict__)
        made._matcher, made._items = self._matcher.deep_copy(), self._items.copy(False)
        made._before = None if self._before is None else bytearray(self._before)
        return made

    def consume_token(self, token: int) -> bool:
        taken = self._matcher.consume_token(token)
        if taken and token not in self._ends.special:
            self._feed(self._view.tokens[token])
        elif taken and self._before is not None:
            self._before += self._view.tokens[token]
        return taken and not self.is_error()

    def consume_tokens(self, tokens: list[int]) -> bool:
        return all(self.consume_token(one) for one in tokens)

    def _feed(self, data):
        if self._before is not None:
            self._before += data
            data = self._answer_of(self._before.decode("utf-8", "ignore")).lstrip().encode()
            if data[:1] not in (b"{", b"[", b'"', b"-", b"t", b"f", b"n") and not data[:1].isdigit():
                return
            self._before = None
        self._items.feed(data)

    def compute_bitmask(self) -> bytes:
        import numpy as np  # as above
        bits = self._matcher.compute_bitmask()
        items = self._items
        if self._before is not None or self.is_error():
            return bits
        ends = self._ends
        if not items.is_held:
            asked = ends.opening
        elif items.has_values:
            asked = ends.every
        else:
            asked = ends.in_string if items.in_string else ends.between
        mask = np.frombuffer(bits, np.uint8).copy()
        n = min(len(mask), len(asked))
        found = np.flatnonzero(np.unpackbits(mask[:n] & asked[:n], bitorder="little"))
        for token in found:
            if not items.allows(self._view.tokens[token]):
                mask[token >> 3] &= ~(1 << (token & 7)) & 0xFF
        return mask.tobytes()

    def is_accepting(self) -> bool:
        return self._matcher.is_accepting() and not self._items.failed

    def is_stopped(self) -> bool:
        return self._matcher.is_stopped() or bool(self._items.failed)

    def is_error(self) -> bool:
        return self._matcher.is_error() or bool(self._items.failed)

    def get_error(self) -> str:
        return self._matcher.get_error() or self._items.failed
