"""Sets of characters: ranges of code points, sorted, apart from each other. No text has halves of surrogate pairs: they
are in no set."""
from __future__ import annotations

import functools
import itertools
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

Characters = tuple[tuple[int, int], ...]

ALL: Characters = ((0, 0xD7FF), (0xE000, 0x10FFFF))
DIGITS: Characters = ((0x30, 0x39),)
WORDS: Characters = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# What ECMA-262 calls white space and ends of lines.
SPACES: Characters = ((0x09, 0x0D), (0x20, 0x20), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029),
                      (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
LINE_ENDS: Characters = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
# Of POSIX and Java, which mean those of ASCII.
POSIX: dict[str, Characters] = {"Graph": ((0x21, 0x7E),), "Print": ((0x20, 0x7E),), "ASCII": ((0, 0x7F),)}
LONG_NAMES = {"Letter": "L", "Mark": "M", "Number": "N", "Punctuation": "P", "Symbol": "S", "Separator": "Z",
              "Other": "C", "Lowercase_Letter": "Ll", "Uppercase_Letter": "Lu", "Decimal_Number": "Nd",
              "Control": "Cc", "Space_Separator": "Zs"}
ASSIGNED = (range(0x32400), range(0xE0000, 0xE0200))       # beyond them no plane has characters but private ones
LETTERS = range(0x20000)                                   # beyond them none has an upper and a lower case
PRIVATE: Characters = ((0xF0000, 0xFFFFD), (0x100000, 0x10FFFD))


def merged(ranges: Iterable[tuple[int, int]]) -> Characters:
    """The set of these ranges, in any order, without surrogates."""
    made: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if made and low <= made[-1][1] + 1:
            made[-1] = made[-1][0], max(made[-1][1], high)
        else:
            made.append((low, high))
    return intersection(tuple(made), ALL) if any(low <= 0xDFFF and high >= 0xD800 for low, high in made) \
        else tuple(made)


def union(*sets: Characters) -> Characters:
    return merged(itertools.chain(*sets))


def intersection(one: Characters, other: Characters) -> Characters:
    made, i, k = [], 0, 0
    while i < len(one) and k < len(other):
        low, high = max(one[i][0], other[k][0]), min(one[i][1], other[k][1])
        if low <= high:
            made.append((low, high))
        if one[i][1] < other[k][1]:
            i += 1
        else:
            k += 1
    return tuple(made)


def complement(one: Characters) -> Characters:
    made, at = [], 0
    for low, high in one:
        if low > at:
            made.append((at, low - 1))
        at = high + 1
    if at <= 0x10FFFF:
        made.append((at, 0x10FFFF))
    return intersection(tuple(made), ALL)


def difference(one: Characters, other: Characters) -> Characters:
    return intersection(one, complement(other))


@functools.lru_cache(256)
def any_case(one: Characters) -> Characters:
    """With what differs from its characters in case alone, as Python's re has it: k has the sign of kelvin, too. Kept,
    as category() is: a pattern may ask for hundreds of ranges again and again."""
    letters, others = _cases()
    lacking = {other for low, high in one for other in others[bisect_left(letters, low):bisect_right(letters, high)]
               if not low <= other <= high}
    return merged([*one, *((code, code) for code in lacking)])


@functools.cache
def _cases():
    """(letters, in order, as often as they have other cases; these)"""
    roots: dict[str, str] = {}                          # {upper case: the first lower case that has it}
    found: dict[str, list[int]] = {}                    # {lower case: all that differ from it in case alone}
    blocks = ("".join(map(chr, range(at, at + 256))) for at in LETTERS[::256])
    for c in itertools.chain.from_iterable(one for one in blocks if one.lower() != one.upper()):
        lower, upper = c.lower()[0], c.upper()          # of the two in which I with a dot has it, re takes the first
        if not lower == c == upper:
            found.setdefault(roots.setdefault(upper, lower), []).append(ord(c))
    cases = sorted(pair for one in found.values() for pair in itertools.permutations(one, 2))
    return [code for code, _ in cases], [other for _, other in cases]


def parts(sets: Iterable[Characters], most: int) -> list[Characters] | None:
    """The coarsest sets, apart from each other and together all, of which each of these is a union; None: they are
    more than most."""
    made = [ALL]
    for one in sets:
        split = []
        for part in made:
            inner = intersection(part, one)
            split += [each for each in (inner, difference(part, one) if inner else part) if each]
        made = split
        if len(made) > most:
            return None
    return made


@functools.lru_cache(256)
def category(name: str) -> Characters | None:
    """The characters of a general category of Unicode, by its short or long name; None: it is not known."""
    name = LONG_NAMES.get(name, name)
    found = [ranges for key, ranges in _categories().items() if key.startswith(name)] if len(name) <= 2 else []
    return union(*found) if name and found else None


@functools.cache
def _categories():
    """{two letters: its characters}"""
    made: dict[str, list[tuple[int, int]]] = {"Co": list(PRIVATE), "Cn": []}
    known = []
    for codes in ASSIGNED:
        for name, group in itertools.groupby(codes, key=lambda code: unicodedata.category(chr(code))):
            run = list(group)
            made.setdefault(name, []).append((run[0], run[-1]))
        known.append((codes[0], codes[-1]))
    made["Cn"] += complement(union(tuple(known), PRIVATE))
    return {name: merged(ranges) for name, ranges in made.items()}
