"""Patterns of JSON schemas in the matcher's syntax, which has no assertions but ^ at a beginning and $ at an end. Each
rewriting keeps exactly the texts in which the pattern matches somewhere."""
from __future__ import annotations

from typing import Any

from gomlx._generation.regular import automaton, syntax
from gomlx._generation.regular import characters as sets
from gomlx._generation.regular.automaton import Not, TooLarge, anywhere
from gomlx._generation.regular.syntax import ANYTHING, Alt, Cat, Chars, End, Look, Node, Rep, Start, Word

SMALL = 24, 400                 # states, and letters, up to which one pattern is better than several
LARGE = 200, 6000               # up to which it is tried
MOST_COMPARED = 3000            # states of two patterns together
MOST_GROUPS = 150               # within one another, of what the matcher reads
MOST_BEGUN = 2000               # parts of what an assertion is put into, each time anew
COSTLY = 10                     # ranges of sets that take a step to write
MOST_LETTERS = 2000             # of a text that is looked for
MOST_WRITTEN = 1 << 18          # characters of a pattern whose classes are written out
MOST_FOLLOWED = 4               # texts of each length
ONE = Chars(sets.ALL)


class Ours(str):
    """A pattern that was written here: where it is read again, [\\p{L}--[a]] is what the matcher means by it. Caches
    tell it from a schema's own pattern of the same letters."""


@automaton.remembered(1024)
def rewritten(pattern: str) -> tuple[str, ...]:
    """Patterns that all match where this one does. Unreadable, TooLarge: it cannot be read, or said otherwise. The
    matcher, which means something else by some of these, never gets them as they are."""
    tree = read(pattern)
    plain = _between_anchors(tree)
    if plain is not None:
        return (plain,) if plain else ()
    for ways in (lambda: (_as_one(tree, SMALL),), lambda: _apart(tree), lambda: (_as_one(tree, LARGE),)):
        try:
            return ways()
        except (TooLarge, syntax.Unreadable):
            continue
    raise TooLarge("the matcher's syntax cannot say it, or not shortly")


@automaton.remembered(1024)
def one_of_names(pattern: str) -> str:
    """The same for names of properties, which one pattern has to say."""
    made = rewritten(pattern)
    return made[0] if len(made) == 1 else _as_one(read(pattern), LARGE) if made else ""


@automaton.remembered(1024)
def opposite(pattern: str) -> str | None:
    """A pattern that matches all other texts; None: it cannot be said."""
    try:
        tree = read(pattern)
        return whole(automaton.without_assertions(automaton.negation(anywhere(tree)), [tree], *LARGE))
    except (TooLarge, syntax.Unreadable):
        return None


@automaton.remembered(4096)
def exclude(one: str, other: str) -> bool:
    """Whether it is certain that no text has matches of both patterns."""
    try:
        trees = [read(one), read(other)]
        return not automaton.has_text(automaton.all_of(map(anywhere, trees)), trees, MOST_COMPARED)
    except (TooLarge, syntax.Unreadable):
        return False


def with_word(patterns: tuple[str, ...], least: int, most: int | None) -> tuple[str, ...]:
    """The same patterns, the first of them with a text as an alternative that all of them match and that has least to
    most characters. The matcher, which looks for one before it takes several conditions, finds it there."""
    word = word_of(patterns, least, most)
    if word is None or (found := _bodies(read(patterns[0], True))) is None:
        return patterns
    return (whole(syntax.alt([word, *map(_unanchored, found)])), *patterns[1:])


@automaton.remembered(256)
def word_of(patterns: tuple[str, ...], least: int, most: int | None) -> Node | None:
    """A text, of least to most characters, that these patterns match; None: none was found. Of the texts of each length
    those are followed further that need the fewest more characters."""
    try:
        return _word_of([read(one, True) for one in patterns], least, most)
    except (TooLarge, syntax.Unreadable):
        return None


