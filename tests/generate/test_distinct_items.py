"""`uniqueItems`: random walks through masks end in documents whose items differ, by the package jsonschema."""
import itertools
import json
import random

import numpy as np
import pytest
from test_schema_suite import Bytes, accepts

import gomlx
from gomlx._generation.constraints import Constraint
from gomlx._generation.distinct_items import DistinctMatcher
from gomlx.schema import prepare

llguidance = pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")

SETS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "uniqueItems": True, "maxItems": 4}
SCHEMAS = {
    "anything": {"type": "array", "uniqueItems": True, "maxItems": 5},
    "texts": {"type": "array", "items": {"type": "string", "maxLength": 3, "pattern": "^[ab]*$"}, "uniqueItems": True,
              "maxItems": 4},
    "values": {"type": "array", "items": {"enum": ["a", "ab", "b", "c", "d", "e", "f"]}, "uniqueItems": True,
               "minItems": 4},
    "objects": {"type": "object", "required": ["t"], "additionalProperties": False, "properties": {"t": {
        "type": "array", "uniqueItems": True, "maxItems": 3, "items": {
            "type": "object", "properties": {"a": {"enum": [0, 1]}, "b": {"type": "boolean"}}, "required": ["a"]}}}},
    "arrays": {"type": "array", "items": SETS, "uniqueItems": True, "maxItems": 4},
    "numbers": {"type": "array", "items": {"type": "number", "minimum": 0, "maximum": 1}, "uniqueItems": True,
                "maxItems": 4},
    "references": {"$defs": {"s": SETS}, "type": "object", "patternProperties": {"^[ab]$": {"$ref": "#/$defs/s"}},
                   "additionalProperties": False},
    "few texts": {"type": "array", "items": {"type": "string", "pattern": "^(aa?|b)$"}, "uniqueItems": True},
    "full texts": {"type": "array", "items": {"type": "string", "maxLength": 1, "pattern": "^[a-c\\n\\r]*$"},
                   "uniqueItems": True, "minItems": 1},
    "few numbers": {"type": "array", "items": {"anyOf": [{"type": "number", "minimum": 1, "maximum": 1}, {
        "type": "integer", "minimum": 9, "maximum": 11}]}, "uniqueItems": True},
    "few arrays": {"type": "array", "uniqueItems": True, "items": {
        "type": "array", "items": {"enum": ["x", "xy"]}, "uniqueItems": True, "minItems": 1}},
    "places": {"type": "array", "uniqueItems": True, "prefixItems": [{"enum": [1, 2]}, {"enum": [1, 2]}],
               "items": {"type": "string", "maxLength": 1, "pattern": "^[ab]*$"}},
    "one of two": {"anyOf": [SETS, {"type": "object", "additionalProperties": {"allOf": [SETS]}}]},
}


class Tokens(Bytes):
    """Bytes, an end, and tokens that end items and begin others."""
    tokens = [*Bytes.tokens, b'", "', b'"a', b'","', b'"]', b"], [", b"0, 0", b"1, ", b'a", "a"', b"[[], []", b"}, {",
              b'", "a", "', b'["a", "', b"ue, ", b"tr", b"false, ", b": 1}", b"[1, 1"]

    def __init__(self):
        self.matching = llguidance.LLTokenizer(llguidance.TokenizerWrapper(self), n_vocab=len(self.tokens))


VIEW = Tokens()


def walk(matcher, rng):
    """A document; None: the text did not end."""
    text = b""
    for _ in range(150):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        ids = np.flatnonzero(bits[:len(VIEW.tokens)])
        assert len(ids), f"no token is left after {text}"
        token = int(rng.choices(ids, [3 if VIEW.tokens[one][:1] in b'"]},' else 1 for one in ids])[0])
        if token == VIEW.eos_token_id:
            return json.loads(text)
        assert matcher.consume_token(token), (text, VIEW.tokens[token], matcher.get_error())
        text += VIEW.tokens[token]
    return None


@pytest.mark.parametrize("name", SCHEMAS)
def test_random_documents_are_valid(name):
    constraint, rng = Constraint.schema(SCHEMAS[name]), random.Random(7)
    made = [one for _ in range(40) if (one := walk(constraint.matcher(VIEW), rng)) is not None]
    valid = jsonschema.Draft202012Validator(SCHEMAS[name])
    assert len(made) > 10 and all(map(valid.is_valid, made))
    assert max(len(json.dumps(one)) for one in made) > 8


def orders(values, least=0):
    return [list(one) for n in range(least, len(values) + 1) for one in itertools.permutations(values, n)]


@pytest.mark.parametrize("name, documents", [
    ("few texts", orders(["a", "aa", "b"])), ("few arrays", orders(orders(["x", "xy"], 1))),
    ("places", [[], [1], [2], *([a, b, *rest] for a, b in ((1, 2), (2, 1)) for rest in orders(["", "a", "b"]))])])
