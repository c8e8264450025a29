"""`uniqueItems`: the matcher of a grammar, which does not compare items, and beside it the items of each array.
 (1) An array may be held to it by one of several schemas, say branches of anyOf: it is, then. So no document that is
     not valid passes; one that is, and has equal items in such a place, does not pass either.
 (2) Items are compared as JSON: 1 is 1.0, the order of properties is nothing.
 (3) A mask loses the tokens that make an item equal another one, and those after which nothing else can be made: where
     an item under way is written as another begins, a copy of the matcher is asked how it may go on."""
from __future__ import annotations

import bisect
import json
import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from gomlx.schema import DISTINCT, canonical, found_at, pointer_of_fragment

BLANK = b" \t\n\r"


class _Frame:
    """An object or an array that is open."""
    __slots__ = ("began", "extra", "is_array", "is_distinct", "key", "schemas", "seen", "texts", "wants", "wants_key")

    def __init__(self, is_array, schemas, is_distinct):
        self.is_array, self.schemas, self.is_distinct = is_array, schemas, is_distinct
        self.key = 0 if is_array else None
        self.wants_key = not is_array
        self.began = -1                             # where its item does; -1: none is under way
        self.wants = -1                             # where a comma was, after which none has begun
        self.seen: set[str] = set()                 # its items
        self.texts: list[bytes] = []                # how they are written, in order
        self.extra: dict[str, bytes] = {}           # both of a trial

    def copy(self, is_trial):
        made = object.__new__(_Frame)
        for name in _Frame.__slots__:
            setattr(made, name, getattr(self, name))
        made.extra = dict(self.extra)
        if not is_trial:
            made.seen, made.texts = set(self.seen), list(self.texts)
        return made

    def add(self, name, text, is_trial):
        if is_trial:
            self.extra[name] = text
        else:
            self.seen.add(name)
            bisect.insort(self.texts, text)

    def rests(self, part):
        """How items that are written so at their beginning go on, one after another."""
        for i in range(bisect.bisect_left(self.texts, part), len(self.texts)):
            if not self.texts[i].startswith(part):
                break
            yield self.texts[i][len(part):]
        yield from (text[len(part):] for text in self.extra.values() if text.startswith(part))


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

    def after(self, data: bytes) -> Items | None:
        """A trial of the text that goes on so; None: it may not."""
        trial = self.copy(True)
        at = len(self._text) + len(self._tail)
        trial._tail += data
        for byte in data:
            trial._take(byte, at)
            at += 1
        return None if trial.failed else trial

    @property
    def in_string(self) -> bool:
        return self._string >= 0

    @property
    def is_held(self) -> bool:
        """Whether an array is open that is."""
        return any(one.is_distinct for one in self._stack)

    @property
    def is_scalar(self) -> bool:
        """Whether a number, true, false or null is under way."""
        return self._is_scalar

    @property
    def is_escaped(self) -> bool:
        """Whether the text ends within what a backslash begins."""
        return self._string >= 0 and _CUT.search(self._since(self._string)) is not None

    @property
    def is_free(self) -> bool:
        """Whether whatever comes differs from all items before: those under way are written as none of them begins."""
        return all(one.wants < 0 and (one.began < 0 or next(one.rests(self._written(one)), None) is None)
                   for one in self._stack if one.is_distinct)

    @property
    def place(self) -> bytes:
        """The text since the item under way of the outermost array began, and where that was."""
        outer = next((one for one in self._stack if one.is_distinct), None)
        start = 0 if outer is None else max(outer.began, outer.wants, 0)
        return b"%d " % start + self._since(start)

    def rests(self) -> set[bytes]:
        """How the text would go on to be an item that was before."""
        return {rest for one in self._stack if one.is_distinct and (one.began >= 0 or not self._is_scalar)
                for rest in one.rests(self._written(one) if one.began >= 0 else b"")}

    def _written(self, frame):
        return _plain(self._since(frame.began))

    def _since(self, start):
        known = len(self._text)
        return bytes(self._text[start:]) + self._tail[max(0, start - known):]

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
            top.began, top.wants = at, -1
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
            top.wants = at
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
        text = self._since(began)[:end - began]
        name = canonical(json.loads(text))
        if name in top.seen or name in top.extra:
            self.failed = f"two items are {name:.80}"
        else:
            top.add(name, _plain(text), bool(self._tail))

    # ---- which schemas a value is held to ----

    def _frame(self, is_array, schemas):
        is_distinct = is_array and any(one.get(DISTINCT) for one in schemas)
        return _Frame(is_array, schemas, is_distinct)

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


