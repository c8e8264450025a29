"""Patterns as trees: read from ECMA-262's syntax, written in that of the matcher.

A tree is made of Chars, Cat, Alt and Rep, and of the assertions Start, End, Word and Look, which match no character but
say something of the place."""
from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gomlx._generation.regular import characters as sets
from gomlx._generation.regular.characters import Characters


class Hashed:
    """What never changes: its hash, which depends on all that is in it, is kept."""

    def __hash__(self) -> int:
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = hash((type(self), *(value for name, value in self.__dict__.items() if name[0] != "_")))
            self.__dict__["_hash"] = found
        return found


class Node(Hashed):
    """Part of a pattern. Parts that are the same are equal."""


@dataclass(frozen=True)
class Chars(Node):
    """One character of a set."""
    set: Characters
    __hash__ = Hashed.__hash__


@dataclass(frozen=True)
class Cat(Node):
    """One after another; of none: nothing, which always matches."""
    parts: tuple[Node, ...]
    __hash__ = Hashed.__hash__


@dataclass(frozen=True)
class Alt(Node):
    """One of several; of none: what matches nowhere."""
    parts: tuple[Node, ...]
    __hash__ = Hashed.__hash__


@dataclass(frozen=True)
class Rep(Node):
    """least to most times the same; most None: any number."""
    part: Node
    least: int
    most: int | None
    __hash__ = Hashed.__hash__


@dataclass(frozen=True)
class Start(Node):
    pass


@dataclass(frozen=True)
class End(Node):
    pass


@dataclass(frozen=True)
class Word(Node):
    """\\b, or where there is none."""
    is_negative: bool


@dataclass(frozen=True)
class Look(Node):
    """What is ahead, or behind, matches, or does not."""
    is_ahead: bool
    is_negative: bool
    part: Node
    __hash__ = Hashed.__hash__


EMPTY, NOTHING = Cat(()), Alt(())
ANYTHING = Rep(Chars(sets.ALL), 0, None)            # every text


def cat(parts: Sequence[Node]) -> Node:
    made: list[Node] = []
    for one in parts:
        made += one.parts if isinstance(one, Cat) else [one]
    if NOTHING in made:
        return NOTHING
    return made[0] if len(made) == 1 else Cat(tuple(made))


def alt(parts: Sequence[Node]) -> Node:
    """Sets of characters among them become one."""
    flat: list[Node] = []
    for one in parts:
        flat += one.parts if isinstance(one, Alt) else [one]
    found = [one.set for one in flat if isinstance(one, Chars)]
    made = list(dict.fromkeys(one for one in flat if not isinstance(one, Chars)))
    if found:
        made.insert(0, Chars(sets.union(*found)))
    if EMPTY in made and len(made) > 1:
        made.remove(EMPTY)
        return rep(alt(made), 0, 1)
    return made[0] if len(made) == 1 else Alt(tuple(made))


def rep(part: Node, least: int, most: int | None) -> Node:
    if part == EMPTY or most == 0:
        return EMPTY
    if part == NOTHING:
        return EMPTY if least == 0 else NOTHING
    if least == most == 1:
        return part
    if isinstance(part, Rep) and least == 0 and part.least <= 1 and (part.most is None or most is None):
        return rep(part.part, 0, None)                          # (a*)?, (a+)* and (a?)*
    return Rep(part, least, most)


def inner(node: Node) -> Sequence[Node]:
    """The parts of a part."""
    return node.parts if isinstance(node, Cat | Alt) else (node.part,) if isinstance(node, Rep | Look) else ()


def inside(node: Node) -> Iterator[Node]:
    """A part and all that is in it."""
    yield node
    for one in inner(node):
        yield from inside(one)


def has_assertions(node: Node) -> bool:
    """Kept, as size() is."""
    found: bool | None = node.__dict__.get("_asserts")
    if found is None:
        found = node.__dict__["_asserts"] = isinstance(node, Start | End | Word | Look) or \
            any(map(has_assertions, inner(node)))
    return found


