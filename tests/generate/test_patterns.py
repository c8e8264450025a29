"""Patterns that look ahead, as several that do not: the same texts match, by Python's re."""
import itertools
import re

import pytest

from gomlx._generation.patterns import in_other_words, of_names, without_lookahead

PATTERNS = [r"^(?!ab)[abc]*$", r"^(?!a|bc)", r"^(?!ab:.*).{1,3}$", r"^(?![ab]c)(?!ca)[a-c]+$", r"^(?!.*a)[\s\S]{2}",
            r"^(?!\s*$).+$", r"^(?!\s+$)[ab ]*$", r"^(?=.{1,2}$)[ab]+", r"^(?=^a|b)\w*$",
            r"^(?!^c)(b|c)",
            r"^(?!a+$)[ab]*$", r"^(?![ab]*$)", r"^(?!.*[-]$)", r"^(?!.*bb)[\s\S]*$", r"^(?!.*[-]{2})[a-c-]*$",
            r"^(?!.* {2})a*",
            r"^[a-c.-]*(?<!\.)$", r"^(?!a)[a-c]*(?<![bc])$", r"^(?!.*[-a])[\s\S]*$",
            r"^(?![^a])(?!a\.)", r"^(?!a-)[a-z-]*$", r"^(?=(a|b)c)", r"^(?=[)a])a"]
# None ends with a line's end: before one of these Python's $ matches, which in JSON schemas does not.
TEXTS = ["".join(one) for n in range(5) for one in itertools.product("abc", repeat=n)] + \
    ["--", "a--", "-", "b\nbb", "bb\na", "a  ", "c.", "\n-",
     " ", "  ", "a ", "b\na", "a.", "a-", "a-b", "ab:", "ab:c", ")", "xa", "[", "a\n\nb"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_same_texts_match(pattern):
    parts = without_lookahead(pattern)
    assert parts and not any("(?=" in one or "(?!" in one for one in parts)
    for text in TEXTS:
        assert all(re.search(one, text) for one in parts) == bool(re.search(pattern, text)), (text, parts)


@pytest.mark.parametrize("pattern", [
    "abc", "(?!a)b", "^(?!a)b|c", "^(?!a+)b", "^a(?!b)c", "^(?!(?=a)b)c", "^(?!a", "^(?!ab|c*)", "^(?<!a)b",
    "^(?!a)(?<=b)", "^(?<!a)b$", "^(a(?<!a)$|b)", "^(?!.*ab)", "^(?!.*[^ab])", "^(?=(?!a)b)"])
def test_what_is_left_as_it_is(pattern):
    assert without_lookahead(pattern) is None


@pytest.mark.parametrize("pattern, wanted", [
    (r"\A[a-z-]+\Z", r"\A[a-z-]+$"), (r"[\Z]\\Z", r"[\Z]\\Z"), (r"^\S(?![\s\S])", r"^\S$"),
    (r"^\(?![\s\S])", r"^\(?![\s\S])"),
    (r"^[\u0020-\uD7FF\uE000-\uFFFD\uD800\uDBFF-\uDC00\uDFFF\t]*$", r"^[\u0020-\uD7FF\uE000-\uFFFD\t]*$"),
    (r"[a\uD800\uDC00-\uDBFF\uDFFF]", r"[a\u{10000}-\u{10FFFF}]"), (r"[\u0041-\uFFFF]", r"[\u0041-\uFFFF]"),
    (r"[\u0041-\uD900]", r"[\u0041-\uD7FF]"), (r"[a-\uD900]", r"[a-\uD900]"), (r"[\uDC00-\uD800]", r"[\uDC00-\uD800]"),
    (r"^a:.*:.*", r"^a:.*:"), (r"a\.*", r"a\.*"), (r"a|b.*", r"a|b.*"), (r"^.*", r"^.*"),
    (r"(?=^.{2}$)a", r"^(?=.{2}$)a"), (r"(?=^a|b)b", r"(?=^a|b)b"), (r"(?=^a)b|c", r"(?=^a)b|c"),
    (r"(?!^[.-])^a", r"^(?![.-])a"), (r"(?!^a)b", r"(?!^a)b")])
def test_other_words(pattern, wanted):
    assert in_other_words(pattern) == wanted


@pytest.mark.parametrize("pattern", [r"^(?!ab:)[a-c:-]+$", r"^(?!ab)[a-c]{1,3}$", r"^(?!abc).*$", r"^(?!aaa)[ab]{0,2}$",
                                     r"^(?!ab:.*).{2,3}$", r"^(?!\.a)[a.]+$", r"^(?!abc)[a-c]{2,2}$", r"^(?!x)[ab]+$"])
def test_names_that_do_not_begin_so(pattern):
    pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
    from test_schema_suite import Bytes, accepts

    from gomlx._generation.constraints import Constraint
    assert of_names(pattern) is not None
    view = Bytes()
    schema = {"type": "object", "additionalProperties": False, "patternProperties": {pattern: {}}}
    constraint = Constraint.schema(schema)
    for text in TEXTS:
        assert accepts(constraint, view, {text: 1}) == bool(re.search(pattern, text)), text