_PARTS = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?$)|[ \t\n\r]+|-?\d+(?:\.\d*)?(?![\d.eE])', re.DOTALL)
_ESCAPE = re.compile(rb"\\(?:[bfnrt]|u[0-9A-Fa-f]{4})")
_CUT = re.compile(rb"(?<!\\)(?:\\\\)*\\(?:u\w{0,3})?$")
_CODES = {b"\\b": b"\\u0008", b"\\t": b"\\u0009", b"\\n": b"\\u000a", b"\\f": b"\\u000c", b"\\r": b"\\u000d"}


def _plain(text):
    """JSON that may be cut off, written in one way: no blanks, no zeros at a fraction's end, escapes as numbers."""
    return _PARTS.sub(_plain_part, text)


def _plain_part(found):
    text = found[0]
    if text.startswith(b'"'):
        return _ESCAPE.sub(lambda one: _CODES.get(one[0]) or one[0].lower(), text) if b"\\" in text else text
    if text[:1] in BLANK:
        return b""
    text = text.rstrip(b"0").rstrip(b".") if b"." in text else text
    return b"0" if text == b"-0" else text


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
        self.texts = [b"" if i in self.special else one for i, one in enumerate(tokens)]
        self.in_string = self._mask(re.compile(rb'".', re.DOTALL).search)
        self.between = self._mask(re.compile(rb'[],} \t\n\r]|".*"', re.DOTALL).search)
        self.opening = self._mask(re.compile(rb"\[.*[],]", re.DOTALL).search)
        self.zeros = self._mask(re.compile(rb"-?\d*\.0*|0+").fullmatch)
        self.escapes = self._mask(lambda one: b"\\" in one)
        self.blank = self._mask(re.compile(rb"[ \t\n\r]").match)
        self.every = self._mask(bool)
        self.longest = max(map(len, self.texts))
        self.ids: dict[bytes, list[int]] = {}
        for i, one in enumerate(self.texts):
            self.ids.setdefault(one, []).append(i)
        del self.ids[b""]

    def _mask(self, are_in):
        import numpy as np  # schemas with uniqueItems alone need it
        return np.packbits([bool(are_in(one)) for one in self.texts], bitorder="little")

    def beginning(self, text: bytes) -> Iterator[int]:
        """The tokens that a text begins with."""
        for end in range(1, min(self.longest, len(text)) + 1):
            yield from self.ids.get(text[:end], ())


_known: weakref.WeakKeyDictionary[Any, _Ends] = weakref.WeakKeyDictionary()
MOST_MASKS = 256                # that a look ahead makes
CHUNK = 1024                    # bytes of a mask that are looked at together
MOST_ZEROS = 18                 # at the end of a fraction: beyond them a number is the same


def _ends_of(view):
    if view not in _known:
        _known[view] = _Ends(view.tokens, view.special_token_ids)
    return _known[view]


def _ids(mask: Any) -> Iterator[int]:
    """The tokens of a mask, found as they are asked for: of many the first few are enough."""
    import numpy as np  # as above
    for start in range(0, len(mask), CHUNK):
        part = np.unpackbits(mask[start:start + CHUNK], bitorder="little")
        yield from (np.flatnonzero(part) + 8 * start).tolist()


