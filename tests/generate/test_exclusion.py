"""Schemas that exclude each other, and what is valid of names: the same documents as by the package jsonschema."""
import itertools
import json
import random
import re

import pytest
from test_schema_suite import Bytes, accepts, spellings

from gomlx._generation import property_names
from gomlx._generation.constraints import Constraint
from gomlx._generation.exclusion import exclude
from gomlx.schema import UnsupportedSchema, prepare

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")
VALUES = [None, True, False, 0, 1, 5, -2, 2.5, "", "a", "ab", "b", "abc", [], [1], ["a"], [1, 2, 3], {}, {"a": 1},
          {"a": "ab"}, {"b": None}, {"a": 5, "b": "a"}, {"c": 1}, {"a": {"b": 1}}]


def valid(schema, document):
    return jsonschema.Draft202012Validator(schema).is_valid(document)


def random_schema(rng, depth=2):
    made = {}
    for _ in range(rng.randint(1, 3)):
        made |= rng.choice([
            {"type": rng.choice(["string", "integer", "number", "object", "array", ["string", "null"]])},
            {"const": rng.choice(VALUES)}, {"enum": rng.sample(VALUES, 3)}, {"minimum": rng.randint(-3, 6)},
            {"exclusiveMaximum": rng.randint(-3, 6)}, {"minLength": rng.randint(0, 3)},
            {"maxLength": rng.randint(0, 3)},
            {"pattern": rng.choice(["^a", "b$", "^[ab]+$", "c", "^(?!a)"])}, {"minItems": 1},
            {"maxItems": 0}, {"required": rng.sample("abc", rng.randint(1, 2))}, {"additionalProperties": False},
            {"minProperties": 1},
            *([{"properties": {name: random_schema(rng, depth - 1) for name in rng.sample("abc", 2)}},
               {"items": random_schema(rng, depth - 1)},
               {rng.choice(["anyOf", "allOf", "oneOf"]): [random_schema(rng, depth - 1) for _ in range(2)]}] * 2
              if depth else [])])
    return made


def test_no_document_is_valid_under_two_schemas_that_exclude_each_other():
    rng, n = random.Random(3), 0
    for _ in range(300):
        one, other = random_schema(rng), random_schema(rng)
        if exclude(one, other):
            n += 1
            assert not any(valid(one, value) and valid(other, value) for value in VALUES), (one, other)
    assert n > 30


@pytest.mark.parametrize("one, other", [
    ({"type": "integer", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}),
    ({"enum": ["pip"]}, {"pattern": "^u"}),
    ({"type": "string", "maxLength": 2}, {"type": "string", "pattern": "^x", "minLength": 3}),
    ({"type": "array", "minItems": 1, "items": {"type": "null"}}, {"type": "array", "items": {"type": "string"}}),
    ({"const": 3}, {"minimum": 4}), ({"enum": ["a", 1]}, {"not": {"enum": [1, "a", "b"]}}),
    ({"const": {"a": 1}}, {"properties": {"a": {"type": "string"}}}),
    ({"anyOf": [{"const": 1}, {"const": 2}]}, {"type": "number", "minimum": 3}),
    ({"type": "object", "required": ["k"], "properties": {"k": {"pattern": "^a$"}}},
     {"type": "object", "properties": {"k": {"type": "string", "pattern": "^b"}}, "required": ["k"]})], ids=str)
def test_which_is_known(one, other):
    assert exclude(one, other) and exclude(other, one) and not exclude(one, one) and not exclude(other, other)


