"""gomlx.schema.prepare() of what clients may send: it ends, and says what is wrong."""
import pytest

from gomlx._generation.regular import syntax
from gomlx.schema import UnsupportedSchema, prepare


@pytest.mark.parametrize("schema, place", [
    ({"dependentRequired": 3}, "/dependentRequired is 3, expected an object"),
    ({"items": {"required": "a"}}, '/items/required is "a", expected a list'),
    ({"properties": [1]}, "/properties is .1., expected an object"),
    ({"allOf": {}}, "/allOf is {}, expected a list"),
    ({"$ref": 1}, "/.ref is 1, expected a text")])
def test_values_of_another_form_are_named(schema, place):
    with pytest.raises(ValueError, match=f"schema: {place}"):
        prepare(schema)


@pytest.mark.parametrize("inner", [{"propertyNames": {"enum": 3}}, {"oneOf": [{"type": [[]]}, {"type": {}}]},
                                   {"oneOf": [{"required": [{}]}, {"required": ["a"]}]}])
def test_forms_that_only_the_matcher_knows(inner):
    with pytest.raises(UnsupportedSchema):
        prepare(inner)


def test_a_root_whose_id_is_a_name_within_it():
    made = prepare({"$id": "#here", "properties": {"next": {"$ref": "#here"}}})
    assert made.schema["properties"]["next"] == {"$ref": "#"}


def test_chains_of_references_are_followed_once(monkeypatch):
    """Each name leads to the next one: the work is that of their number, not of its square."""
    from gomlx import schema
    looked = []
    monkeypatch.setattr(schema, "found_at", lambda root, pointer, found=schema.found_at: (
        looked.append(pointer), found(root, pointer))[1])
    for last in ({}, {"$ref": "#/$defs/0"}):
        names = {str(i): {"$ref": f"#/$defs/{i + 1}"} for i in range(300)} | {"300": last}
        looked.clear()
        if last:
            with pytest.raises(UnsupportedSchema, match="leads back to itself"):
                prepare({"$defs": names})
        else:
            prepare({"$defs": names})
        assert len(looked) < 10 * len(names)


def test_branches_that_take_long_to_compare_are_refused():
    prepare({"oneOf": [{"const": i} for i in range(200)]})
    with pytest.raises(UnsupportedSchema, match="its 3000 branches are too large to compare"):
        prepare({"oneOf": [{"const": i} for i in range(3000)]})
    with pytest.raises(UnsupportedSchema, match="branches 0 and 1"):
        prepare({"oneOf": [{"enum": [1, "a"]}, {"enum": [{"b": [1.0]}, 1.0]}]})
    prepare({"oneOf": [{"enum": [1, "a"]}, {"enum": [True, "A"]}]})


@pytest.mark.parametrize("schema", [
    {"const": -2**63}, {"enum": ["x", 1 - 2**63]}, {"properties": {"a": {"items": {"const": -2**63}}}},
    {"type": "integer", "minimum": 1 - 2**63, "maximum": 1 - 2**63}])
def test_integers_that_the_matcher_would_end_the_process_with(schema):
    with pytest.raises(UnsupportedSchema, match="is below"):
        prepare(schema)
    assert prepare({"const": -2**62}).schema == {"const": -2**62}


@pytest.mark.parametrize("pattern", ["^" + "(|(?=a))" * 40 + "b", "^((a?){20}){20}(?!.*b)$", "a?" * 3000 + "(?!b)",
                                     "(?!" + "(a|b|c)*" * 30 + "d)", "(a|aa)+(?!b)(a|aa)+$" * 10])
