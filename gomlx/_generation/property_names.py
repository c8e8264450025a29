"""What a JSON schema says of names of properties: `propertyNames` as the properties that there may be, and patterns of
names that have some in common as others that have none, which is what the matcher takes. None: it cannot be said."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from gomlx._generation.negation import all_of
from gomlx._generation.regular import automaton, rewriting, syntax
from gomlx._generation.regular.automaton import Term, TooLarge
from gomlx._generation.regular.syntax import Chars, Node

MOST_LEVELS = 8                 # of schemas of names within one another
MOST_LETTERS = 100_000          # of a name, where its length is limited
MOST_PATTERNS = 8               # that are set apart from each other
UNKNOWN = ("if", "then", "else", "$ref", "$dynamicRef", "$recursiveRef")


class Names:
    """A set of names: a term and the trees that it is made of."""

    def __init__(self, term: Term, trees: Iterable[Node] = ()) -> None:
        self.term, self.trees = term, tuple(dict.fromkeys(trees))
        self._machine: automaton.Machine | None = None
        automaton.spend(1 + len(self.trees))

    @classmethod
    def of_pattern(cls, pattern: str) -> Names:
        tree = rewriting.read(pattern)
        return cls(automaton.anywhere(tree), [tree])

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> Names:
        tree = syntax.alt([syntax.cat([Chars(((ord(c), ord(c)),)) for c in text]) for text in texts])
        return cls(automaton.whole(tree), [tree])

    def __and__(self, other: Names) -> Names:
        return Names(automaton.all_of([self.term, other.term]), self.trees + other.trees)

    def __or__(self, other: Names) -> Names:
        return Names(automaton.any_of([self.term, other.term]), self.trees + other.trees)

    def __invert__(self) -> Names:
        return Names(automaton.negation(self.term), self.trees)

    def pattern(self) -> str | None:
        """Of exactly these names; None: there are none. TooLarge: it cannot be said."""
        tree = automaton.without_assertions(self.term, self.trees, *rewriting.LARGE)
        return None if tree == syntax.NOTHING else rewriting.whole(tree)

    def __contains__(self, name: str) -> bool:
        if self.term in (automaton.ALWAYS, automaton.NEVER):
            return self.term == automaton.ALWAYS
        self._machine = self._machine or automaton.Machine(self.trees)
        found = rewriting.follows(self._machine, self.term, name)
        if found is None:
            raise TooLarge("half of a surrogate pair")
        return found

    def is_empty(self) -> bool:
        return not automaton.has_text(self.term, self.trees, rewriting.MOST_COMPARED)


ALL, NONE = Names(automaton.ALWAYS), Names(automaton.NEVER)


def names_of(schema: Any, resolved: Callable[[Any], Any], formats: set[str], level: int = 0) -> Names | None:
    """The texts that are valid under a schema; None, TooLarge, Unreadable: that cannot be said. formats: values of
    `format` that are no annotations."""
    automaton.spend(1)
    schema = resolved(schema)
    if isinstance(schema, bool):
        return ALL if schema else NONE
    if not isinstance(schema, dict) or level > MOST_LEVELS or any(one in schema for one in UNKNOWN):
        return None
    if not is_readable(schema):
        return None
    found = ALL
    for keyword, value in schema.items():
        said = _said(keyword, value, resolved, formats, level + 1)
        if said is None:
            return None
        found &= said
    return found


def is_readable(schema: dict[str, Any]) -> bool:
    """Whether what it says of texts has the form that it should have."""
    lengths = [schema[one] for one in ("minLength", "maxLength") if one in schema]
    return all(isinstance(one, int | float) and not isinstance(one, bool) and 0 <= one <= MOST_LETTERS
               and one == one // 1 for one in lengths) and isinstance(schema.get("pattern", ""), str) and \
        all(isinstance(schema.get(one, []), list) for one in ("enum", "allOf", "anyOf", "oneOf"))


def _said(keyword, value, resolved, formats, level):
    if keyword == "type":
        return ALL if value == "string" or isinstance(value, list) and "string" in value else NONE
    if keyword in ("const", "enum"):
        return Names.of_texts(one for one in ([value] if keyword == "const" else value) if isinstance(one, str))
    if keyword == "pattern":
        return Names.of_pattern(value)
    if keyword in ("minLength", "maxLength"):
        least, most = (value, None) if keyword == "minLength" else (0, value)
        tree = syntax.rep(rewriting.ONE, int(least), None if most is None else int(most))
        return Names(automaton.whole(tree), [tree])
    if keyword == "not":
        inner = names_of(value, resolved, formats, level)
        return None if inner is None else ~inner
    if keyword == "format" and value in list(formats):
        return None
    if keyword not in ("allOf", "anyOf", "oneOf"):
        return ALL                                  # it says something of other types, or nothing
    ways = [names_of(one, resolved, formats, level) for one in value]
    if None in ways:
        return None
    if keyword == "oneOf":
        ways = [_joined([one, *(~other for k, other in enumerate(ways) if k != i)], Names.__and__, ALL)
                for i, one in enumerate(ways)]
    return _joined(ways, *((Names.__and__, ALL) if keyword == "allOf" else (Names.__or__, NONE)))


def listed(names: dict[str, Any], resolved: Callable[[Any], Any], formats: set[str]) -> dict[str, None] | None:
    """The texts that are valid under a schema with const or enum, in its order."""
    lists = [value if key == "enum" else [value] for key, value in names.items() if key in ("const", "enum")]
    rest = {key: value for key, value in names.items() if key not in ("const", "enum")}
    found = names_of(rest, resolved, formats) if all(isinstance(one, list) for one in lists) else None
    if found is None:
        return None
    kept = set.intersection(*({text for text in one if isinstance(text, str)} for one in lists))
    return {text: None for text in lists[0] if isinstance(text, str) and text in kept and text in found}


def has_match(pattern: str, name: str) -> bool:
    """TooLarge: it is not known."""
    found = rewriting.matches(pattern, name)
    if found is None:
        raise TooLarge("a pattern that cannot be followed")
    return found


def add(patterns: dict[Any, Any], pattern: str | None, schema: Any) -> None:
    """Puts a schema beside what others say of the same names. TooLarge: what was written here has the letters of a
    schema's own pattern, which means something else."""
    if pattern in patterns and any(one == pattern and type(one) is not type(pattern) for one in patterns):
        raise TooLarge("two patterns of the same letters")
    patterns[pattern] = all_of([patterns[pattern], schema]) if pattern in patterns else schema