ONE_OF = [
    {"type": "object", "oneOf": [
        {"properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False},
        {"properties": {"b": {}}, "required": ["b"], "additionalProperties": False}]},
    {"type": "object", "oneOf": [
        {"type": "object", "properties": {name: {"type": "integer"}}, "additionalProperties": False}
        for name in "abc"]},
    {"type": "object", "oneOf": [{"properties": {"a": {"type": "string"}}, "additionalProperties": False},
                                 {"properties": {"b": {}, "a": {}}, "additionalProperties": False}]},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False,
     "oneOf": [{"required": [name]} for name in "abcdefgh"]},
    {"oneOf": [{"enum": ["a", "ab"]}, {"type": "string", "pattern": "^b"}, {"type": "integer"}]},
    {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$"}]},
    {"if": {"properties": {"a": {"pattern": "^a"}}, "required": ["a"], "type": "object"}, "then": {"required": ["b"]},
     "type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "additionalProperties": False},
    {"type": "string", "not": {"pattern": "^(a|b$)"}}, {"type": "array", "items": {"type": "integer"},
                                                        "not": {"contains": {"minimum": 2}}},
    {"not": {"oneOf": [{"type": "string"}, {"enum": ["a", 1]}]}, "type": ["string", "integer"]}]


@pytest.mark.parametrize("schema", ONE_OF, ids=range(len(ONE_OF)))
def test_answers_hold_to_branches_and_conditions(schema):
    constraint, view = Constraint.schema(schema), Bytes()
    documents = [*VALUES, {"b": 5}, {"a": "x"}, {"a": "x", "b": 1}, [0, 1], [2], {"c": 1, "b": 1}]
    for document in documents:
        accepted = any(accepts(constraint, view, one) for one in spellings(document))
        assert accepted == valid(schema, document), document
    assert any(valid(schema, one) for one in documents)


NAMES = [{"pattern": "^a"}, {"minLength": 2}, {"maxLength": 1}, {"enum": ["a", "abc", 3]}, {"not": {"const": "a"}},
         {"anyOf": [{"const": "a"}, {"pattern": "b.*c"}]}, {"oneOf": [{"pattern": "a"}, {"pattern": "b"}]},
         {"$ref": "#/$defs/name"}, {"allOf": [{"minLength": 1}, {"not": {"pattern": "c"}}], "type": "string"},
         {"type": "integer"}, {"minLength": 2, "maxLength": 3}, {"minimum": 3, "format": "unknown"}]
BESIDE = [{}, {"patternProperties": {"^[ab]+$": {"type": "integer"}}, "additionalProperties": False},
          {"properties": {"a": {"type": "integer"}, "bc": {}}, "additionalProperties": {"type": "integer"}},
          {"patternProperties": {"^a": {"minimum": 1}, "b": {"type": "integer"}}}]
OBJECTS = [{}, *({name: value} for name in ("a", "b", "ab", "abc", "bc", "c", "ca", "cc") for value in (0, 1, "x"))]


@pytest.mark.parametrize("names, beside", list(itertools.product(NAMES, BESIDE)), ids=lambda one: str(one)[:40])
def test_names_of_properties(names, beside):
    schema = {"type": "object", "propertyNames": names, "$defs": {"name": {"pattern": "^[a-b]"}}, **beside}
    constraint, view = Constraint.schema(schema), Bytes()
    for document in OBJECTS:
        assert accepts(constraint, view, document) == valid(schema, document), document


def test_patterns_of_names_are_set_apart():
    patterns = {"a": {"minimum": 1}, "^[ab]*$": {"maximum": 5}, "c": True}
    made = property_names.disjoint(patterns)
    for name in ("", "a", "b", "ab", "ac", "c", "ca", "d"):
        found = [value for pattern, value in made.items() if re.search(pattern, name)]
        wanted = [value for pattern, value in patterns.items() if re.search(pattern, name) and value is not True]
        assert len(found) <= 1 and (found or [True])[0] == (
            {"allOf": wanted} if len(wanted) > 1 else wanted[0] if wanted else True), name


def test_names_that_cannot_be_said_are_refused():
    for names in ({"if": {}}, {"format": "email"}, {"$ref": "#/$defs/mail"},
                  {"pattern": r"(a)\1"}, {"$ref": "#/nowhere"}):
        with pytest.raises(UnsupportedSchema, match="propertyNames"):
            prepare({"propertyNames": names, "$defs": {"mail": {"anyOf": [{"const": "x"}, {"format": "email"}]}}})


def test_a_reference_with_more_beside_it_says_all_of_it():
    """The other branch may have what only the $ref has."""
    schema = {"$defs": {"short": {"type": "string", "maxLength": 2}},
              "oneOf": [{"$ref": "#/$defs/short", "pattern": "^a"}, {"type": "string", "maxLength": 1}]}
    with pytest.raises(UnsupportedSchema, match="oneOf"):
        prepare(schema)
    with pytest.raises(UnsupportedSchema, match="not"):
        prepare({"$defs": schema["$defs"], "not": {"$ref": "#/$defs/short", "pattern": "^a"}})
    assert prepare({"$defs": schema["$defs"], "not": {"$ref": "#/$defs/short"}})


DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "http://x/",
           "definitions": {"a": {"$id": "http://x/a", "type": "integer"}}}
FOO = {"$defs": {"a": {"$anchor": "foo", "type": "integer"}}, "type": "object"}


@pytest.mark.parametrize("schema", [
    {"type": "string", "not": {"pattern": "^(?!a).*"}},
    {"type": "string", "pattern": r"^(?!a)\p{L}+$", "minLength": 60},
    {"type": "string", "not": {"pattern": r"^(?!a)\p{L}+$"}},
    {"type": "object", "propertyNames": {"oneOf": [True, True]}},
    *({"type": "object", "patternProperties": {"a": {"type": "integer"}, "^a": {"minimum": 5}}, "propertyNames": names}
      for names in ({"enum": ["a"]}, {"pattern": "^a$"})),
    FOO | {"properties": {"x": {"oneOf": [{"$ref": "#foo"}, {"type": "string", "minimum": 3}]}}}], ids=str)
def test_what_was_once_read_otherwise(schema):
    """jsonschema says of these documents what the answers are held to."""
    constraint, view = Constraint.schema(schema), Bytes()
    plain = json.loads(json.dumps(schema).replace(r"\\p{L}", "[a-zA-Z]"))
    for document in ("", "b", "a", "A]]", "A]]" + "A" * 60, "b" * 60, {}, {"q": 1}, {"a": "x"}, {"a": 6}, {"a": 4},
                     {"x": 5}, {"x": "s"}):
        assert accepts(constraint, view, document) == valid(plain, document), document


@pytest.mark.parametrize("schema", [
    DRAFT_7 | {"oneOf": [{"$ref": "http://x/a", "type": "string"}, {"$ref": "http://x/a", "type": "integer"}]},
    FOO | {"properties": {"x": {"oneOf": [{"$ref": "#foo"}, {"type": "integer", "minimum": 3}]}}},
    {"propertyNames": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b", "maxLength": 2}, "b": {}}}])
def test_references_of_which_more_is_said(schema):
    with pytest.raises(UnsupportedSchema, match="oneOf|propertyNames"):
        prepare(schema)


def test_listed_names():
    names = [f"name{i}" for i in range(1000)]
    made = Constraint.schema({"type": "object", "propertyNames": {"enum": names}})
    assert accepts(made, Bytes(), {"name7": 1}) and not accepts(made, Bytes(), {"x": 1})
    schema = {"propertyNames": {"enum": names, "pattern": "[13]$", "const": "name11"},
              "patternProperties": {"1": {"type": "string"}, "^x": {}}, "properties": {"name11": {"minLength": 2}}}
    made = prepare(schema).schema
    assert made["properties"] == {"name11": {"allOf": [{"minLength": 2}, {"type": "string"}]}}
    assert made["additionalProperties"] is False and "patternProperties" not in made


def test_a_pattern_with_the_letters_of_one_that_was_written_here():
    made = {"^a$": True}
    property_names.add(made, "^a$", {"minimum": 1})
    assert made == {"^a$": {"minimum": 1}}
    with pytest.raises(property_names.TooLarge):
        property_names.add(made, property_names.rewriting.Ours("^a$"), True)