def test_patterns_that_take_long_end_early(pattern, monkeypatch):
    """One is refused at most, many are too much: by steps, which are counted."""
    prepare({"pattern": pattern}, enforce="relaxed")
    monkeypatch.setattr("gomlx.schema.MAX_EFFORT", 8000)
    with pytest.raises(ValueError, match="its patterns take too long"):
        prepare({"properties": {str(i): {"pattern": f"{pattern}{i}"} for i in range(900_000 // len(pattern) % 2000)}})


@pytest.mark.parametrize("pattern", [r"^\p{Script=Greek}.$", r"^\a\s$", r"^\p{Script=Greek}[[a]]$", "(?x) a",
                                     "(" * 101 + "." + ")" * 101])
def test_patterns_that_cannot_be_read_are_refused(pattern):
    with pytest.raises(UnsupportedSchema, match="/items: pattern: a pattern that cannot be read"):
        prepare({"items": {"pattern": pattern}})
    with pytest.raises(UnsupportedSchema, match="/items: patternProperties: a pattern that cannot be read"):
        prepare({"items": {"patternProperties": {pattern: True}}})
    assert prepare({"items": {"pattern": pattern}}, enforce="relaxed").schema == {"items": {}}


CHAIN = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 5} for i in range(9)} | {"d9": {"minLength": 1}}


@pytest.mark.parametrize("schema", [
    {"$defs": CHAIN, "oneOf": [{"$ref": "#/$defs/d0"}, {"type": "string"}]},
    {"$defs": CHAIN, "oneOf": [{"$ref": "#/$defs/d0"}, {"const": "abc"}]},
    {"$defs": CHAIN, "propertyNames": {"$ref": "#/$defs/d0"}},
    {"propertyNames": {"oneOf": [{"pattern": f"^a{i}b*"} for i in range(300)]}},
    {"$ref": "#/x-more/k", "x-more": {"k": {"allOf": [{"pattern": f"(?!a)x{i}.*b(?=c)"} for i in range(300)]}}}],
    ids=range(5))
def test_comparisons_are_counted(schema, monkeypatch):
    monkeypatch.setattr("gomlx.schema.MAX_EFFORT", 8000)
    with pytest.raises(ValueError, match="its patterns take too long"):
        prepare(schema)


def test_patterns_of_very_many_parts():
    with pytest.raises(UnsupportedSchema, match="/items: pattern: (too many nested parts|its patterns take too long)"):
        prepare({"items": {"pattern": "(?!a)" + "[ab]?" * 2000 + "c"}})


@pytest.mark.parametrize("schema, place", [
    ({"items": {"pattern": "^(?!a)b*(?!b)$"}}, "/items: pattern"),
    ({"items": {"patternProperties": {"^a": {}, "b$": {}}}}, "/items: patternProperties"),
    ({"items": {"propertyNames": {"minLength": 2}}}, "/items: propertyNames"),
    ({"items": {"oneOf": [{"allOf": [{"allOf": [{"type": "string"}] * 9}]}, {"type": "string"}]}}, "/items: oneOf"),
    ({"items": {"contains": {"pattern": "(?!a)b*(?!b)"}, "maxItems": 2}}, "/items/contains: pattern")], ids=str)
def test_what_takes_too_long_is_named(schema, place, monkeypatch):
    monkeypatch.setattr("gomlx.schema.MAX_EFFORT", 3)
    with pytest.raises(UnsupportedSchema, match=f"cannot be enforced: {place}: its patterns take too long"):
        prepare(schema)


def test_a_place_that_was_rewritten_is_named_once_and_where_it_stands():
    with pytest.raises(UnsupportedSchema) as caught:
        prepare({"items": {"contains": {"not": {"multipleOf": 3}}, "maxItems": 9}})
    assert [(one.pointer, one.keyword) for one in caught.value.places] == [("/items/contains", "not")]


def test_assertions_are_looked_for_once_in_what_stands_in_many_places(monkeypatch):
    """Names beside each other are compared by terms that have the same trees in them."""
    looked = []
    monkeypatch.setattr(syntax, "inner", lambda node, inner=syntax.inner: (looked.append(node), inner(node))[1])
    tree = syntax.parse("(a|b)*a(a|b){9}")
    assert not syntax.has_assertions(tree)
    looked.clear()
    for _ in range(9):
        assert not syntax.has_assertions(syntax.Cat((tree, syntax.EMPTY)))
    assert len(looked) <= 9 * 2


@pytest.mark.parametrize("inner", [{"type": [{}], "const": 1}, {"required": 3}, {"type": 3, "enum": 3}])
def test_forms_of_what_is_not_to_hold(inner):
    with pytest.raises(UnsupportedSchema, match="not: no grammar"):
        prepare({"not": inner})