def test_a_token_is_allowed_exactly_when_some_document_goes_on_so(name, documents):
    texts = {json.dumps(one).encode() for one in documents}
    todo = [(b"", Constraint.schema(SCHEMAS[name]).matcher(VIEW))]
    while todo:
        text, matcher = todo.pop()
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        ids = np.flatnonzero(bits[:len(VIEW.tokens)]).tolist()
        rests = {one[len(text):] for one in texts if one.startswith(text)}
        wanted = {i for i, token in enumerate(VIEW.tokens) for rest in rests if rest.startswith(token)}
        wanted |= {VIEW.eos_token_id} if b"" in rests else set()
        assert set(ids) == wanted, text
        for i in {one for one in ids if one < 256}:
            copy = matcher.deep_copy()
            assert copy.consume_token(i)
            todo.append((text + VIEW.tokens[i], copy))


@pytest.mark.parametrize("name", ["full texts", "few numbers", "few arrays", "objects"])
def test_blanks_and_other_ways_to_write_are_no_way_out(name):
    constraint, rng = Constraint.schema(SCHEMAS[name], whitespace="any"), random.Random(3)
    made = [one for _ in range(20) if (one := walk(constraint.matcher(VIEW), rng)) is not None]
    valid = jsonschema.Draft202012Validator(SCHEMAS[name])
    assert len(made) > 5 and all(map(valid.is_valid, made))


@pytest.mark.parametrize("document, is_valid", [
    ([1, 2], True), ([1, 1], False), ([1, 1.0], False), (["a", "b"], True), ([[1], [1]], False),
    ([{"a": 1, "b": 2}, {"b": 2, "a": 1}], False), ([[1, 1], [1]], True), ([True, 1], True),
    ([None, None], False), ([], True), ("aa", True),
    ([{"a": [1, 1]}, {"a": [1]}], True), ([0, False], True)], ids=str)
def test_items_are_compared_as_json(document, is_valid):
    constraint = Constraint.schema({"uniqueItems": True})
    assert accepts(constraint, VIEW, document) == is_valid


def test_blanks_are_no_difference():
    constraint = Constraint.schema({"type": "array", "uniqueItems": True}, whitespace="any")
    for text, error in ((b'["a" , "b" ]', ""), (b'[ 1 ,10]', ""), (b'["a" ,"a"', "two items are \"a\""),
                        (b'[[1,2], [1 ,2 ]', "two items are [1, 2]")):
        matcher = constraint.matcher(VIEW)
        assert matcher.consume_tokens(list(text)) == (not error) and matcher.get_error() == error


def test_copies_go_on_by_themselves():
    first = Constraint.schema({"type": "array", "uniqueItems": True}).matcher(VIEW)
    assert first.consume_tokens(list(b"[1, "))
    second = first.deep_copy()
    assert second.consume_tokens(list(b"2, 3]")) and first.consume_tokens(list(b"2]"))
    assert not first.deep_copy().is_error() and first.is_accepting() and second.is_accepting()


@pytest.mark.parametrize("schema, reason", [
    ({"minItems": 3, "items": {"type": "string", "pattern": "^[ab]$"}}, "3 different items"),
    ({"minItems": 3, "items": {"type": "boolean"}}, "3 different items"),
    ({"minItems": 2, "prefixItems": [{"const": 1}, {"enum": [1, 2]}]}, "2 different items"),
    ({"items": {"type": "object", "patternProperties": {"^[ab]$": {"const": 1}}, "additionalProperties": False}},
     "in any order"),
    ({"items": {"enum": [1, 2]}, "anyOf": [{"minItems": 3}, {"maxItems": 1}]}, "several places")], ids=str)
def test_what_may_come_to_a_dead_end_is_refused(schema, reason):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True} | schema}}
    with pytest.raises(gomlx.UnsupportedSchema, match=reason) as caught:
        Constraint.schema(schema)
    assert [(one.pointer, one.keyword) for one in caught.value.places] == [("/properties/a", "uniqueItems")]


def test_a_look_ahead_makes_few_masks(monkeypatch):
    matcher = Constraint.schema({"type": "array", "items": {"type": "string"}, "uniqueItems": True}).matcher(VIEW)
    assert matcher.consume_tokens(list(json.dumps([f"a text {i}" for i in range(300)])[:-1].encode() + b', "'))
    made, whole = [], DistinctMatcher._has_way
    monkeypatch.setattr(DistinctMatcher, "_has_way", lambda self, *rest: made.append(rest) or whole(self, *rest))
    for byte in b"a text 29":
        made.clear()
        bits = matcher.compute_bitmask()
        assert len(made) <= 12 and bits[byte // 8] >> byte % 8 & 1
        assert matcher.consume_token(byte)
    assert not matcher.compute_bitmask()[ord('"') // 8] >> ord('"') % 8 & 1         # "a text 29" was before


def test_where_nothing_compares_items_it_is_refused():
    with pytest.raises(gomlx.UnsupportedSchema, match="uniqueItems"):
        prepare({"type": "array", "uniqueItems": True})
    with pytest.raises(gomlx.UnsupportedSchema, match="/properties/a: uniqueItems"):
        Constraint.schema({"properties": {"a": {"uniqueItems": True}}}).uncompared()
