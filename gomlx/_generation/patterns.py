"""Regular expressions of JSON schemas that look ahead, as several that do not: exact, or None."""
from __future__ import annotations

import re

# One character: itself, escaped, or of a class.
_ONE = r"(?:[A-Za-z0-9 _:@/%&=<>,;!\"'#~`-]|\\[-.\\/:@_$^*+?()\[\]{}|#&~]|\[\^?(?:[A-Za-z0-9 _:@/.-]|\\[-.\\/_dw])+\])"
_AHEAD = re.compile(rf"\(\?!\^?((?:{_ONE})+(?:\|(?:{_ONE})+)*)(?:\.\*)?\)")
_NOWHERE = re.compile(rf"\(\?!\.\*({_ONE})\)")
_BLANK = {r"(?!\s*$)": r"\S", r"(?!\s+$)": r"^$|\S"}     # a text that is not blank, or empty


def without_lookahead(pattern: str) -> list[str] | None:
    """Patterns that a text has to match all of, where this one begins with ^ and (?=...), or (?!...) of a few
    characters, of blanks or of anything and one character; None: it does not begin so."""
    at = 1
    made: list[str] = []
    if not pattern.startswith("^"):
        return None
    while pattern.startswith(("(?!", "(?="), at):
        end = _group_end(pattern, at)
        group = pattern[at:end]
        said = [] if end < 0 else _said(group)
        if not said:
            return None
        made += said
        at = end
    rest = pattern[at:]
    if not made or "(?=" in rest or "(?!" in rest or "(?<" in rest or _has_alternatives(rest):
        return None
    return [f"^{rest}", *made]


def _said(group):
    """Patterns of what a group says of a text that it stands at the beginning of."""
    if group in _BLANK:
        return [_BLANK[group]]
    if group.startswith("(?=") and not re.search(r"\(\?[=!<]", group[3:]):
        return [f"^(?:{group[3:-1].removeprefix('^')})"]
    if found := _AHEAD.fullmatch(group):
        return [f"^({_not_first(re.findall(_ONE, one))})$" for one in re.findall(rf"(?:{_ONE})+", found[1])]
    found = _NOWHERE.fullmatch(group)
    if found and not found[1].startswith("[^"):             # which a line's end is, too
        # `.` is no end of a line: beyond the first one the character may stand
        return [rf"^{_but(found[1])[:-1]}\n]*(\n[\s\S]*)?$"]
    return []


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
    return any(c == "|" and depth == 0 for _, c, depth in _letters(pattern))


def _group_end(pattern, at):
    """Where the group that begins there ends; -1: nowhere."""
    return next((at + i + 1 for i, c, depth in _letters(pattern[at:]) if c == ")" and depth == 0), -1)


def _letters(pattern):
    """(place, character, how many groups it is in) of what is neither escaped nor of a class."""
    depth, is_class, is_escaped = 0, False, False
    for i, c in enumerate(pattern):
        if is_escaped or c == "\\":
            is_escaped = not is_escaped
        elif is_class or c == "[":
            is_class = c != "]"
        else:
            depth += (c == "(") - (c == ")")
            yield i, c, depth
