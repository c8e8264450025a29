"""Regular expressions of JSON schemas that look ahead, as several that do not: exact, or None."""
from __future__ import annotations

import re

# One character: itself, escaped, or of a class.
_ONE = r"(?:[A-Za-z0-9 _:@/%&=<>,;!\"'#~`-]|\\[-.\\/:@_$^*+?()\[\]{}|#&~]|\[\^?(?:[A-Za-z0-9 _:@/.-]|\\[-.\\/_dw])+\])"
_AHEAD = re.compile(rf"\(\?!((?:{_ONE})+(?:\|(?:{_ONE})+)*)\)")
_NOWHERE = re.compile(rf"\(\?!\.\*({_ONE})\)")


def without_lookahead(pattern: str) -> list[str] | None:
    """Patterns that a text has to match all of, where this one begins with ^ and (?!...) of a few characters, or of
    anything and one; None: it does not begin so."""
    at, made = 1, []
    if not pattern.startswith("^"):
        return None
    while pattern.startswith("(?!", at):
        found = _AHEAD.match(pattern, at)
        nowhere = None if found else _NOWHERE.match(pattern, at)
        if found:
            made += [f"^({_not_first(re.findall(_ONE, one))})$" for one in _alternatives(found[1])]
        elif nowhere:
            # `.` is no end of a line: beyond the first one the character may stand
            made.append(rf"^{_but(nowhere[1])[:-1]}\n]*(\n[\s\S]*)?$")
        else:
            return None
        at = (found or nowhere).end()
    rest = pattern[at:]
    if not made or "(?=" in rest or "(?!" in rest or "(?<" in rest or _has_alternatives(rest):
        return None
    return [f"^{rest}", *made]


def _alternatives(text):
    return re.findall(rf"(?:{_ONE})+", text)


def _not_first(characters):
    """The pattern of whole texts that do not begin with these."""
    first, *rest = characters
    after = _not_first(rest) if rest else None
    ways = ["", rf"{_but(first)}[\s\S]*"] + ([f"{first}({after})"] if after is not None else [])
    return "|".join(ways)


def _but(one):
    """Any other character."""
    if one.startswith("[^"):
        return f"[{one[2:]}"
    return f"[^{one[1:-1]}]" if one.startswith("[") else f"[^{one if one.startswith(chr(92)) else _in_class(one)}]"


def _in_class(letter):
    return f"\\{letter}" if letter in "-&~#" else letter


def _has_alternatives(pattern):
    """Whether it is several patterns, with | between them."""
    depth, is_class, at = 0, False, 0
    while at < len(pattern):
        c = pattern[at]
        if c == "\\":
            at += 1
        elif is_class:
            is_class = c != "]"
        elif c == "[":
            is_class = True
        elif c in "()":
            depth += 1 if c == "(" else -1
        elif c == "|" and depth == 0:
            return True
        at += 1
    return False