class DistinctMatcher:
    """A matcher of llguidance, and the items of what it has read. answer_of: the answer in the text so far."""

    def __init__(self, matcher: Any, view: Any, schema: Any, answer_of: Callable[[str], str] | None) -> None:
        self._matcher, self._view, self._answer_of = matcher, view, answer_of
        self._items, self._ends = Items(schema), _ends_of(view)
        self._before = bytearray() if answer_of is not None else None      # the text, until the answer begins
        self._goes_on: dict[bytes, bool] = {}       # by the place of Items: whether another item is left

    def deep_copy(self) -> DistinctMatcher:
        made = object.__new__(DistinctMatcher)
        made.__dict__.update(self.__dict__)
        made._matcher, made._items = self._matcher.deep_copy(), self._items.copy(False)
        made._before = None if self._before is None else bytearray(self._before)
        made._goes_on = {}
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
        if self._before is not None or self.is_error():
            return bits
        mask = np.frombuffer(bits, np.uint8).copy()
        if len(self._goes_on) > MOST_MASKS:
            self._goes_on = {}
        ahead = None                                # a copy that goes ahead, and back again
        for token in self._doubtful(mask):
            trial = self._items.after(self._ends.texts[token])
            if trial is not None and not trial.is_free:
                ahead = ahead or self._matcher.deep_copy()
                if not self._may_go_on(ahead, trial, token, [MOST_MASKS]):
                    trial = None
            if trial is None:
                mask[token >> 3] &= ~(1 << (token & 7)) & 0xFF
        return mask.tobytes()

    def _doubtful(self, mask):
        """Tokens of a mask that end an item, begin another one, or write one as another is."""
        items, ends = self._items, self._ends
        if not items.is_held:
            asked = ends.opening
        else:
            asked = ends.in_string if items.in_string else ends.between
        rests = items.rests()
        if rests and items.is_scalar:
            asked = asked | ends.zeros
        if items.in_string and any(b"\\u00" in one for one in rests):
            asked = asked | ends.escapes
        if rests and items.is_escaped:
            asked = ends.every
        n = min(len(mask), len(asked))
        found = set(_ids(mask[:n] & asked[:n]))
        for rest in rests:
            found.update(one for one in ends.beginning(rest) if mask[one >> 3] >> (one & 7) & 1)
        return sorted(found)

    def _may_go_on(self, matcher, items, token, masks):
        """Whether a text that a token comes next of has another end than equal items. items: after the token."""
        matcher.consume_token(token)
        found = self._is_left(matcher, items, masks)
        matcher.rollback(1)
        return found

    def _is_left(self, matcher, items, masks):
        """Whether a text can end with items that all differ; one that takes too long to look at can."""
        place = items.place
        if place in self._goes_on:
            return self._goes_on[place]
        if masks[0] == 0:
            return True
        masks[0] -= 1
        if re.search(rb"\.\d*0{%d}$" % MOST_ZEROS, place):
            return False
        self._goes_on[place] = self._has_way(matcher, items, masks)
        return self._goes_on[place]

    def _has_way(self, matcher, items, masks):
        import numpy as np  # as above
        further = []
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        n = min(len(mask), len(self._ends.every))
        allowed = mask[:n] & self._ends.every[:n]
        if not items.in_string and (plain := allowed & ~self._ends.blank[:n]).any():
            allowed = plain                     # blanks that need not be are no way to anything else
        for token in _ids(allowed):
            trial = items.after(self._ends.texts[token])
            if trial is not None and trial.is_free:
                return True
            if trial is not None:
                further.append((token, trial))
        return any(self._may_go_on(matcher, trial, token, masks) for token, trial in sorted(
            further, key=lambda one: -len(self._ends.texts[one[0]])))

    def is_accepting(self) -> bool:
        return self._matcher.is_accepting() and not self._items.failed

    def is_stopped(self) -> bool:
        return self._matcher.is_stopped() or bool(self._items.failed)

    def is_error(self) -> bool:
        return self._matcher.is_error() or bool(self._items.failed)

    def get_error(self) -> str:
        return self._matcher.get_error() or self._items.failed
