"""Patterns of JSON schemas, said otherwise: the same texts match, by Python's re."""
import itertools
import random
import re

import pytest

from gomlx._generation.regular import automaton, rewriting, syntax
from gomlx._generation.regular import characters as sets

# None ends with a line's end: before one of these Python's $ matches, which in JSON schemas does not.
TEXTS = ["".join(one) for n in range(5) for one in itertools.product("abc", repeat=n)] + [
    "--", "a--", "-", "b\nbb", "bb\na", "a  ", "c.", "\n-", "--a", "-a-", "c-a", "a.b-.c", "..", "a..b",
    " ", "  ", "a ", "b\na", "a.", "a-", "a-b", "ab:", "ab:c", ")", "xa", "[", "a\n\nb", "a b", "ab c", "AB", "aB",
    "é", "aé"]
PATTERNS = [
    r"^(?!ab)[abc]*$", r"^(?!a|bc)", r"^(?!ab:.*).{1,3}$", r"^(?![ab]c)(?!ca)[a-c]+$", r"^(?!.*a)[\s\S]{2}",
    r"^(?!\s*$).+$", r"^(?!\s+$)[ab ]*$", r"^(?=.{1,2}$)[ab]+", r"^(?=^a|b)\w*$", r"^(?!^c)(b|c)",
    r"^(?!a+$)[ab]*$", r"^(?![ab]*$)", r"^(?!.*[-]$)", r"^(?!.*bb)[\s\S]*$", r"^(?!.*[-]{2})[a-c-]*$", r"^(?!.* {2})a*",
    r"^[a-c.-]*(?<!\.)$", r"^(?!a)[a-c]*(?<![bc])$", r"^(?!.*[-a])[\s\S]*$", r"^(?![^a])(?!a\.)", r"^(?!a-)[a-z-]*$",
    r"^(?=(a|b)c)", r"^(?=[)a])a", r"(?!^a+$)[ab]+", r"^(?:(?!ab).)*$", r"^[abc]+(?<!ab)$", r"\bab\b", r"^(a|\b c)$",
    r"(^(?!a{2}))(^[a-c]+$)", r"^((?=a)b|c)$|^$", r"a(?=b$)", r"(^|c)a(c|$)", r"^(?:(?!-)[a-c-]{0,2}[a-c]\.)+$",
    r"^(?:a(?=b)|b(?=a))*.$", r"^.{0,2}(?<=a)b", r"^a{2,3}?b*?$", r"(?P<x>a)b|^c$", r"^(a(?!b))+c?", r"b\B", r"^(?!)a",
    r"[^\w.-]", r"^[a-c](?!.*--)[a-c-]*$", r"^(([ab](?!c)){2}|c)$", r"^([a-c]-?){2,}(?<!-)$", r"(a|b)(?!\b)",
    r"^(?![a-c]{1,3}(-[a-c]){2})[a-c-]*$", r"^(?=.*a)(?=.*b)[abc]+$", r"^.*a", r"a.*b.*", r"^", r"$", r"", r"^$|^a",
    r"^(^(a|b)+$|^c|a$)$", r"^(^(a|b)+$|(^c|a)$)", r"(^(a|b)|^c)$"]


