"""`not`, `if` and overlapping `oneOf` as other keywords: the same documents are valid, by the package jsonschema."""
import json
import random

import pytest
from test_schema_suite import Bytes, accepts, spellings

from gomlx._generation.constraints import Constraint
from gomlx._generation.negation import negation, without_if, without_one_of
from gomlx.schema import UnsupportedSchema

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")
VALUES = [None, True, False, 0, 1, 5, -2, 2.5, "", "a", "ab", "b", "a]b^-", "é", [], [1], [1, 2, 3], {}, {"a": 1},
          {"a": "ab"}, {"b": None}, {"a": 5, "b": "a"}]


def valid(schema, document):
    return jsonschema.Draft202012Validator(schema).is_valid(document)


def random_schema(rng, depth=2):
    """Of keywords whose opposite is known."""
    kind = rng.choice(["type", "const", "enum", "limit", "required", "properties", "anyOf", "allOf", "two"]
                      if depth else ["type", "const", "enum", "limit"])
    if kind == "type":
        return {"type": rng.choice(["null", "boolean", "number", "string", "array", "object", ["string", "null"]])}
    if kind == "const":
        return {"const": rng.choice([one for one in VALUES if not isinstance(one, list | dict)])}
    if kind == "enum":
        return {"enum": rng.sample([one for one in VALUES if not isinstance(one, list | dict)], 3)}
    if kind == "limit":
        return rng.choice([{"minimum": 1}, {"maximum": 2}, {"exclusiveMinimum": 0}, {"exclusiveMaximum": 5},
                           {"minLength": 1}, {"maxLength": 1}, {"minItems": 1}, {"maxItems": 2}, {"minLength": 0}])
    if kind == "required":
        return {"required": rng.sample(["a", "b"], rng.randint(1, 2))}
    if kind == "properties":
        return {"properties": {name: random_schema(rng, depth - 1) for name in rng.sample(["a", "b"], 1)}}
    if kind == "two":
        return random_schema(rng, 0) | {"required": ["a"]}
    return {kind: [random_schema(rng, depth - 1) for _ in range(2)]}


def test_a_document_is_valid_under_a_schema_or_its_negation_and_never_both():
    rng, made = random.Random(1), 0
    for _ in range(400):
        schema = random_schema(rng)
        other = negation(schema)
        if other is not None:
            made += 1
            assert [valid(other, one) for one in VALUES] == [not valid(schema, one) for one in VALUES], (schema, other)
    assert made > 350


@pytest.mark.parametrize("schema", [{"type": "integer"}, {"multipleOf": 3}, {"pattern": r"(a)\1"}, {"$ref": "#"},
                                    {"items": {"minimum": 1}}, {"const": [1]}, {"const": "x" * 65},
                                    {"type": "string", "const": 1}, {"unknown": 1}], ids=str)
def test_what_has_no_negation(schema):
    assert negation(schema) is None
    assert without_if({"if": schema, "then": False}) is None and without_one_of([schema, True], [schema, True]) is None


def random_condition(rng):
    kind, one, other = rng.choice(["not", "if", "oneOf"]), random_schema(rng), random_schema(rng)
    if kind == "not":
        return {"not": one}
    if kind == "if":
        return {"if": one} | rng.choice([{"then": other}, {"else": other}, {"then": other, "else": random_schema(rng)}])
    return {"oneOf": [one, other]}


def test_answers_hold_to_conditions():
    """A grammar lets through exactly the valid documents; what the matcher cannot merge is refused."""
    rng, view, compiled = random.Random(2), Bytes(), 0
    for _ in range(150):
        schema = random_condition(rng)
        try:
            constraint = Constraint.schema(schema)
        except UnsupportedSchema:
            continue
        compiled += 1
        for document in VALUES:
            accepted = any(accepts(constraint, view, one) for one in spellings(document))
            assert accepted == valid(schema, document), (schema, json.dumps(document))
    assert compiled > 90


def test_a_discriminated_condition():
    """As forms say it: the kind decides what else there is."""
    schema = {"type": "object", "properties": {"kind": {"enum": ["card", "cash"]}, "number": {"type": "string"}},
              "required": ["kind"], "additionalProperties": False,
              "if": {"properties": {"kind": {"const": "card"}}}, "then": {"required": ["number"]}}
    constraint, view = Constraint.schema(schema), Bytes()
    for document in ({"kind": "card", "number": "1"}, {"kind": "cash"}, {"kind": "cash", "number": "1"}):
        assert accepts(constraint, view, document) and valid(schema, document)
    assert not accepts(constraint, view, {"kind": "card"})