def size(node: Node) -> int:
    """The number of its parts, kept: a part that stands in it twice is not counted through again."""
    found: int | None = node.__dict__.get("_size")
    if found is None:
        found = node.__dict__["_size"] = 1 + sum(map(size, inner(node)))
    return found


def width(node: Node) -> tuple[int, int | None]:
    """The least and the largest number of characters that match; None: any number."""
    found: tuple[int, int | None] | None = node.__dict__.get("_width")
    if found is None:
        found = node.__dict__["_width"] = _width(node)
    return found


def _width(node):
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Cat | Alt):
        widths = [width(one) for one in node.parts] or [(0, 0)]
        mosts = [most for _, most in widths if most is not None]
        together = sum if isinstance(node, Cat) else max
        least = (sum if isinstance(node, Cat) else min)(least for least, _ in widths)
        return least, together(mosts) if len(mosts) == len(widths) else None
    if isinstance(node, Rep):
        least, most = width(node.part)
        return least * node.least, 0 if most == 0 else None if most is None or node.most is None else most * node.most
    return 0, 0


# ---- reading ----

class Unreadable(ValueError):
    """A pattern that is none, or has what no language says: references back, say."""


ESCAPES = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13}
CLASSES = {"d": sets.DIGITS, "w": sets.WORDS, "s": sets.SPACES}
MAX_DEPTH = 100                 # of groups within one another
MAX_REPEATS = 100_000


def parse(pattern: str, is_ours: bool = False) -> Node:
    """The tree of a pattern. is_ours: written() wrote it, which has classes within classes. Unreadable: it cannot be
    read."""
    return _Reader(pattern, is_ours).whole()


