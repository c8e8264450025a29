"""Keywords mean what the draft that $schema names says, and references what stands where they lead: as the package
jsonschema has it."""
import pytest
from test_schema_suite import Bytes, accepts

from gomlx._generation.constraints import Constraint
from gomlx.schema import UnsupportedSchema

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
jsonschema = pytest.importorskip("jsonschema", reason="gomlx[structured] is not installed")
DRAFT_4, DRAFT_7, DRAFT_2019 = ({"$schema": one} for one in (
    "http://json-schema.org/draft-04/schema#", "http://json-schema.org/draft-07/schema#",
    "https://json-schema.org/draft/2019-09/schema"))
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}


def assert_as_jsonschema(schema, documents):
    constraint, view = Constraint.schema(schema), Bytes()
    validator = jsonschema.validators.validator_for(schema)(schema)
    valid = [validator.is_valid(one) for one in documents]
    assert [accepts(constraint, view, one) for one in documents] == valid and len(set(valid)) == 2
    return constraint


@pytest.mark.parametrize("schema, documents", [
    (DRAFT_2019 | {"items": [TEXT], "unevaluatedItems": False}, [["a"], ["a", 1]]),
    (DRAFT_2019 | {"items": [TEXT], "additionalItems": WHOLE, "unevaluatedItems": False}, [["a", 1], ["a", "b"]]),
    (DRAFT_2019 | {"prefixItems": [TEXT], "items": WHOLE}, [[1], ["a"], ["a", 1]]),
    (DRAFT_7 | {"prefixItems": [TEXT], "items": WHOLE}, [[1], ["a"], ["a", 1]]),
    (DRAFT_7 | {"contains": TEXT, "minContains": 0, "maxItems": 2}, [[], [1], [1, "a"]]),
    (DRAFT_7 | {"dependentRequired": {"a": ["b"]}, "type": "object"}, [{"a": 1}, 1]),
    (DRAFT_4 | {"properties": {"const": TEXT | {"if": {"minLength": 2}, "then": False, "const": "a"}}},
     [{"const": "bc"}, {"const": 1}]),
    (DRAFT_4 | {"enum": [{"const": 1}, 2]}, [{"const": 1}, {}, 2])], ids=str)
def test_a_keyword_says_what_the_draft_says(schema, documents):
    assert_as_jsonschema(schema, documents)


HERE = {"$defs": {"q": TEXT}, "$id": "http://h/root"}
INNER = {"$id": "http://h/inner", "$defs": {"q": WHOLE}, "allOf": [{"$ref": "#/$defs/q"}]}


@pytest.mark.parametrize("schema", [
    {"if": {"const": 2}, "else": INNER}, {"if": {"type": "null"}, "then": INNER},
    {"contains": INNER, "maxItems": 2}, {"oneOf": [INNER, {"type": ["integer", "null"]}]}], ids=str)
def test_what_has_its_own_base_is_not_moved(schema):
    with pytest.raises(UnsupportedSchema, match="/properties/a: (if|contains|oneOf)"):
        Constraint.schema(HERE | {"properties": {"a": schema}})


def test_what_the_draft_does_not_have_is_reported():
    constraint = Constraint.schema(DRAFT_4 | {"properties": {"a/b": TEXT | {"const": "a"}, "const": TEXT}})
    assert constraint.report == ["/properties/a~1b: const is no keyword of the draft that $schema names: "
                                 "it says nothing"]


@pytest.mark.parametrize("schema, documents", [
    ({"propertyNames": {"pattern": "^b"}, "properties": {"a": TEXT, "b": {"$ref": "#/properties/a"}}},
     [{"b": "x"}, {"b": 1}, {"a": "x"}]),
    ({"propertyNames": {"enum": ["a", "b"]}, "patternProperties": {"^a": {"minLength": 2}},
      "properties": {"a": TEXT, "b": {"items": {"$ref": "#/properties/a"}}}}, [{"b": ["x"]}, {"b": [1]}, {"a": "x"}]),
    ({"propertyNames": {"maxLength": 1}, "additionalProperties": {
        "type": "object", "additionalProperties": {"$ref": "#/additionalProperties"}}},
     [{"a": {"long": {"b": {}}}}, {"long": {}}, {"a": {"b": 1}}])], ids=str)
def test_references_to_properties_whose_names_are_limited(schema, documents):
    """What they lead to is the schema that stands there, not what holds there beside it."""
    assert_as_jsonschema(schema, documents)


@pytest.mark.parametrize("schema, documents", [
    ({"contains": TEXT, "maxItems": 2}, [[], [1], ["a"], [1, "a"], [1, "a", 2], {}]),
    ({"contains": {"const": 2}, "items": WHOLE, "maxItems": 2}, [[2], [1], [1, 2], ["a", 2]]),
    ({"items": TEXT, "uniqueItems": True, "minItems": 2}, [["a", "b"], ["a"], ["a", "a"]])], ids=str)
def test_items_of_arrays(schema, documents):
    assert_as_jsonschema(schema, documents)
