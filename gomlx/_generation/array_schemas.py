"""What a JSON schema says of the items of an array as a whole, `contains` and `uniqueItems`, as keywords that a grammar
holds a text to: exact, or None where there are none, or too many alternatives."""
from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from gomlx._generation.negation import TYPES, any_of, negation

MOST_PLACES = 16                # where in an array an item may be
MOST_VALUES = 64                # of whole numbers between limits
MOST_ORDERS = 400               # of different values one after another
MOST_LEVELS = 8                 # of schemas within one another whose values are counted
WAYS = ("allOf", "anyOf", "oneOf", "not", "if", "$ref")
LIMITS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_MANY = re.compile(r"^[^^]|[^$]$|(?:\]|\\[wdS]|(?<!\\)\.)(?:[+*]|\{\d+,(?:\d\d+)?\})")    # as no end of names matches
NO_ARRAY = {"type": [one for one in TYPES if one != "array"]}


def without_contains(schema: dict[str, Any]) -> Any:
    """What `contains`, `minContains` and `maxContains` say, beside what else the schema does; None: cannot."""
    wanted = schema["contains"]
    least, most = (_count(schema, name, other) for name, other in (("minContains", 1), ("maxContains", math.inf)))
    if least is None or most is None:
        return None
    if wanted in (True, {}):                            # each item is one
        return {} if least == 0 and most == math.inf else \
            {"minItems": least} | ({"maxItems": most} if most != math.inf else {})
    if most < least or wanted is False and least > 0:
        return NO_ARRAY
    if wanted is False:
        return True
    if most == 0:
        other = negation(wanted)
        return None if other is None else {"items": other} if other is not False else {"maxItems": 0}
    if most != math.inf or least > 1:
        return None
    return True if least == 0 else _somewhere(schema, wanted)


def _somewhere(schema, wanted):
    """At one of the places that an array has."""
    places = _count(schema, "maxItems", math.inf)
    if places is None or places > MOST_PLACES:
        return None
    return any_of([NO_ARRAY, *({"type": "array", "prefixItems": [*[True] * i, wanted], "minItems": i + 1}
                               for i in range(places))])


def without_unique(schema: dict[str, Any], values: Sequence[Any] | None) -> Any:
    """What uniqueItems says, beside what else the schema does; None: cannot. values: all that items may be, each once;
    None: more than that."""
    least, most = _count(schema, "minItems", 0), _count(schema, "maxItems", math.inf)
    if least is None or most is None:
        return None
    if most <= 1:
        return True
    if values is None or most == math.inf or "prefixItems" in schema:  # without maxItems there are too many orders
        return None
    lengths = range(least, min(most, len(values)) + 1)
    if sum(math.perm(len(values), length) for length in lengths) > MOST_ORDERS:
        return None
    orders = [order for length in lengths for order in itertools.permutations(values, length)]
    return any_of([NO_ARRAY, *map(_exactly, orders)])


def _exactly(values):
    made = {"type": "array", "minItems": len(values), "maxItems": len(values)}
    return made | ({"prefixItems": [{"const": one} for one in values]} if values else {})


def _count(schema, name, other):
    """A number that is whole and not negative; None: it is another."""
    value = schema.get(name, other)
    if value is None or value == math.inf:
        return value
    is_count = not isinstance(value, bool) and isinstance(value, int | float) and value >= 0 and value == value // 1
    return int(value) if is_count else None


def all_that(schema: Any) -> list[Any] | None:
    """Values of which each one is that is valid under a schema; None: it does not say them."""
    if not isinstance(schema, dict):
        return [] if schema is False else None
    if "const" in schema:
        return [schema["const"]]
    if isinstance(schema.get("enum"), list):
        return schema["enum"]
    kind, least, most = schema.get("type"), _count(schema, "minimum", None), _count(schema, "maximum", math.inf)
    if kind == "integer" and least is not None and most is not None and 0 <= least <= most < least + MOST_VALUES:
        return list(range(least, most + 1))
    known: dict[Any, list[Any]] = {"boolean": [False, True], "null": [None]}
    return known.get(kind) if isinstance(kind, str) else None


