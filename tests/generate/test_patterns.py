"""Patterns that look ahead, as several that do not: the same texts match, by Python's re."""
import itertools
import re

import pytest

from gomlx._generation.patterns import without_lookahead

PATTERNS = [r"^(?!ab)[abc]*$", r"^(?!a|bc)", r"^(?!ab:.*).{1,3}$", r"^(?![ab]c)(?!ca)[a-c]+$", r"^(?!.*a)[\s\S]{2}",
            r"^(?!\s*$).+$", r"^(?!\s+$)[ab ]*$", r"^(?=.{1,2}$)[ab]+", r"^(?=^a|b)\w*$",
            r"^(?!^c)(b|c)",
            r"^(?![^a])(?!a\.)", r"^(?!a-)[a-z-]*$", r"^(?=(a|b)c)", r"^(?=[)a])a"]
# None ends with a line's end: before one of these Python's $ matches, which in JSON schemas does not.
TEXTS = ["".join(one) for n in range(5) for one in itertools.product("abc", repeat=n)] + \
    [" ", "  ", "a ", "b\na", "a.", "a-", "a-b", "ab:", "ab:c", ")", "xa", "[", "a\n\nb"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match(pattern):
    parts = without_lookahead(pattern)
    assert parts and not any("(?=" in one or "(?!" in one for one in parts)
    for text in TEXTS:
        assert all(re.search(one, text) for one in parts) == bool(re.search(pattern, text)), (text, parts)


@pytest.mark.parametrize("pattern", [
    "abc", "(?!a)b", "^(?!a)b|c", "^(?!a+)b", "^a(?!b)c", "^(?!(?=a)b)c", "^(?!a", "^(?!ab|c*)", "^(?<!a)b",
    "^(?!a)(?<=b)", "^(?!.*ab)", "^(?!.*[^ab])", "^(?=(?!a)b)"])
def test_what_is_left_as_it_is(pattern):
    assert without_lookahead(pattern) is None