def _joined(ways, join, found):
    for one in ways:
        found = join(found, one)
    return found


def within(pattern: str, names: Any, found: Names) -> str | None:
    """The pattern of those that match it and are valid names, whose schema is names; None: there are none."""
    tree = rewriting.read(pattern)
    lengths = {key: value for key, value in names.items() if key in ("minLength", "maxLength")}
    if set(names) <= {"minLength", "maxLength", "type"} and names.get("type", "string") == "string":
        least, most = syntax.width(tree)
        is_whole = tree.parts[:1] == (syntax.Start(),) and tree.parts[-1:] == (syntax.End(),) \
            if isinstance(tree, syntax.Cat) else False
        low, high = int(lengths.get("minLength", 0)), lengths.get("maxLength")
        if low <= least and (high is None or is_whole and most is not None and most <= high):
            return pattern
        inner = tree.parts[1:-1] if is_whole and isinstance(tree, syntax.Cat) else ()
        if len(inner) == 1 and isinstance(inner[0], syntax.Rep) and isinstance(inner[0].part, Chars):
            low = max(low, inner[0].least)
            highs = [one for one in (inner[0].most, high) if one is not None]
            return None if highs and min(highs) < low else rewriting.whole(
                syntax.rep(inner[0].part, low, int(min(highs)) if highs else None))
    return (Names.of_pattern(pattern) & found).pattern()


def disjoint(patterns: dict[str, Any]) -> dict[str, Any]:
    """The same properties by patterns that have no names in common: each name's schema holds them all."""
    named = list(patterns)
    if len(named) > MOST_PATTERNS or all(rewriting.exclude(named[i], named[k])
                                         for k in range(len(named)) for i in range(k)):
        return patterns
    try:
        return _disjoint(patterns)
    except (TooLarge, syntax.Unreadable):
        return patterns                             # the matcher says which


def _disjoint(patterns):
    apart: list[tuple[Names, list[Any]]] = []
    for pattern, schema in patterns.items():
        new, after = Names.of_pattern(pattern), []
        rest = new
        for names, schemas in apart:
            after += [(names & new, [*schemas, schema]), (names & ~new, schemas)]
            rest &= ~names
        apart = [(names, schemas) for names, schemas in [*after, (rest, [schema])] if not names.is_empty()]
    made = {}
    for names, schemas in apart:
        said = [one for one in schemas if one not in (True, {})]
        made[names.pattern()] = said[0] if len(said) == 1 else {"allOf": said} if said else True
    return made
