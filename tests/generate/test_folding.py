"""(?i) in a regex and in patterns of schemas: the letters that Python's re takes for the same, beyond ASCII, too."""
import json
import random
import re

import pytest

import gomlx
from gomlx._generation.regular import characters as sets
from gomlx._generation.regular import folding, rewriting

ALPHABET = "aAsSſkKKiIİıéÉσςΣµμßẞǅdžΩΩж1_-"
RANGES = ["a-z", "A-Z", "é-ÿ", "α-ω", "Ѐ-Я", "j-l", "H-J", "!-~", "À-ſ", "K-K", "\U00010400-\U0001044f"]


def of(found):
    return {chr(code) for low, high in found for code in range(low, high + 1)}


def test_each_letter_has_the_cases_of_re():
    everything = "".join(one for codes in sets.ASSIGNED for one in map(chr, codes) if one.lower() != one.upper())
    for one in everything:
        cases = of(sets.any_case(((ord(one), ord(one)),)))
        assert cases == set(re.findall(f"(?i){re.escape(one)}", everything)), one
    assert of(sets.any_case(((0x30, 0x39),))) == set("0123456789")
    assert "K" in of(sets.any_case(((0x61, 0x7A),)))
    upper = sets.category("Lu")
    assert upper is sets.category("Lu") and sets.any_case(upper) is sets.any_case(upper)


def random_pattern(rng, depth=2):
    kind = rng.choice(["letter", "letter", "set", "set", "rep", "or", "flags", "two"] if depth else ["letter", "set"])
    if kind == "letter":
        return rng.choice([re.escape(rng.choice(ALPHABET)), rf"\u{ord(rng.choice(ALPHABET)):04x}", r"\d", "."])
    if kind == "set":
        members = rng.sample([*ALPHABET.replace("-", ""), *RANGES, r"\d", r"\u00e9", r"\-"], rng.randint(1, 3))
        return f"[{rng.choice(['', '^'])}{''.join(members)}]"
    inner = [random_pattern(rng, depth - 1) for _ in range(2)]
    return {"rep": f"(?:{inner[0]}){rng.choice('?*+')}", "or": f"({inner[0]}|{inner[1]})", "two": "".join(inner),
            "flags": f"(?{rng.choice(['i', '-i', 's-i', 'is'])}:{inner[0]})"}[kind]


def cases():
    """(a pattern, texts of which some nearly match)"""
    rng = random.Random(3)
    for _ in range(250):
        pattern = rng.choice(["(?i)", "(?i)", ""]) + random_pattern(rng)
        yield pattern, ["".join(rng.choices(ALPHABET, k=rng.randint(0, 2))) for _ in range(15)]


def test_a_regex_matches_what_re_matches():
    pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
    from test_schema_suite import Bytes

    from gomlx._generation.constraints import Constraint
    view, n = Bytes(), [0, 0]
    for pattern, texts in cases():
        constraint = Constraint.regex(pattern)
        for text in texts:
            matcher = constraint.matcher(view)
            whole = matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()
            wanted = re.fullmatch(pattern, text) is not None
            assert whole == wanted, (pattern, text, folding.folded(pattern))
            n[wanted] += 1
    assert min(n) > 400


def test_a_pattern_matches_what_re_finds():
    n = [0, 0]
    for pattern, texts in cases():
        if "-i" in pattern or "\\d" in pattern:      # the reader of patterns has no flags that end; \d is ASCII's there
            continue
        for text in texts:
            wanted = re.search(pattern, text) is not None
            assert rewriting.matches(pattern, text) == wanted, (pattern, text, rewriting.rewritten(pattern))
            n[wanted] += 1
    assert min(n) > 200


@pytest.mark.parametrize("pattern, wanted", [
    ("k(?i)k(?-i)k", "k(?i)[Kk\u212a](?-i)k"), ("((?i)k)k", None), ("(?i:(?<n>é))é", None),
    (r"(?i)\x{e9}\.\p{Lu}{1,2}", r"(?i)[Éé]\.\p{Lu}{1,2}"),
    ("(?i)[]k]", None), ("(?i)[^]i]", None), ("(?i)[a[k]]é", None), ("(?i)[a-z&&[k]]", "(?i)[a-z&&[k]]"),
    (r"(?i)\pLk[\pN\PZ]", "(?i)\\pL[Kk\u212a][\\pN\\PZ]"), ("(?i-u)k(?u:k)", "(?i-u)k(?u:[Kk\u212a])"),
    ("(?-u:(?i)k)(?i:k)", "(?-u:(?i)k)(?i:[Kk\u212a])"), ("(?ix) k", "(?ix) k"),
    ("k[i]", "k[i]"), ("(?i)[1-9]+", "(?i)[1-9]+"), ("(?i)[", "(?i)["), ("(?i)\\", "(?i)\\")])
def test_what_is_written_out(pattern, wanted):
    made = folding.folded(pattern)
    assert made == wanted if wanted else made != pattern


@pytest.mark.parametrize("pattern", ["(?i)[" + r"\x41\u{41}" * 500, "(?i)[" + r"\p{" * 5000, "(?i)" + "(?<" * 5000],
                         ids=["classes", "properties", "names"])
def test_what_does_not_end_is_read_once(pattern):
    """In one way: a class of many escapes, each of which begins as two others do, has very many."""
    assert folding.folded(pattern) == pattern


def test_schemas_fold_as_well():
    pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
    from test_schema_suite import Bytes, accepts

    from gomlx._generation.constraints import Constraint
    constraint, view = Constraint.schema({"type": "string", "pattern": r"^(?i:straße|[à-ï]+\W)$"}), Bytes()
    for text, wanted in (("STRAẞE", True), ("ſtraße", True), ("strasse", False), ("ÀÏï-", True), ("ÀÏðs", False)):
        assert accepts(constraint, view, json.loads(json.dumps(text))) == wanted, text


@pytest.mark.parametrize("made, words", [
    (lambda: gomlx.Constraint.regex("(?i)" + "[A-\U00010400]" * 600), "regex: 600 character classes"),
    (lambda: gomlx.Constraint.grammar("start: /" + "[A-\U00010400]" * 600 + "/i"), "grammar: 600 character classes"),
    (lambda: gomlx.Constraint.schema({"type": "string", "pattern": "^" + r"(?i:\P{Lu})" * 600 + "$"}), "/: pattern: "),
], ids=["regex", "grammar", "pattern"])
def test_more_classes_than_are_folded_in_a_second(made, words):
    pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
    with pytest.raises(ValueError, match=words):
        made()