def found(pattern, text):
    return re.search(pattern, text, re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match(pattern):
    parts = rewriting.rewritten(pattern)
    assert not any("(?=" in one or "(?!" in one or "(?<" in one or r"\b" in one for one in parts)
    other, one = rewriting.opposite(pattern), rewriting.one_of_names(pattern)
    for text in TEXTS:
        wanted = found(pattern, text) is not None
        assert all(found(one, text) for one in parts) == wanted, (text, parts)
        assert (found(one, text) is not None) == wanted, (text, one)
        assert (found(other, text) is None) == wanted, (text, other)
        assert len(text) == 4 or rewriting.matches(pattern, text) == wanted, text


def random_pattern(rng, depth=3):
    kind = rng.choice(["letter", "class", "group", "rep", "rep", "two", "two", "two", "look", "anchor"]
                      if depth else ["letter", "class"])
    if kind == "letter":
        return rng.choice("abc")
    if kind == "class":
        return rng.choice(["[ab]", "[^a]", ".", r"\w", "[a-c-]", r"\W"])
    if kind == "group":
        return f"(?:{random_pattern(rng, depth - 1)}|{random_pattern(rng, depth - 1)})"
    if kind == "rep":
        return f"(?:{random_pattern(rng, depth - 1)}){rng.choice(['*', '+', '?', '{2}', '{1,2}', '*?'])}"
    if kind == "two":
        return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
    if kind == "look":
        return rng.choice(["(?={})", "(?!{})", "(?<=[ab])", "(?<!c)", "(?<!ab)"]).format(random_pattern(rng, depth - 1))
    return rng.choice(["^", "$", r"\b", r"\B"])


def test_random_patterns():
    rng, made = random.Random(5), 0
    for _ in range(150):
        pattern = random_pattern(rng)
        try:
            parts, other = rewriting.rewritten(pattern), rewriting.opposite(pattern)
        except (automaton.TooLarge, syntax.Unreadable):
            continue                                # an assertion that is repeated, say
        made += 1
        for text in TEXTS[1:45]:                    # \B, in Python, is not in the empty text
            wanted = found(pattern, text) is not None
            assert all(found(one, text) for one in parts) == wanted, (pattern, parts, text)
            assert other is None or (found(other, text) is None) == wanted, (pattern, other, text)
    assert made > 130


def test_patterns_that_exclude_each_other():
    rng, n = random.Random(6), 0
    for _ in range(100):
        one, other = random_pattern(rng), random_pattern(rng)
        if rewriting.exclude(one, other):
            n += 1
            assert not any(found(one, text) and found(other, text) for text in TEXTS), (one, other)
    assert n > 2
    assert rewriting.exclude("^pip; ?a", "^build; ?a") and rewriting.exclude("^[0-9]+$", "^$")
    assert not rewriting.exclude("^a", "b$") and not rewriting.exclude(r"(a)\1", "b")


@pytest.mark.parametrize("patterns, least, most", [
    ((r"^[a-z]+(\.[a-z]+)+$",), 1, 155), ((r"(a|b)c",), 9, 9), ((r"^[ab]*$", "a.b"), 4, None),
    ((r"^(?:ab){3,}$",), 7, 8)])
def test_a_text_of_several_patterns_is_an_alternative(patterns, least, most):
    word = syntax.written(rewriting.word_of(patterns, least, most))
    text = word.replace("\\", "")
    assert all(found(one, text) for one in patterns) and least <= len(text) <= (most or 99)
    shown = rewriting.with_word(patterns, least, most)
    assert word in shown[0] and shown[1:] == patterns[1:]
    assert all((found(shown[0], one) is None) == (found(patterns[0], one) is None) for one in TEXTS)


def test_there_may_be_no_text():
    assert rewriting.word_of(("^a$", "^b$"), 0, None) is None and rewriting.word_of(("^a+$",), 3, 2) is None


@pytest.mark.parametrize("pattern, wanted", [
    (r"^[a[b]$", r"^[\[ab]$"), ("[a&&b]", r"[\&ab]"),
    (r"[\w-.]", r"[\-\.0-9A-Z_a-z]"), (r"\/", r"\x2f"),
    (r"^\S(?![\s\S])", None), ("a{", r"a\{"), ("]", r"\]"), (r"[^]", r"[\s\S]"), (r"\u{1F600}", "\U0001F600"),
    (r"[\uD83D\uDE00]", "\U0001F600"), (r"^[\uD800\uDC00-\uDBFF\uDFFF]$", "^[\U00010000-\\U0010FFFF]$"),
    (r"^[a\uD800\uDBFF-\uDC00\uDFFF]*$", r"^a*$"), (r"^[\p{L}_]+$", r"^[\p{L}_]+$"), (r"\P{L}", None),
    (r"\x41\cJ\0", "A\\x0a\\x00"),
    (r"^(?!a)[\p{L}_]$", r"^[[\p{L}--[a]]_]$"), (r"[\p{Graph}]", r"[!-\~]"), (r"\A[a-z-]+\Z", r"^[\-a-z]+$"),
    (r"^(?i:a)b$", "^[Aa]b$")])
def test_the_matchers_syntax(pattern, wanted):
    """Where the matcher's one means something else: classes within classes, && and --, surrogates, \\Z."""
    made = rewriting.rewritten(pattern)
    assert made == (wanted,) if wanted is not None else made != (pattern,) or pattern == r"\P{L}"


@pytest.mark.parametrize("pattern", [
    r"(a)\1", r"\k<a>", "(?>a)", "a++", "(a", "a)", "*", "[b-a]", "[a", r"\p{Grh}", r"\P{Graph}", "a{3,2}", "a{,3}",
    r"\y", "(?x)a", r"\u{110000}", "(" * 200 + ")" * 200, "\\", r"(?=a|b)*(?:\b)*" + "(", r"(?:(?=a)|b){2}",
    r"(?<=a(?=b))b"])
def test_what_cannot_be_read(pattern):
    """The matcher would read some of these, and mean something else."""
    with pytest.raises((automaton.TooLarge, syntax.Unreadable)):
        rewriting.rewritten(pattern)
    assert rewriting.opposite(pattern) is None
    assert rewriting.matches(pattern, "a") is None and not rewriting.exclude(pattern, "a")


def test_sets_of_characters():
    rng = random.Random(7)

    def codes(found):
        return {code for low, high in found for code in range(low, high + 1)}

    some = [sets.merged((low, low + rng.randint(0, 9)) for low in rng.choices(range(99), k=4)) for _ in range(40)]
    for one, other in itertools.pairwise(some):
        assert codes(sets.union(one, other)) == codes(one) | codes(other)
        assert codes(sets.intersection(one, other)) == codes(one) & codes(other)
        assert codes(sets.difference(one, other)) == codes(one) - codes(other)
        assert sets.complement(sets.complement(one)) == one
        parts = sets.parts([one, other], 9)
        assert sets.union(*parts) == sets.ALL
        assert sum(high - low + 1 for part in parts for low, high in part) == 0x110000 - 0x800
    assert sets.category("Lu") == sets.category("Uppercase_Letter") and sets.category("Xx") is None
    assert sets.union(*map(sets.category, "LMNPSZC")) == sets.ALL


def test_patterns_take_no_longer_than_was_allowed():
    with pytest.raises(automaton.Exhausted), automaton.effort(200):
        rewriting.rewritten("^" + "(|(?=a))" * 30 + "b#")
    with pytest.raises(automaton.TooLarge):
        rewriting.rewritten("^" + "(|(?=a))" * 30 + "b#")


@pytest.mark.parametrize("pattern", [r"^(?!a).*", r"^(?:(?!a)[ab]*|x)c$", r"[a-z]*(?<!-)$", r"^(?!a)[ab]*$"])
def test_what_an_assertion_stands_before_may_be_empty(pattern):
    for text in ("", "a", "b", "c", "ac", "bc", "xc", "-", "a-"):
        wanted = found(pattern, text) is not None
        assert all(found(one, text) for one in rewriting.rewritten(pattern)) == wanted, text
        assert (found(rewriting.opposite(pattern), text) is None) == wanted, text
    assert not rewriting.exclude("^(?!a).*", "^$")


def test_what_was_written_here_is_read_as_it_is_meant():
    made = rewriting.rewritten(r"^(?!a)\p{L}+$")
    assert "--[a]" in made[0]
    shown = rewriting.with_word(made, 60, None)[0]
    assert rewriting.matches(rewriting.Ours(shown), "b" * 60) and not rewriting.matches(rewriting.Ours(shown), "A]]AA")
    other = rewriting.opposite(rewriting.opposite(r"^(?!a)\p{L}+$"))
    assert isinstance(other, rewriting.Ours)
    assert [rewriting.matches(other, one) for one in ("b", "a", "A]]", "1")] == [True, False, False, False]
    pattern = r"^[[\p{L}--[a]]]$"                   # a schema's own is of three characters, the others are ]
    assert rewriting.matches(pattern, "-]]") and not rewriting.matches(pattern, "b")
    assert rewriting.rewritten(pattern) != rewriting.rewritten(rewriting.Ours(pattern))


def test_what_is_known_costs_as_much():
    patterns = [f"^(?!a).*b{{{i}}}(?=c)" for i in range(2, 5)]

    def cost():
        with automaton.effort(10 ** 6):
            for one in patterns:
                rewriting.rewritten(one), rewriting.opposite(one), rewriting.exclude(one, "^x")
            return 10 ** 6 - automaton._effort.get()[0]
    assert cost() == cost() > 100
    first = cost()
    patterns *= 5
    assert cost() == first


@pytest.mark.parametrize("pattern", ["^(?:" + "(?!a)[ab]?" * 3000 + ")c$", "[ab]{1,2}(?<!a)" * 1500])
def test_many_assertions_end_early(pattern):
    with pytest.raises(automaton.Exhausted), automaton.effort(80_000):
        rewriting.rewritten(pattern)