def why_not_compared(schema: dict[str, Any], beside: Any, resolved: Callable[[Any], Any]) -> str | None:
    """Why the items of an array cannot be compared beside the grammar without a dead end; None: they can. beside: what
    else holds the array; resolved: the schema that another one refers to."""
    least = _count(schema, "minItems", 0)
    others = [schema[one] for one in (*WAYS, "contains") if one in schema]
    if least is None or any(f'"{one}"' in json.dumps([others, beside]) for one in ("minItems", "minContains", "$ref")):
        return "how many items there have to be is said in several places"
    items = schema.get("items", True)
    if least > 1 and ("prefixItems" in schema or isinstance(items, list) or not has_values(items, least, resolved)):
        return f"whether there are {least} different items is not known"
    if not _has_one_text(items, resolved, 0):
        return "the items may be objects of a few names in any order"
    return None


def has_values(schema: Any, n: int, resolved: Callable[[Any], Any], level: int = 0) -> bool:
    """Whether it is certain that so many values are valid."""
    schema = resolved(schema) if isinstance(schema, dict) else schema
    if schema is True or schema == {} or level > MOST_LEVELS:
        return schema is True or schema == {}
    if schema is False or any(one in schema for one in ("allOf", "not", "if", "$ref")):
        return False
    for one in ("anyOf", "oneOf"):
        if one in schema:
            return set(schema) <= {one, "title", "description"} and \
                any(has_values(inner, n, resolved, level + 1) for inner in schema[one])
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return set(schema) <= {"const", "enum", "type", "title", "description", "default"} and \
            len({json.dumps(one, sort_keys=True).replace(".0", "") for one in values}) >= n and \
            ("type" not in schema or schema["type"] == "string" and all(isinstance(one, str) for one in values))
    named = schema.get("type", list(TYPES))
    named = named if isinstance(named, list) else [named]
    return any(_has_values_of(one, schema, n, resolved, level) for one in named)


def _has_values_of(kind, schema, n, resolved, level):
    if kind == "string":
        return not {"pattern", "minLength"} & schema.keys() and (
            _count(schema, "maxLength", math.inf) == math.inf or "format" not in schema and n <= 90
            and (_count(schema, "maxLength", 0) or 0) >= 1)
    if kind in ("integer", "number"):
        if not set(LIMITS) & schema.keys():
            return True
        low, high = schema.get("minimum"), schema.get("maximum")
        is_plain = not {"exclusiveMinimum", "exclusiveMaximum", "multipleOf"} & schema.keys()
        return is_plain and (low is None or high is None or high - low >= (n if kind == "integer" else 1e-6))
    if kind == "array":
        return "maxItems" not in schema and not {"prefixItems", "contains"} & schema.keys() and \
            not isinstance(schema.get("items"), list) and has_values(schema.get("items", True), 1, resolved, level + 1)
    if kind == "object":
        if {"maxProperties", "minProperties", "propertyNames", "patternProperties"} & schema.keys():
            return False
        return schema.get("additionalProperties", True) in (True, {}) or any(
            has_values(one, n, resolved, level + 1) for one in schema.get("properties", {}).values())
    return n <= {"boolean": 2, "null": 1}.get(kind, 0)


def _has_one_text(schema, resolved, level):
    """Whether each value is written in one way alone, but for numbers and blanks, or there are always others."""
    schema = resolved(schema) if isinstance(schema, dict) else schema
    if not isinstance(schema, dict) or level > MOST_LEVELS:
        return True
    patterns = schema.get("patternProperties", {})
    if patterns or schema.get("additionalProperties", True) is not False:
        if "maxProperties" in schema or schema.get("additionalProperties", True) is False and \
                not any(map(_MANY.search, patterns)):
            return False
    if "$ref" in schema:
        return False                                    # what it leads to is not known
    inner = [*patterns.values(), *schema.get("properties", {}).values(), schema.get("additionalProperties", True)]
    for one in ("allOf", "anyOf", "oneOf", "prefixItems", "items"):
        inner += schema.get(one, ()) if isinstance(schema.get(one, ()), list | tuple) else [schema[one]]
    return all(_has_one_text(one, resolved, level + 1) for one in inner)
