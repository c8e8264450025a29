"""What the matcher itself refuses of a schema: the error names the place in the user's schema, and the keyword."""
import pytest

from gomlx._generation import refusals
from gomlx._generation.constraints import WHITESPACE, Constraint, why_refused
from gomlx.schema import Place, UnsupportedSchema, prepare

pytest.importorskip("llguidance", reason="gomlx[structured] is not installed")
TEXT, COUNTED = {"type": "string"}, {"minProperties": 2, "properties": {"a": {}}}
NARROW = TEXT | {"minLength": 5, "maxLength": 3}
LARGE = TEXT | {"pattern": "^(?:[a-z]{1,99}[0-9]{1,99}){1,99}$", "minLength": 5000, "maxLength": 5001}


def place_of(schema, **options):
    with pytest.raises(UnsupportedSchema) as raised:
        Constraint.schema(schema, **options)
    assert len(raised.value.places) == 1
    place = raised.value.places[0]
    assert place.reason and str(place) in str(raised.value)
    return place.pointer, place.keyword


@pytest.mark.parametrize("inner, keyword", [
    ({"type": "objekt", "title": "type"}, "type"), ({"type": "string", "minLength": "5"}, "minLength"),
    ({"minimum": "1", "maximum": 2}, "minimum"), (COUNTED, "minProperties"), (NARROW, "minLength"),
    ({"type": "array", "items": {}, "minItems": 3, "maxItems": 2}, "minItems"), ({"multipleOf": 1e-30}, "multipleOf"),
    ({"type": "integer", "minimum": 0.5, "maximum": 0.6}, "minimum"), (TEXT | {"maxLength": 2 ** 33}, "maxLength"),
    (TEXT | {"allOf": [{"pattern": "^a"}, {"pattern": "^b"}]}, "allOf"), (LARGE, "minLength")], ids=str)
@pytest.mark.parametrize("around, pointer", [
    (lambda inner: inner, ""),
    (lambda inner: {"type": "object", "properties": {"b": TEXT, "a/b": inner}, "required": ["a/b"]},
     "/properties/a~1b"),
    (lambda inner: {"$defs": {"x y": {"items": inner, "minItems": 1, "type": "array"}}, "allOf": [
        {"$ref": "#/$defs/x y"}]}, "/$defs/x y/items"),
    (lambda inner: {"anyOf": [{"allOf": [{}, inner]}]}, "/anyOf/0/allOf/1")], ids=range(4))
def test_places(around, pointer, inner, keyword):
    assert place_of(around(inner)) == (pointer, keyword)


@pytest.mark.parametrize("schema, place", [
    ({"patternProperties": {"^a": COUNTED}}, ("/patternProperties/^a", "minProperties")),
    ({"additionalProperties": {"prefixItems": [TEXT, COUNTED]}},
     ("/additionalProperties/prefixItems/1", "minProperties")),
    ({"oneOf": [{"type": "null"}, COUNTED | {"type": "object"}]}, ("/oneOf/1", "minProperties")),
    ({"dependentSchemas": {"a": {"items": {"type": "objekt"}}}}, ("/dependentSchemas/a/items", "type")),
    ({"items": {"if": {"const": 1}, "else": COUNTED}}, ("/items", "if")),
    ({"properties": {f"p{i}": COUNTED if i == 700 else TEXT for i in range(1000)}},
     ("/properties/p700", "minProperties"))], ids=lambda one: str(one)[:40])
def test_places_of_what_was_rewritten_or_is_one_of_many(schema, place):
    assert place_of(schema) == place


def test_only_what_must_be_there_makes_the_whole_unsatisfiable():
    """A property that nobody can have is no reason; nor is one of several branches."""
    schema = {"type": "object", "properties": {"free": NARROW, "needed": {"anyOf": [NARROW, {"$ref": "#/$defs/a"}]}},
              "required": ["needed"], "$defs": {"a": {"type": "integer", "minimum": 2, "maximum": 1}}}
    assert place_of(schema) == ("/properties/needed", "anyOf")
    assert place_of(schema | {"required": ["free", "needed"]}) == ("/properties/free", "minLength")


def test_of_two_faults_the_reason_is_that_of_the_place():
    schema = {"properties": {"a": COUNTED, "b": {"type": "objekt"}}}
    with pytest.raises(UnsupportedSchema) as raised:
        Constraint.schema(schema)
    place = raised.value.places[0]
    assert (place.pointer, place.keyword) == ("/properties/a", "minProperties") and "maxProperties" in place.reason
    assert why_refused(schema, WHITESPACE["default"]) == "Invalid type: objekt"


def test_what_references_do_together():
    schema = {"$defs": {"text": TEXT, "both": {"allOf": [{"$ref": "#/$defs/text"}, {"type": "integer"}]}},
              "type": "array", "items": {"$ref": "#/$defs/both"}, "minItems": 1}
    assert place_of(schema) == ("/$defs/both", "allOf")
    cyclic = {"$defs": {"a": {"$ref": "#/$defs/b", "minLength": 1}, "b": {"allOf": [{"$ref": "#/$defs/a"}],
              "maxLength": 3}}, "properties": {"x": {"$ref": "#/$defs/a"}}}
    assert place_of(cyclic) == ("/$defs/b/allOf/0", "$ref")


def test_the_pointer_of_a_tool_begins_at_the_tool():
    from test_tool_choice import function, made
    schema = {"type": "object", "properties": {"a": COUNTED}}
    with pytest.raises(UnsupportedSchema) as raised:
        made("qwen", None, tools=[function(parameters=schema, strict=True)])
    assert [(one.pointer, one.keyword) for one in raised.value.places] == [
        ("/tools/0/function/parameters/properties/a", "minProperties")]
    assert "/properties/a: minProperties" in made("qwen", "required", tools=[function(parameters=schema)]).report[0]


def test_it_asks_no_more_often_than_it_may(monkeypatch):
    asked = []
    schema = {"properties": {f"p{i}": {"items": {"items": COUNTED}} for i in range(100)}}

    def why(one):
        asked.append(one)
        return why_refused(one, WHITESPACE["default"])

    said = why(schema)
    place = refusals.place_of(prepare(schema), said, why)
    assert place == Place("/properties/p0/items/items", "minProperties", said) and len(asked) < 30
    monkeypatch.setattr(refusals, "MOST_ASKED", 9)
    asked.clear()
    assert refusals.place_of(prepare(schema), said, why).pointer == "/properties/p0" and len(asked) == 9
    monkeypatch.setattr(refusals, "MOST_SECONDS", -1)
    asked.clear()
    assert refusals.place_of(prepare(schema), "no reason", why) == Place("", "(unknown)", "no reason") and not asked