def _word_of(trees, least, most):
    machine = automaton.Machine(trees)
    states = {(automaton.all_of(map(anywhere, trees)), machine.start()): ()}
    for length in range(min(MOST_LETTERS, MOST_LETTERS if most is None else most) + 1):
        found = next((word for (term, context), word in states.items() if length >= least
                      and machine.may_end(term, context)), None)
        if found is not None:
            return syntax.cat([Chars(((code, code),)) for code in found])
        after: dict[Any, Any] = {}
        for (term, context), word in states.items():
            for part, characters in enumerate(machine.parts):
                left = machine.derivative(term, context, part)
                if left != automaton.NEVER:
                    after.setdefault((left, machine.after(context, part)), (*word, characters[0][0]))
        states = dict(sorted(after.items(), key=lambda one: automaton.least_letters(one[0][0]))[:MOST_FOLLOWED])
    return None


def matches(pattern: str, text: str) -> bool | None:
    """Whether a text has a match; None: that is not known."""
    try:
        tree = read(pattern)
        return follows(automaton.Machine([tree]), anywhere(tree), text)
    except (TooLarge, syntax.Unreadable):
        return None


def follows(machine: automaton.Machine, term: automaton.Term, text: str) -> bool | None:
    """Whether a text is one of a term's; None: it has half of a surrogate pair, which is in no part."""
    context = machine.start()
    for c in text:
        part = next((i for i, one in enumerate(machine.parts) if any(low <= ord(c) <= high for low, high in one)), None)
        if part is None:
            return None
        term, context = machine.derivative(term, context, part), machine.after(context, part)
    return machine.may_end(term, context)