class _Reader:
    def __init__(self, pattern, is_ours):
        self.text, self.at, self.is_ours = pattern, 0, is_ours
        self.ignores_case = self.dot_is_all = False
        self.depth = 0

    def whole(self):
        made = self.alternatives()
        if self.at < len(self.text):
            raise Unreadable("unmatched )")
        return made

    def next_is(self, text):
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def take(self):
        if self.at == len(self.text):
            raise Unreadable("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self):
        """Up to the end of a group. Flags of it end with it."""
        flags, ways = (self.ignores_case, self.dot_is_all), [[]]
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("too many groups within one another")
        while self.at < len(self.text) and self.text[self.at] != ")":
            if self.next_is("|"):
                ways.append([])
            else:
                ways[-1].append(self.quantified(self.atom()))
        self.depth -= 1
        self.ignores_case, self.dot_is_all = flags
        return alt([cat(one) for one in ways]) if len(ways) > 1 else cat(ways[0])

    def quantified(self, atom):
        found = self.quantifier()
        if found is None:
            return atom
        self.next_is("?")                           # which of the matches it takes: the same texts match
        if self.at < len(self.text) and self.text[self.at] in "+*?":
            raise Unreadable("multiple quantifiers")
        least, most = found
        if isinstance(atom, Start | End | Word | Look):
            return atom if least > 0 else EMPTY     # at one place it holds as often as one likes, or is left out
        if most is not None and most < least or max(least, most or 0) > MAX_REPEATS:
            raise Unreadable(f"it repeats {least} to {most} times")
        return rep(atom, least, most)

    def quantifier(self):
        for sign, found in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.next_is(sign):
                return found
        end = self.text.find("}", self.at) if self.text.startswith("{", self.at) else -1
        least, comma, most = self.text[self.at + 1:max(end, self.at + 1)].partition(",")
        if end < 0 or not all(one.isascii() and one.isdigit() or not one for one in (least, most)):
            return None
        if not least:
            raise Unreadable("a quantifier without a minimum")
        self.at = end + 1
        return int(least), int(most) if most else None if comma else int(least)

    def atom(self):
        c = self.take()
        if c in "*+?":
            raise Unreadable("nothing to repeat")
        if c == "(":
            return self.group()
        if c == "[":
            return Chars(self.characters())
        if c == ".":
            return Chars(sets.ALL if self.dot_is_all else sets.complement(sets.LINE_ENDS))
        if c in "^$":
            return Start() if c == "^" else End()
        if c == "\\":
            return self.escaped()
        return Chars(self.cased(((ord(c), ord(c)),)))

    def cased(self, found, is_range=False):
        """A set without surrogates; with its other cases where (?i) is in force, and it is a character or a range: a
        class has those that it names."""
        made = sets.merged(found)
        is_folded = self.ignores_case and (is_range or len(made) == 1 and made[0][0] == made[0][1])
        return sets.any_case(made) if is_folded else made

    def group(self):
        if not self.next_is("?"):
            return self.closed(self.alternatives())
        for sign, is_ahead, is_negative in (("=", True, False), ("!", True, True), ("<=", False, False),
                                            ("<!", False, True)):
            if self.next_is(sign):
                return Look(is_ahead, is_negative, self.closed(self.alternatives()))
        if self.next_is("P<") or self.next_is("<"):
            while self.take() != ">":
                pass
            return self.closed(self.alternatives())
        return self.flagged()

    def flagged(self):
        """(?i) to the end of the group around it, (?i:...) and (?:...)."""
        before = self.ignores_case, self.dot_is_all
        while (c := self.take()) not in ":)":
            if c not in "is":
                raise Unreadable(f"a group begins with (?{c}")
            self.ignores_case, self.dot_is_all = self.ignores_case or c == "i", self.dot_is_all or c == "s"
        if c == ")":
            return EMPTY
        made = self.closed(self.alternatives())
        self.ignores_case, self.dot_is_all = before
        return made

    def closed(self, made):
        if self.take() != ")":
            raise Unreadable("missing ), unterminated group")
        return made

    def escaped(self):
        if self.next_is("b") or self.next_is("B"):
            return Word(self.text[self.at - 1] == "B")
        for sign, made in (("A", Start()), ("Z", End()), ("z", End())):     # of Python, Perl and Java
            if self.next_is(sign):
                return made
        return Chars(self.cased(self.escape(False)))

    def escape(self, is_class):
        """The set that stands behind a backslash."""
        c = self.take()
        if c.lower() in CLASSES:
            return CLASSES[c] if c in CLASSES else sets.complement(CLASSES[c.lower()])
        if c in "pP":
            return self.property(c == "P")
        if c in "xu":
            code = self.code(c)
        elif c == "U" and self.is_ours:
            code, self.at = self.hexadecimal(self.text[self.at:self.at + 8], 8), self.at + 8
        elif c == "c":
            code = ord(self.take()) % 32
        elif c in ESCAPES:
            code = ESCAPES[c]
        elif is_class and c == "b":
            code = 8
        elif c == "0" and not self.text[self.at:self.at + 1].isdigit():
            code = 0
        elif c.isascii() and (c.isalnum()):
            raise Unreadable(f"\\{c}")
        else:
            code = ord(c)
        return ((code, code),)

    def code(self, kind):
        """\\x41, \\u0041, \\u{41}, and pairs of surrogates, which are one character."""
        if kind == "u" and self.next_is("{"):
            digits = ""
            while (c := self.take()) != "}":
                digits += c
            return self.hexadecimal(digits)
        length = 2 if kind == "x" else 4
        code = self.hexadecimal(self.text[self.at:self.at + length], length)
        self.at += length
        if 0xD800 <= code < 0xDC00 and self.text.startswith("\\u", self.at):
            digits = self.text[self.at + 2:self.at + 6]
            low = self.hexadecimal(digits, 4) if not digits.startswith("{") else 0
            if 0xDC00 <= low < 0xE000:
                self.at += 6
                return 0x10000 + ((code - 0xD800) << 10) + low - 0xDC00
        return code

    @staticmethod
    def hexadecimal(digits, length=None):
        if not digits or length not in (None, len(digits)) or set(digits) - set("0123456789abcdefABCDEF") or \
                int(digits, 16) > 0x10FFFF:
            raise Unreadable(f"{digits!r:.20} is not a code point")
        return int(digits, 16)

    def property(self, is_negative):
        if not self.next_is("{"):
            raise Unreadable("a property without a name")
        name = ""
        while (c := self.take()) != "}":
            name += c
        for prefix in ("General_Category=", "gc="):
            name = name.removeprefix(prefix)
        found = sets.POSIX.get(name) or sets.category(name)
        if found and self.ignores_case and name not in sets.POSIX:
            found = sets.any_case(found)
        if found is None or is_negative and name in sets.POSIX and name != "ASCII":
            raise Unreadable(f"the property {name!r:.40}")
        return sets.complement(found) if is_negative else found

    def characters(self):
        """Of a class, up to its end. A minus beside a class, or at an end, is itself."""
        is_negative = self.next_is("^")
        found: list[tuple[int, int]] = []
        while not self.next_is("]"):
            low = self.member()
            if not self.text.startswith("-", self.at) or self.text.startswith("-]", self.at):
                found += self.cased(low)
                continue
            self.at += 1
            high = self.member()
            if len(low) == len(high) == 1 and low[0][0] == low[0][1] and high[0][0] == high[0][1]:
                if high[0][0] < low[0][0]:
                    raise Unreadable("a character range is out of order")
                found += self.cased(((low[0][0], high[0][0]),), is_range=True)
            else:
                found += [*self.cased(low), (45, 45), *self.cased(high)]
        made = sets.merged(found)
        return sets.complement(made) if is_negative else made

    def member(self):
        c = self.take()
        if c == "[" and self.is_ours:
            return self.difference()
        return self.escape(True) if c == "\\" else ((ord(c), ord(c)),)

    def difference(self):
        """[\\p{L}--[a]]: a category without some characters."""
        whole = self.member()
        if not self.next_is("--["):
            raise Unreadable("nested character class")
        found = sets.difference(whole, self.characters())
        if not self.next_is("]"):
            raise Unreadable("nested character class")
        return found


# ---- writing ----

MANY = 24                       # ranges from which on a set is written by the categories that it has
CATEGORIES = ("L", "M", "N", "P", "S", "Z", "C", "Lu", "Ll", "Lt", "Lm", "Lo", "Nd", "Nl", "No", "Zs", "Cc")


def written(node: Node) -> str:
    """A tree without assertions, in the matcher's syntax."""
    if isinstance(node, Chars):
        return _class(node.set)
    if isinstance(node, Cat):
        return "".join(_grouped(one) if isinstance(one, Alt) else written(one) for one in node.parts)
    if isinstance(node, Alt):
        return "|".join(written(one) for one in node.parts) if node.parts else r"[^\s\S]"
    assert isinstance(node, Rep)
    sign = {(0, None): "*", (1, None): "+", (0, 1): "?"}.get((node.least, node.most))
    if sign is None:
        most = "" if node.most is None else str(node.most)
        sign = f"{{{node.least}}}" if node.least == node.most else f"{{{node.least},{most}}}"
    return (written(node.part) if isinstance(node.part, Chars) else _grouped(node.part)) + sign


def _grouped(node):
    return f"(?:{written(node)})"


def _class(found):
    if len(found) == 1 and found[0][0] == found[0][1]:
        return _letter(found[0][0])
    if found == sets.ALL:
        return r"[\s\S]"
    if not found:
        return r"[^\s\S]"
    other = sets.complement(found)
    return f"[^{_members(other)}]" if len(other) <= len(found) else f"[{_members(found)}]"


@functools.lru_cache(256)
def _members(found):
    made, left = "", found
    for name in CATEGORIES if len(found) > MANY else ():
        whole = sets.category(name)
        here = sets.intersection(whole, left)
        lacking = sets.difference(whole, here)
        if here and len(lacking) <= MANY < len(whole):
            made += f"[\\p{{{name}}}--[{_members(lacking)}]]" if lacking else f"\\p{{{name}}}"
            left = sets.difference(left, whole)
    for low, high in left:
        made += _letter(low) + ("" if low == high else ("-" if high > low + 1 else "") + _letter(high))
    return made


def _letter(code):
    c = chr(code)
    if c.isascii():
        return c if c.isalnum() or c in " _,:;=<>@!%'\"`" else f"\\{c}" if c.isprintable() and c != "/" else \
            f"\\x{code:02x}"
    return c if c.isprintable() else f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
