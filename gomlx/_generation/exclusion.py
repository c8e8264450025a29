"""Whether two JSON schemas have a document in common: what is certain without one. Each answer True has a reason that
holds for all documents; False says only that none was found."""
from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from gomlx._generation.regular import automaton, rewriting

JSON_TYPES = {"null": type(None), "boolean": bool, "integer": int, "number": (int, float), "string": str,
              "array": list, "object": dict}
MOST_LEVELS = 8                 # of schemas within one another that are looked at
Resolve = Callable[[Any], Any]  # the schema that another one refers to


def exclude(one: Any, other: Any, resolved: Resolve = lambda schema: schema, level: int = 0) -> bool:
    """Whether it is certain that no document is valid under both of two schemas."""
    automaton.spend(level > 1)                      # pairs of branches, and of their properties, are limited already
    one, other = resolved(one), resolved(other)
    if one is False or other is False:
        return True
    if not isinstance(one, dict) or not isinstance(other, dict) or level > MOST_LEVELS:
        return False
    found, others = _values(one), _values(other)
    if found is not None and others is not None and set(map(canonical, found)).isdisjoint(map(canonical, others)):
        return True
    for schema, against in ((one, other), (other, one)):
        values = _values(schema)
        if values is not None:
            return all(_is_invalid(value, schema, resolved, level) or _is_invalid(value, against, resolved, level)
                       for value in values)
        for keyword, certain in (("allOf", any), ("anyOf", all), ("oneOf", all)):
            ways = schema.get(keyword)
            if isinstance(ways, list) and ways and certain(exclude(way, against, resolved, level + 1) for way in ways):
                return True
    types, other_types = _types(one), _types(other)
    common = types & other_types
    if "integer" in types ^ other_types and "number" in types | other_types:
        common |= {"number"} if {"integer", "number"} & types and {"integer", "number"} & other_types else set()
    return all(_differ(kind, one, other, resolved, level) for kind in common)


def beside_others(branch: Any, beside: dict[str, Any]) -> Any:
    """The branch with types, values, required names and properties that it does not say itself, but what is beside it:
    all that is valid under both is valid under it."""
    if not isinstance(branch, dict):
        return dict(beside) if branch is True else branch
    made = {key: value for key, value in beside.items() if key in ("type", "const", "enum")} | branch
    made["required"] = [*_required(branch), *_required(beside)]
    if branch.get("additionalProperties") is not False and isinstance(beside.get("properties"), dict):
        known = branch.get("properties", {})
        made["properties"] = beside["properties"] | (known if isinstance(known, dict) else {})
    return made


def _differ(kind, one, other, resolved, level):
    """Whether no document of one type is valid under both."""
    if kind in ("number", "integer"):
        return _is_below(one, other) or _is_below(other, one)
    sizes = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems"),
             "object": ("minProperties", "maxProperties")}.get(kind)
    if sizes is None:
        return False
    if any(_number(a, sizes[0], 0) > _number(b, sizes[1], math.inf) for a, b in ((one, other), (other, one))):
        return True
    if kind == "string":
        patterns = [schema.get("pattern") for schema in (one, other)]
        return all(isinstance(pattern, str) for pattern in patterns) and rewriting.exclude(*patterns)
    if kind == "array":
        return _first_items_differ(one, other, resolved, level)
    return _discriminated(one, other, resolved, level)


def _number(schema, keyword, unless):
    value = schema.get(keyword, unless)
    return unless if isinstance(value, bool) or not isinstance(value, int | float) else value


def _is_below(one, other):
    """Whether all numbers of one are smaller than those of the other."""
    highest = min(_number(one, "maximum", math.inf), _number(one, "exclusiveMaximum", math.inf))
    lowest = max(_number(other, "minimum", -math.inf), _number(other, "exclusiveMinimum", -math.inf))
    is_open = _number(one, "exclusiveMaximum", math.inf) <= highest < math.inf or \
        _number(other, "exclusiveMinimum", -math.inf) >= lowest > -math.inf
    return highest < lowest or is_open and highest == lowest


