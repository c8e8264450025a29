"""Regular expressions of JSON schemas that look around, as others that do not: exact, or None."""
from __future__ import annotations

import re

# One character: itself, escaped, or of a class.
_ONE = r"(?:[A-Za-z0-9 _:@/%&=<>,;!\"'#~`-]|\\[-.\\/:@_$^*+?()\[\]{}|#&~]|\[\^?(?:[A-Za-z0-9 _:@/.-]|\\[-.\\/_dw])+\])"
_AHEAD = re.compile(rf"\(\?!\^?((?:{_ONE})+(?:\|(?:{_ONE})+)*)(?:\.\*)?\)")
_NOWHERE = re.compile(rf"\(\?!\.\*({_ONE})\)")
_BLANK = {r"(?!\s*$)": r"\S", r"(?!\s+$)": r"^$|\S"}     # a text that is not blank, or empty
_NONE_ALL = re.compile(rf"\(\?!\^?({_ONE})([+*])\$\)")
_NO_END = re.compile(rf"\(\?!\.\*({_ONE})\$\)")
_NO_PAIR = re.compile(rf"\(\?!\.\*({_ONE})(?:({_ONE})|\{{2\}})\)")
_NOT_LAST = re.compile(rf"\(\?<!({_ONE})\)\$")
_END = r"(?![\s\S])"
_PIECES = re.compile(r"\\.|\[(?:[^\]\\]|\\.)*\]", re.DOTALL)
_BEYOND = r"\uD800\uDC00-\uDBFF\uDFFF"             # all pairs: what is beyond four digits
_SURROGATES = re.compile(r"\\u([0-9A-Fa-f]{4})(?:-\\u([0-9A-Fa-f]{4}))?")
_PREFIX = re.compile(rf"\^\(\?!((?:{_ONE})+)(?:\.\*)?\)(\.|\[(?:[^\[\]\\&~^]|\\.)+\])([+*]|\{{(\d+),(\d+)\}})\$")


def in_other_words(pattern: str) -> str:
    """The same pattern, in the matcher's syntax: \\Z and (?![\\s\\S]) are $; classes have no halves of surrogate pairs,
    which no text has; .* at an open end is nothing; (?=^...) and (?!^...) at the beginning stand behind the ^."""
    pattern = _PIECES.sub(_piece, pattern)
    if pattern.endswith(_END) and not pattern.endswith("\\" + _END):
        pattern = pattern[:-len(_END)] + "$"
    if re.search(r"[^\\^]\.\*$", pattern) and not _has_alternatives(pattern):
        pattern = pattern[:-2]                  # it says nothing, and takes the matcher long beside a maxLength
    end = _group_end(pattern, 0) if pattern.startswith(("(?=^", "(?!^")) else -1
    if end < 0 or _has_alternatives(pattern):
        return pattern
    if pattern.startswith("(?=") and not _has_alternatives(pattern[4:end - 1]):
        return f"^(?={pattern[4:]}"
    is_at_beginning = pattern.startswith("(?!") and pattern.startswith("^", end)
    return f"^(?!{pattern[4:end]}{pattern[end + 1:]}" if is_at_beginning else pattern


def _piece(found):
    if found[0] == r"\Z":
        return "$"
    return _without_halves(found[0]) if found[0].startswith("[") else found[0]


def _without_halves(characters):
    """A class without the code points of surrogates."""
    def kept(found):
        first, last = int(found[1], 16), int(found[2] or found[1], 16)
        low, high = min(last, 0xD7FF), max(first, 0xE000)
        parts = [(first, low)] * (first <= low) + [(high, last)] * (high <= last)
        return "".join(f"\\u{a:04X}" + (f"-\\u{b:04X}" if b > a else "") for a, b in parts)

    if not re.search(r"\\u[dD][89a-fA-F]", characters):
        return characters
    plain = characters.replace(_BEYOND, "")
    if re.search("-U|U-", _SURROGATES.sub("U", plain)) or any(
            found[2] and int(found[1], 16) > int(found[2], 16) for found in _SURROGATES.finditer(plain)):
        return characters
    made = _SURROGATES.sub(kept, characters.replace(_BEYOND, "\0")).replace("\0", r"\u{10000}-\u{10FFFF}")
    return made if made not in ("[]", "[^]") else characters


def of_names(pattern: str) -> str | None:
    """A pattern of names that begins with ^(?!...) of a few characters, before characters of one class, as one that
    does not look ahead; None: it is another."""
    found = _PREFIX.fullmatch(pattern)
    if found is None:
        return None
    characters = r"[^\n]" if found[2] == "." else found[2]
    if "--" in characters:
        return None
    least, most = {"+": (1, None), "*": (0, None)}.get(found[3]) or (int(found[4]), int(found[5]))
    first = re.findall(_ONE, found[1])
    ways, before = [], ""
    for i, one in enumerate(first):
        if most is not None and i >= most:
            break
        if i >= least:
            ways.append(before)
        rest = f"{{{max(least - i - 1, 0)},{'' if most is None else most - i - 1}}}"
        ways.append(f"{before}[{characters}&&{_but(one)}]{characters}{rest}")
        before += f"[{characters}&&{one if one.startswith('[') else f'[{one}]'}]"
    if most is not None and most <= len(first) - 1 and most >= least:
        ways.append(before)
    return f"^({'|'.join(ways)})$"


def without_lookahead(pattern: str) -> list[str] | None:
    """Patterns that a text has to match all of, where this one begins with ^ and (?=...), or (?!...) of a few
    characters, of blanks or of anything and one character; None: it does not begin so."""
    at = 1
    made: list[str] = []
    if not pattern.startswith("^"):
        return None
    if (found := _NOT_LAST.search(pattern)) and found.end() == len(pattern):
        pattern = pattern[:found.start()] + "$"
        made.append(rf"^([\s\S]*{_but(found[1])})?$")
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
    if found := _NONE_ALL.fullmatch(group):
        return [f"^$|{_but(found[1])}" if found[2] == "+" else _but(found[1])]
    if found := _NO_END.fullmatch(group):
        return [rf"^$|{_but(found[1])}$|\n"]
    found = _NO_PAIR.fullmatch(group)
    if found and not found[1].startswith("[^") and (found[2] or found[1]) == found[1]:
        one, other = found[1], _but_in_line(found[1])
        return [rf"^({other}|{one}{other})*({one})?(\n[\s\S]*)?$"]
    found = _NOWHERE.fullmatch(group)
    if found and not found[1].startswith("[^"):             # which a line's end is, too
        # `.` is no end of a line: beyond the first one the character may stand
        return [rf"^{_but_in_line(found[1])}*(\n[\s\S]*)?$"]
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


def _but_in_line(one):
    """Any other character that ends no line."""
    others = _but(one)[2:]
    return rf"[^\n\{others}" if others.startswith("-") else rf"[^\n{others}"


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
