"""What is left of a pattern after each character: its derivatives, by Brzozowski (1964) and, as sets of alternatives,
Antimirov (1996). With them any boolean combination of patterns, with assertions anywhere, becomes one without.

A place in a text is known by what came before (a Context); what may still come is a Term:
  Left(nodes)   these match up to the text's end
  All, Any      each of some terms, one of them
  Not(term)     what the term is not
 (1) A Term and a Context say all of a text that matters for the rest: two texts that lead to equal ones can be followed
     by the same.
 (2) An assertion stands in front of the character that comes next, or of the end: it is decided there. What looks
     ahead becomes a term of its own beside the rest, what looks behind is one that has been followed all along."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from gomlx._generation.regular import characters as sets
from gomlx._generation.regular import syntax
from gomlx._generation.regular.characters import Characters
from gomlx._generation.regular.syntax import ANYTHING, Alt, Cat, Chars, End, Look, Node, Rep, Start, Word

MOST_PARTS = 64                 # sets of characters that a pattern tells apart
MOST_STEPS = 30_000             # of one machine
LARGE_TREE = 24                 # parts from which on a step counts more than once
UNLIMITED = 1 << 60
Result = TypeVar("Result")


class TooLarge(ValueError):
    """More states than were allowed, or longer than that."""


class Exhausted(ValueError):
    """All patterns together take longer than was allowed."""


_effort: ContextVar[list[int] | None] = ContextVar("effort", default=None)      # steps that are left
_charged: ContextVar[set[object]] = ContextVar("charged")       # calls of remembered() that have been paid for


@contextlib.contextmanager
def effort(steps: int) -> Iterator[None]:
    """Within it, all patterns together take so many steps at most, or Exhausted is raised."""
    token, others = _effort.set([steps]), _charged.set(set())
    try:
        yield
    finally:
        _effort.reset(token)
        _charged.reset(others)


def spend(steps: int) -> None:
    left = _effort.get()
    if left is not None:
        left[0] -= steps
        if left[0] < 0:
            raise Exhausted("its patterns take too long to compare and to say otherwise")


def remembered(size: int) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """A cache whose hits cost, once within an effort(), the steps that the first call took: what is too much does not
    depend on what was asked before it."""
    def around(function):
        @functools.lru_cache(size, typed=True)
        def known(*arguments):
            left = _effort.get()
            before = left[0]
            try:
                made = function(*arguments)
            except (TooLarge, syntax.Unreadable) as error:
                made = type(error)(*error.args)     # another one: it is raised more than once
            return made, before - left[0]

        @functools.wraps(function)
        def call(*arguments):
            left = _effort.get()
            if left is None:
                with effort(UNLIMITED):
                    return call(*arguments)
            before, key = left[0], (function, *map(type, arguments), *arguments)
            made, cost = known(*arguments)
            if key not in _charged.get():
                spend(cost - (before - left[0]))    # nothing more where it was made now
                _charged.get().add(key)
            if isinstance(made, TooLarge | syntax.Unreadable):
                raise type(made)(*made.args)
            return made

        return call

    return around


class Term(syntax.Hashed):
    """What may still come."""


@dataclass(frozen=True)
class Left(Term):
    nodes: tuple[Node, ...]
    __hash__ = syntax.Hashed.__hash__


@dataclass(frozen=True)
class All(Term):
    terms: frozenset[Term]
    __hash__ = syntax.Hashed.__hash__


@dataclass(frozen=True)
class Any(Term):
    terms: frozenset[Term]
    __hash__ = syntax.Hashed.__hash__


@dataclass(frozen=True)
class Not(Term):
    term: Term
    __hash__ = syntax.Hashed.__hash__


@dataclass(frozen=True)
class Context:
    """Where a text stands: at its beginning, behind a letter of a word; behind: a term for each thing that is looked
    for behind, which has been followed from the beginning."""
    is_start: bool
    is_word: bool
    behind: tuple[Term, ...]


NEVER, ALWAYS = Any(frozenset()), Left((ANYTHING,))


def whole(node: Node) -> Term:
    """The texts that a tree matches from beginning to end."""
    return Left(node.parts if isinstance(node, Cat) else (node,))


def anywhere(node: Node) -> Term:
    """The texts in which a tree matches somewhere, as JSON schemas mean patterns."""
    branches = node.parts if isinstance(node, Alt) else (node,)
    return whole(syntax.alt([_with_rest(_with_beginning(one)) for one in branches]))


def _with_beginning(branch):
    """Behind any text, where it does not say that it is the first."""
    parts = branch.parts if isinstance(branch, Cat) else (branch,)
    return syntax.cat(parts[1:]) if parts[:1] == (Start(),) else syntax.cat([ANYTHING, branch])


def _with_rest(node):
    """Up to the end of the text."""
    if isinstance(node, Alt):
        return syntax.alt([_with_rest(one) for one in node.parts])
    parts = node.parts if isinstance(node, Cat) else (node,)
    if parts and isinstance(parts[-1], Alt) and syntax.has_assertions(parts[-1]):
        return syntax.cat([*parts[:-1], _with_rest(parts[-1])])
    return syntax.cat(parts[:-1]) if parts[-1:] == (End(),) else syntax.cat([node, ANYTHING])


def all_of(terms: Iterable[Term]) -> Term:
    made: set[Term] = set()
    for one in terms:
        made |= one.terms if isinstance(one, All) else {one}
    made.discard(ALWAYS)
    if NEVER in made or any(negation(one) in made for one in made if isinstance(one, Not)):
        return NEVER
    return made.pop() if len(made) == 1 else All(frozenset(made)) if made else ALWAYS


def any_of(terms: Iterable[Term]) -> Term:
    made: set[Term] = set()
    for one in terms:
        made |= one.terms if isinstance(one, Any) else {one}
    if ALWAYS in made or any(negation(one) in made for one in made if isinstance(one, Not)):
        return ALWAYS
    return made.pop() if len(made) == 1 else Any(frozenset(made))


def negation(term: Term) -> Term:
    if term in (NEVER, ALWAYS):
        return ALWAYS if term == NEVER else NEVER
    return term.term if isinstance(term, Not) else Not(term)


class Machine:
    """Follows terms. trees: all that are in them."""

    def __init__(self, trees: Iterable[Node]) -> None:
        found = list(dict.fromkeys(inner for one in trees for inner in syntax.inside(one)))
        self._looks = [one for one in found if isinstance(one, Look) and not one.is_ahead]
        self._has_words = any(isinstance(one, Word) for one in found)
        for one in found:
            if isinstance(one, Rep) and syntax.has_assertions(one.part) and _may_be_empty(one.part):
                raise syntax.Unreadable("a repeated group that may be an assertion alone")
            if isinstance(one, Look) and not one.is_ahead and syntax.has_assertions(one.part):
                raise syntax.Unreadable("an assertion inside a look-behind")
        used = [one.set for one in found if isinstance(one, Chars)] + [sets.WORDS] * self._has_words
        parts = sets.parts(dict.fromkeys(used), MOST_PARTS)
        if parts is None:
            raise TooLarge("it tells too many sets of characters apart")
        spend(len(found) + len(parts))
        self.parts: list[Characters] = parts
        self._left = MOST_STEPS
        self._cost = 1 + len(found) // LARGE_TREE
        self._known: dict[tuple[Term, Context, int], Term] = {}

    def start(self) -> Context:
        """Before all characters."""
        return Context(True, False, tuple(whole(syntax.cat([ANYTHING, one.part])) for one in self._looks))

    def after(self, context: Context, part: int) -> Context:
        """Behind one more character, of self.parts[part]."""
        return Context(False, self._has_words and self._is_word(part),
                       tuple(self.derivative(one, PLAIN, part) for one in context.behind))

    def _is_word(self, part):
        return bool(sets.intersection(self.parts[part], sets.WORDS))

    def derivative(self, term: Term, context: Context, part: int) -> Term:
        """What may still come after one more character."""
        key = term, context, part
        spend(1)
        if key not in self._known:
            self._known[key] = self._derivative(term, context, part)
        return self._known[key]

    def _derivative(self, term, context, part):
        if isinstance(term, Not):
            return negation(self.derivative(term.term, context, part))
        if isinstance(term, All | Any):
            join = all_of if isinstance(term, All) else any_of
            return join(self.derivative(one, context, part) for one in term.terms)
        return any_of(all_of([Left(left), *beside]) for left, beside in self._steps(term.nodes, context, part))

    def _steps(self, nodes, context, part) -> Iterator[tuple[tuple[Node, ...], tuple[Term, ...]]]:
        """(what is left, what has to hold beside it) for each way to match one character."""
        self._left -= self._cost
        if self._left < 0:
            raise TooLarge("too many steps")
        spend(self._cost)
        if not nodes:
            return
        first, rest = nodes[0], nodes[1:]
        if isinstance(first, Chars):
            if sets.intersection(first.set, self.parts[part]):
                yield rest, ()
        elif isinstance(first, Cat):
            yield from self._steps(first.parts + rest, context, part)
        elif isinstance(first, Alt):
            for one in first.parts:
                yield from self._steps((one, *rest), context, part)
        elif isinstance(first, Rep):
            yield from self._steps_of_repeated(first, rest, context, part)
        elif not isinstance(first, End):
            held = self._held_before(first, context, part)
            if held != NEVER:
                for left, beside in self._steps(rest, context, part):
                    yield left, (*beside, held)

    def _steps_of_repeated(self, first, rest, context, part):
        least, most = max(first.least - 1, 0), None if first.most is None else first.most - 1
        others = syntax.rep(first.part, least, most)
        others = () if others == syntax.EMPTY else (others,)
        for left, beside in self._steps((first.part,), context, part):
            yield left + others + rest, beside
        if first.least == 0 or _may_be_empty(first.part):
            yield from self._steps(rest, context, part)

    def _held_before(self, node, context, part):
        """What an assertion says of the text from one more character on, before which it stands."""
        if isinstance(node, Start):
            return ALWAYS if context.is_start else NEVER
        if isinstance(node, Word):
            return ALWAYS if (context.is_word != self._is_word(part)) != node.is_negative else NEVER
        if not node.is_ahead:
            return ALWAYS if self._is_behind(node, context) != node.is_negative else NEVER
        ahead = self.derivative(whole(_with_rest(node.part)), context, part)
        return negation(ahead) if node.is_negative else ahead

    def _is_behind(self, node, context):
        return self.may_end(context.behind[self._looks.index(node)], PLAIN)

    def may_end(self, term: Term, context: Context) -> bool:
        """Whether the text may end here."""
        if isinstance(term, Not):
            return not self.may_end(term.term, context)
        if isinstance(term, All | Any):
            return (all if isinstance(term, All) else any)(self.may_end(one, context) for one in term.terms)
        return isinstance(term, Left) and all(self._is_nothing(one, context) for one in term.nodes)

    def _is_nothing(self, node, context):
        if isinstance(node, Cat | Alt):
            return (all if isinstance(node, Cat) else any)(self._is_nothing(one, context) for one in node.parts)
        if isinstance(node, Rep):
            return node.least == 0 or self._is_nothing(node.part, context)
        if isinstance(node, Start):
            return context.is_start
        if isinstance(node, Word):
            return context.is_word != node.is_negative
        if isinstance(node, Look):
            found = self._is_nothing(node.part, context) if node.is_ahead else self._is_behind(node, context)
            return found != node.is_negative
        return isinstance(node, End)


PLAIN = Context(False, False, ())               # of terms to which nothing before matters


def _may_be_empty(node):
    """Whether it may match no character, whatever assertions say."""
    return syntax.width(node)[0] == 0


def _plain(term):
    """The trees of a term that is some without assertions, one after another; None: it is another."""
    return term.nodes if isinstance(term, Left) and not any(map(syntax.has_assertions, term.nodes)) else None


def least_letters(term: Term) -> int:
    """No text of a term has fewer characters."""
    if isinstance(term, Not):
        return 0
    if isinstance(term, All | Any):
        return (max if isinstance(term, All) else min)(map(least_letters, term.terms), default=0)
    return sum(syntax.width(one)[0] for one in term.nodes) if isinstance(term, Left) else 0


def _has_assertions(term):
    if isinstance(term, Not):
        return _has_assertions(term.term)
    if isinstance(term, All | Any):
        return any(map(_has_assertions, term.terms))
    return any(map(syntax.has_assertions, term.nodes))


def _alternatives(term):
    return term.terms if isinstance(term, Any) else (term,)


def has_text(term: Term, trees: Iterable[Node], most_states: int) -> bool:
    """Whether there is a text of a term. TooLarge: it is not known after so many states."""
    machine = Machine(trees)
    queue = [(term, machine.start())]
    seen = set(queue)
    for at, context in queue:
        if machine.may_end(at, context):
            return True
        for part in range(len(machine.parts)):
            after = machine.after(context, part)
            for one in _alternatives(machine.derivative(at, context, part)):
                state = one, after if _has_assertions(one) else PLAIN
                if state not in seen:
                    seen.add(state)
                    queue.append(state)
        if len(seen) > most_states:
            raise TooLarge("too many states")
    return False


def without_assertions(term: Term, trees: Iterable[Node], most_states: int, most_letters: int) -> Node:
    """The tree of a term: equations for what may come from each state, solved as by Arden (1961). What is a tree
    already is taken as it is: repeats with a count are not unrolled beyond what assertions look at. TooLarge: it is."""
    nodes = _plain(term)
    if nodes is not None:
        return syntax.cat(nodes)
    edges, ends = _equations(term, trees, most_states)
    return _solved(edges, ends, most_letters)


def _equations(term, trees, most_states):
    """(from each state, {to: over these characters}, what a text may end with from each state); 0 is the first one."""
    machine = Machine(trees)
    states = [(term, machine.start())]
    numbers = {states[0]: 0}
    edges: list[dict[int, Node]] = []
    ends: list[Node] = []
    for at, context in states:
        ways: dict[int, Characters] = {}
        last: list[Node] = [syntax.EMPTY] if machine.may_end(at, context) else []
        for part, found in enumerate(machine.parts):
            after = machine.after(context, part)
            for one in _alternatives(machine.derivative(at, context, part)):
                nodes = _plain(one)
                if nodes is not None:
                    last.append(syntax.cat([Chars(found), *nodes]))
                    continue
                state = one, after if _has_assertions(one) else PLAIN
                if state not in numbers:
                    numbers[state] = len(states)
                    states.append(state)
                ways[numbers[state]] = sets.union(ways.get(numbers[state], ()), found)
        edges.append({to: Chars(over) for to, over in ways.items()})
        ends.append(_joined(last))
        if len(states) > most_states:
            raise TooLarge("too many states")
    return edges, ends


def _joined(ways):
    """Alternatives, of which those with the same rest are one."""
    rests: dict[tuple[Node, ...], list[Node]] = {}
    for one in ways:
        if isinstance(one, Cat) and one.parts and isinstance(one.parts[0], Chars):
            rests.setdefault(one.parts[1:], []).append(one.parts[0])
        elif isinstance(one, Chars):
            rests.setdefault((), []).append(one)
    whole_ones = [one for one in ways if one == syntax.EMPTY]
    return syntax.alt([*whole_ones, *(syntax.cat([syntax.alt(firsts), *rest]) for rest, firsts in rests.items())])


def _solved(edges, ends, most_letters):
    """What may come from state 0: the others are put into what leads to them, one after another."""
    into: list[set[int]] = [set() for _ in edges]
    for i, ways in enumerate(edges):
        for to in ways:
            into[to].add(i)
    left = set(range(len(edges)))
    while left != {0}:
        gone = min(left - {0}, key=lambda i: (len(into[i] - {i}) * (len(edges[i]) + (ends[i] != syntax.NOTHING)), -i))
        left.discard(gone)
        again = syntax.rep(edges[gone].pop(gone, syntax.NOTHING), 0, None)
        for i in into[gone] - {gone}:
            over = syntax.cat([edges[i].pop(gone), again])
            for to, then in edges[gone].items():
                edges[i][to] = syntax.alt([edges[i].get(to, syntax.NOTHING), syntax.cat([over, then])])
                into[to].add(i)
            ends[i] = syntax.alt([ends[i], syntax.cat([over, ends[gone]])])
        for to in edges[gone]:
            into[to].discard(gone)
        length = sum(_length(one) for i in left for one in (ends[i], *edges[i].values()))
        spend(length // LARGE_TREE)
        if length > most_letters:
            raise TooLarge("too long")
    return syntax.cat([syntax.rep(edges[0].get(0, syntax.NOTHING), 0, None), ends[0]])


def _length(node):
    return sum(len(one.set) if isinstance(one, Chars) else 1 for one in syntax.inside(node))