def _first_items_differ(one, other, resolved, level):
    """Arrays have a first item, and it is of one kind in one, of another in the other."""
    if max(_number(one, "minItems", 0), _number(other, "minItems", 0)) < 1:
        return False
    firsts = []
    for schema in (one, other):
        inner = schema.get("prefixItems", schema.get("items", True))
        firsts.append(inner[0] if isinstance(inner, list) and inner else True if isinstance(inner, list) else inner)
    return exclude(*firsts, resolved, level + 1)


def _discriminated(one, other, resolved, level):
    """Whether a property that one requires is none of the other, or has values in one that exclude the other's."""
    for schema, against in ((one, other), (other, one)):
        for name in _required(schema):
            if _has_no(against, name):
                return True
            inner, outer = _property(schema, name), _property(against, name)
            if inner is not None and outer is not None and exclude(inner, outer, resolved, level + 1):
                return True
    return False


def _has_no(schema, name):
    """Whether no object that is valid has this property."""
    known = schema.get("properties", {})
    if not isinstance(known, dict):
        return False
    return known[name] is False if name in known else \
        schema.get("additionalProperties") is False and not schema.get("patternProperties")


def _required(schema):
    names = schema.get("required")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _property(schema, name):
    known = schema.get("properties")
    found = known.get(name) if isinstance(known, dict) else None
    return found if isinstance(found, dict | bool) else None


def _values(schema):
    if "const" in schema:
        return [schema["const"]]
    return schema["enum"] if isinstance(schema.get("enum"), list) else None


def _types(schema):
    named = schema.get("type", list(JSON_TYPES))
    named = named if isinstance(named, list) else [named]
    return set(named if all(isinstance(one, str) for one in named) else JSON_TYPES)


def _is_of(value, types):
    if isinstance(value, bool):
        return "boolean" in types
    whole = isinstance(value, float) and value.is_integer() and "integer" in types
    return whole or any(isinstance(value, JSON_TYPES[one]) for one in types if one in JSON_TYPES)


def _is_invalid(value, schema, resolved, level):
    """Whether it is certain that a value is not valid."""
    automaton.spend(level > 1)
    schema = resolved(schema)
    if not isinstance(schema, dict) or level > MOST_LEVELS:
        return schema is False
    values = _values(schema)
    if not _is_of(value, _types(schema)) or values is not None and \
            canonical(value) not in set(map(canonical, values)):
        return True
    other = schema.get("not")
    if isinstance(other, dict) and len(other) == 1 and canonical(value) in map(canonical, _values(other) or ()):
        return True
    for keyword, certain in (("allOf", any), ("anyOf", all), ("oneOf", all)):
        ways = schema.get(keyword)
        if isinstance(ways, list) and ways and certain(_is_invalid(value, way, resolved, level + 1) for way in ways):
            return True
    if isinstance(value, str):
        pattern = schema.get("pattern")
        return isinstance(pattern, str) and rewriting.matches(pattern, value) is False or \
            not _number(schema, "minLength", 0) <= len(value) <= _number(schema, "maxLength", math.inf)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _is_below(schema, {"minimum": value}) or _is_below({"maximum": value}, schema)
    if isinstance(value, list):
        return not _number(schema, "minItems", 0) <= len(value) <= _number(schema, "maxItems", math.inf)
    return isinstance(value, dict) and (
        any(name not in value for name in _required(schema)) or any(_has_no(schema, name) for name in value)
        or any(_is_invalid(value[name], found, resolved, level + 1) for name in value
               if (found := _property(schema, name)) is not None))


def canonical(value: Any) -> str:
    """A text that is the same for what is equal as JSON: 1 is 1.0, and true is not 1."""
    if isinstance(value, str):
        return f'"{value}"'
    def plain(one):
        if isinstance(one, list):
            return [plain(inner) for inner in one]
        if isinstance(one, dict):
            return {name: plain(inner) for name, inner in one.items()}
        return int(one) if isinstance(one, float) and one.is_integer() else one

    return json.dumps(plain(value), sort_keys=True)
