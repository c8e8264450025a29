"""(?i) of patterns in the syntax of Rust's crate regex, which the matcher reads: written out as Python's re has it."""
from __future__ import annotations

import functools
import re

from gomlx._generation.regular import characters as sets
from gomlx._generation.regular.syntax import ESCAPES, Chars, written

# Nothing is tried in a second way: of a class that does not end there are very many.
_ESCAPE = (r"\\(?>[xuU]\{[^}\\]*\}|x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|[pPb]\{[^}\\]*\}|[pP][^{]|.)")
_TOKEN = re.compile(rf"(?P<flags>\(\?[a-zA-Z-]+[:)])|(?P<open>\((?:\?P?<[^>(]*>|\?:)?)|(?P<close>\))"
                    rf"|(?P<set>\[\^?\]?(?>{_ESCAPE}|[^\[\]\\])*+\])|(?P<letter>{_ESCAPE}|.)", re.DOTALL)
_MEMBER = re.compile(rf"{_ESCAPE}|.", re.DOTALL)
_BRACKET = re.compile(rf"\[\^?\]?|{_ESCAPE}|.", re.DOTALL)
_OPERATORS = re.compile(r"&&|--|~~")
_CONTROLS = {"a": 7, **ESCAPES}
_IGNORES_CASE = re.compile(r"(?:\(\?|/)[a-zA-Z]*i")     # in a pattern, or after one in a grammar
_CLASS = re.compile(r"\[|\\[pPwWdDsS]")
MOST_CLASSES = 512              # beside (?i): the matcher takes a millisecond to fold a large one


def check(name: str, text: str) -> None:
    """ValueError: more than MOST_CLASSES character classes in a text that has (?i), or a grammar's /i."""
    count = len(_CLASS.findall(text)) if _IGNORES_CASE.search(text) else 0
    if count > MOST_CLASSES:
        raise ValueError(f"{name}: {count} character classes beside (?i), expected at most {MOST_CLASSES}")


def folded(pattern: str) -> str:
    """The same pattern with all cases of a letter where (?i) is in force: k, K and the sign of kelvin. What Python's re
    does not have, classes within classes, their operators, (?x) and (?-u), is as it was: the matcher folds it by
    itself."""
    made: list[str] = []
    flags = [frozenset("u")]                        # of i and u, in each group that is open
    at = 0
    while at < len(pattern) and (found := _TOKEN.match(pattern, at)):
        text, kind = found[0], found.lastgroup
        if text == "[":                             # there are others in it
            text, kind = pattern[at:_end_of_set(pattern, at)], "sets"
        at += len(text)
        if kind == "flags":
            on, _, off = text[2:-1].partition("-")
            if "x" in on:
                return pattern
            now = (flags[-1] | set(on) & set("iu")) - set(off)
            flags[-1:] = [flags[-1], now] if text[-1] == ":" else [now]
        elif kind == "open":
            flags.append(flags[-1])
        elif kind == "close" and len(flags) > 1:
            flags.pop()
        elif len(flags[-1]) == 2 and kind != "sets":
            text = _set(text) if kind == "set" else _letter(text)
        made.append(text)
    return "".join(made) + pattern[at:]


def _end_of_set(pattern, at):
    depth = 0
    while found := _BRACKET.match(pattern, at):
        depth += (found[0][0] == "[") - (found[0] == "]")
        at = found.end()
        if depth == 0:
            break
    return at


@functools.lru_cache(4096)
def _letter(text):
    code = _code(text)
    one = () if code is None else sets.merged([(code, code)])
    cases = sets.any_case(one)
    return text if cases == one else written(Chars(cases))


def _set(text):
    """A class, with the cases that it lacks as one within it."""
    if _OPERATORS.search(text):
        return text
    members, own, at = _MEMBER.findall(text[2 if text[1] == "^" else 1:-1]), [], 0
    while at < len(members):
        low = high = _code(members[at])
        if members[at + 1:at + 2] == ["-"] and at + 2 < len(members):
            at += 2
            high = _code(members[at])
        at += 1
        if low is not None and high is not None and low <= high:
            own.append((low, high))
    said = sets.merged(own)
    lacking = sets.difference(sets.any_case(said), said)
    return f"{text[:-1]}[{written(Chars(lacking))}]]" if lacking else text


def _code(text):
    """Of the character that a token is; None: it is none, but stands for some."""
    if len(text) == 1:
        return ord(text)
    if text[1] in "xuU" and len(text) > 2:
        digits = text[2:].strip("{}")
        code = int(digits, 16) if re.fullmatch("[0-9A-Fa-f]{1,8}", digits) else 0x110000
        return code if code < 0x110000 else None
    return _CONTROLS.get(text[1]) if text[1].isalnum() else ord(text[1])