def read(pattern: str, is_ours: bool = False) -> Node:
    """The tree of a pattern, without what says nothing at open ends, and with assertions of one character put into
    the characters beside them. is_ours, or Ours: it was written here."""
    automaton.spend(len(pattern))
    parsed = syntax.parse(pattern, is_ours or isinstance(pattern, Ours))
    automaton.spend(sum(len(one.set) for one in syntax.inside(parsed) if isinstance(one, Chars)) // COSTLY)
    tree = _inwards(parsed)
    return syntax.alt([_open(one) for one in _apart_from_anchors(tree)])


def _branches(tree):
    return tree.parts if isinstance(tree, Alt) else (tree,)


def _apart_from_anchors(tree):
    """Alternatives; those of a group that stands beside anchors alone, as in ^(^a$|b)$, have these anchors each."""
    for branch in _branches(tree):
        parts = _parts(branch)
        inner = [i for i, one in enumerate(parts) if not isinstance(one, Start | End)]
        if len(parts) > 1 and len(inner) == 1 and isinstance(parts[inner[0]], Alt) and \
                syntax.has_assertions(parts[inner[0]]):
            at = inner[0]
            yield from (syntax.cat([*parts[:at], one, *parts[at + 1:]]) for one in _apart_from_anchors(parts[at]))
        else:
            yield branch


def _parts(node):
    return node.parts if isinstance(node, Cat) else (node,)


def _is_of_place(node):
    return isinstance(node, Start | End | Word | Look)


def _open(branch):
    """Anchors that stand behind, or before, nothing but assertions are first, and last: at one place all of these hold.
    What may be repeated at an open end need not be: where more of it matches, less does."""
    parts = list(_parts(branch))
    first = next((i for i, one in enumerate(parts) if not _is_of_place(one)), len(parts))
    if Start() in parts[:first] or any(map(_is_at_beginning, parts[:first])):
        parts = [Start(), *(one for one in parts[:first] if one != Start()), *parts[first:]]
    last = next((i for i in range(len(parts), 0, -1) if not _is_of_place(parts[i - 1])), 0)
    if End() in parts[last:]:
        parts = [*parts[:last], *(one for one in parts[last:] if one != End()), End()]
    while parts and isinstance(parts[-1], Rep) and _is_shorter(parts, -1):
        parts[-1:] = _parts(syntax.rep(parts[-1].part, parts[-1].least, parts[-1].least))
    while parts and isinstance(parts[0], Rep) and _is_shorter(parts, 0):
        parts[:1] = _parts(syntax.rep(parts[0].part, parts[0].least, parts[0].least))
    return syntax.cat(parts)


def _is_at_beginning(look):
    """Whether it says, as (?=^...) does, that the text begins here."""
    return isinstance(look, Look) and look.is_ahead and not look.is_negative and _parts(look.part)[:1] == (Start(),)


def _is_shorter(parts, at):
    return parts[at].most != parts[at].least and not any(map(syntax.has_assertions, parts[at:] if at else parts[:1]))


# ---- assertions of one character ----

def _inwards(node):
    """With (?!c), (?=c), (?<!c) and (?<=c) put into what is beside them, where this is one character at least."""
    automaton.spend(1)
    if isinstance(node, Alt):
        return syntax.alt([_inwards(one) for one in node.parts])
    if isinstance(node, Rep):
        return syntax.rep(_inwards(node.part), node.least, node.most)
    if isinstance(node, Look):
        return Look(node.is_ahead, node.is_negative, _inwards(node.part))
    if not isinstance(node, Cat):
        return node
    parts = [_inwards(one) for one in node.parts]
    for i in range(len(parts) - 1, -1, -1):
        if _is_of_one(parts[i], True):
            beside = _begun(syntax.cat(parts[i + 1:]), _allowed(parts[i]))
            parts[i:] = parts[i:] if beside is None else _parts(beside)
    for i in range(len(parts)):
        if i < len(parts) and _is_of_one(parts[i], False):
            beside = _begun(_turned(syntax.cat(parts[:i])), _allowed(parts[i]))
            if beside is not None:
                return _inwards(syntax.cat([_turned(beside), *parts[i + 1:]]))
    return syntax.cat(parts)


def _is_of_one(node, is_ahead):
    return isinstance(node, Look) and node.is_ahead == is_ahead and isinstance(node.part, Chars)


def _allowed(look):
    return sets.complement(look.part.set) if look.is_negative else look.part.set


def _begun(node, allowed):
    """What of a tree begins with one of these characters; None: that cannot be said, or it may be empty: what is
    behind it decides then."""
    automaton.spend(1 + len(syntax.inner(node)))
    found = None if syntax.width(node)[0] == 0 else _beginning(node, allowed)
    return None if found is None or syntax.size(found) > MOST_BEGUN else found


def _beginning(node, allowed):
    """The same without what is empty of a tree that may be."""
    automaton.spend(1 + len(syntax.inner(node)) // automaton.LARGE_TREE)
    if isinstance(node, Chars):
        return Chars(found) if (found := sets.intersection(node.set, allowed)) else syntax.NOTHING
    if isinstance(node, Alt):
        ways = [_beginning(one, allowed) for one in node.parts]
        return None if None in ways else syntax.alt(ways)
    if isinstance(node, Rep) and syntax.width(node.part)[0] > 0 and node.most != 0:
        first = _beginning(node.part, allowed)
        most = None if node.most is None else node.most - 1
        return first and syntax.cat([first, syntax.rep(node.part, max(node.least - 1, 0), most)])
    if not isinstance(node, Cat) or not node.parts or syntax.width(node)[0] == 0:
        return None
    first, rest = node.parts[0], syntax.cat(node.parts[1:])
    if _is_of_place(first):
        return None
    ways = [_beginning(first, allowed)]
    ways[0] = ways[0] and syntax.cat([ways[0], rest])
    if syntax.width(first)[0] == 0:
        ways.append(_beginning(rest, allowed))
    return None if None in ways else syntax.alt(ways)


def _turned(node):
    """The tree of the texts read from their ends."""
    if isinstance(node, Cat):
        return syntax.cat([_turned(one) for one in reversed(node.parts)])
    if isinstance(node, Alt):
        return syntax.alt([_turned(one) for one in node.parts])
    if isinstance(node, Rep):
        return syntax.rep(_turned(node.part), node.least, node.most)
    if isinstance(node, Look):
        return Look(not node.is_ahead, node.is_negative, _turned(node.part))
    return {Start(): End(), End(): Start()}.get(node, node)


# ---- writing ----

def whole(node: Node) -> str:
    """The pattern of the texts that a tree matches from beginning to end."""
    if _depth(node) > MOST_GROUPS:
        raise TooLarge("too many groups within one another")
    return Ours(f"^(?:{_written(node)})$")


def _written(node):
    """TooLarge: classes that are written out make it too long to be read again within a second."""
    text = syntax.written(node)
    if len(text) > MOST_WRITTEN:
        raise TooLarge(f"it has {len(text)} characters once its classes are written out")
    return text


def _depth(node):
    return 0 if isinstance(node, Chars) else 1 + max(map(_depth, syntax.inner(node)), default=0)


def _as_one(tree, limits):
    return whole(automaton.without_assertions(anywhere(tree), [tree], *limits))


def _between_anchors(tree):
    """The pattern of a tree that has no assertions but anchors at its ends; None: it has others."""
    found = _bodies(tree)
    if found is None:
        return None
    ends = {(first, last) for first, _, last in found}
    if not ends:
        return syntax.written(syntax.NOTHING)
    if len(ends) > 1:
        return whole(syntax.alt(list(map(_unanchored, found))))
    (first, last), body = ends.pop(), syntax.alt([one for _, one, _ in found])
    text = _written(body)
    text = f"(?:{text})" if isinstance(body, Alt) and (first or last) else text
    return ("^" if first else "") + text + ("$" if last else "") if text or first and last else ""


def _bodies(tree):
    """(is at the beginning, what is between, is at the end) for each alternative; None: there are other assertions."""
    found = []
    for branch in _branches(tree):
        parts = _parts(branch)
        first, last = parts[:1] == (Start(),), parts[-1:] == (End(),)
        found.append((first, syntax.cat(parts[first:len(parts) - last]), last))
    return None if any(syntax.has_assertions(body) for _, body, _ in found) else found


def _unanchored(found):
    first, body, last = found
    return syntax.cat([syntax.EMPTY if first else ANYTHING, body, syntax.EMPTY if last else ANYTHING])


def _apart(tree):
    """What is looked for at a place that the beginning, or the end, is always as far from, as patterns of its own:
    where w characters are before it, all texts with X there are .{w}X, and the others are all but these. TooLarge:
    there is none, or too much is left."""
    if isinstance(tree, Alt):
        raise TooLarge("alternatives")
    parts, made = list(_parts(tree)), []
    for at, look in [(i, one) for i, one in enumerate(parts) if isinstance(one, Look)]:
        beside = parts[1:at] if look.is_ahead else parts[at + 1:-1]
        least, most = syntax.width(syntax.cat(beside))
        is_fixed = parts[:1] == [Start()] if look.is_ahead else parts[-1:] == [End()]
        if not is_fixed or least != most:
            continue
        distance = [syntax.rep(ONE, least, least)]
        said = [Start(), *distance, look.part] if look.is_ahead else [look.part, *distance, End()]
        made.append((look, at, syntax.cat(said)))
    if not made:
        raise TooLarge("no assertion is at a fixed place")
    gone = {at for _, at, _ in made}
    rest = syntax.cat([one for i, one in enumerate(parts) if i not in gone])
    return (*_rest(rest), *(_apart_as(look.is_negative, said) for look, _, said in made))


def _rest(tree):
    tree = _open(tree)
    plain = _between_anchors(tree)
    return ((plain,) if plain else ()) if plain is not None else (_as_one(tree, LARGE),)


def _apart_as(is_negative, said):
    said = _open(said)
    if is_negative:
        return whole(automaton.without_assertions(Not(anywhere(said)), [said], *LARGE))
    plain = _between_anchors(said)
    return plain or _as_one(said, LARGE)
