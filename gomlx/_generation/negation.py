"""What is valid where a JSON schema is not, as a schema again: exact, or None where no schema that a grammar can hold
says it. With it `not`, `if` and `oneOf` become anyOf."""
from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from gomlx._generation.regular import rewriting

TYPES = ("null", "boolean", "number", "string", "array", "object")
# A keyword that limits one type: the one that says the opposite there, and how far it is moved.
OPPOSITES = {"minimum": ("number", "exclusiveMaximum", 0), "maximum": ("number", "exclusiveMinimum", 0),
             "exclusiveMinimum": ("number", "maximum", 0), "exclusiveMaximum": ("number", "minimum", 0),
             "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
             "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1)}
NOTES = {"title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly", "$schema"}
MOST_VALUES, MOST_LETTERS = 64, 64      # of constants that are excluded one by one
MOST_BRANCHES = 6               # of a oneOf
MANY_BRANCHES = 20              # where each one's opposite has no alternatives


def negation(schema: Any) -> Any:
    """The schema of all documents that are not valid under this one; None: there is none."""
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict):
        return None
    made, said = [], NOTES
    if "minContains" in schema or "maxContains" in schema:
        return None
    if "type" in schema and ("const" in schema or "enum" in schema):
        kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        values = [schema["const"]] if "const" in schema else schema["enum"]
        if not isinstance(kinds, list) or not isinstance(values, list) or any(
                _kind_of(one) not in kinds for one in values):
            return None
        said = NOTES | {"type"}                         # the values say it
    for keyword, value in schema.items():
        if keyword in said:
            continue
        one = _without(keyword, value)
        if one is None:
            return None
        made.append(one)
    return any_of(made)


def any_of(schemas: Sequence[Any]) -> Any:
    """One of these holds."""
    if any(one is True or one == {} for one in schemas):
        return True
    left = [one for one in schemas if one is not False]
    return False if not left else left[0] if len(left) == 1 else {"anyOf": left}


def all_of(schemas: Sequence[Any]) -> Any:
    """All of these hold."""
    if any(one is False for one in schemas):
        return False
    left = [one for one in schemas if one is not True and one != {}]
    return True if not left else left[0] if len(left) == 1 else {"allOf": left}


def _without(keyword, value):
    """What is valid where one keyword does not hold."""
    if keyword == "type":
        return _other_types(value)
    if keyword in ("const", "enum"):
        return _other_values([value] if keyword == "const" else value)
    if keyword in OPPOSITES and not isinstance(value, bool) and isinstance(value, int | float):
        kind, opposite, by = OPPOSITES[keyword]
        return False if opposite.startswith("max") and kind != "number" and value + by < 0 else \
            {"type": kind, opposite: value + by}
    if keyword == "required" and isinstance(value, list) and all(isinstance(name, str) for name in value):
        return any_of([{"type": "object", "properties": {name: False}} for name in value])
    if keyword == "properties" and isinstance(value, dict):
        inner = {name: negation(one) for name, one in value.items()}
        if any(one is None for one in inner.values()):
            return None
        return any_of([{"type": "object", "properties": {name: one}, "required": [name]}
                       for name, one in inner.items() if one is not False])
    if keyword == "pattern" and isinstance(value, str):
        other = rewriting.opposite(value)
        return None if other is None else {"type": "string", "pattern": other}
    if keyword == "contains":
        other = negation(value)
        return None if other is None else {"type": "array"} | ({"items": other} if other is not False
                                                               else {"maxItems": 0})
    if keyword in ("additionalProperties", "items", "propertyNames") and value in (True, {}):
        return False
    if keyword == "oneOf" and isinstance(value, list) and len(value) <= MOST_BRANCHES:
        inner = [negation(one) for one in value]
        return None if any(one is None for one in inner) else any_of([all_of(inner), *(
            all_of([one, other]) for one, other in itertools.combinations(value, 2))])
    if keyword in ("allOf", "anyOf") and isinstance(value, list):
        inner = [negation(one) for one in value]
        return None if any(one is None for one in inner) else (any_of if keyword == "allOf" else all_of)(inner)
    return value if keyword == "not" else None


def _other_types(value):
    kinds = [value] if isinstance(value, str) else value
    if not isinstance(kinds, list) or any(one not in (*TYPES, "integer") for one in kinds):
        return None
    if "integer" in kinds and "number" not in kinds:
        return None                                     # numbers with a fraction: no schema says it
    left = [one for one in TYPES if one not in kinds]
    return {"type": left} if left else False


def _kind_of(value):
    for kind, types in (("null", type(None)), ("boolean", bool), ("string", str), ("array", list), ("object", dict)):
        if isinstance(value, types):
            return kind
    return "number"


def _other_values(values):
    """Every value but these: null, booleans, numbers, and texts."""
    if not isinstance(values, list) or len(values) > MOST_VALUES or any(
            isinstance(one, list | dict) or isinstance(one, str) and len(one) > MOST_LETTERS for one in values):
        return None
    kinds = {one: [] for one in TYPES}
    for one in values:
        kinds[_kind_of(one)].append(one)
    whole = [one for one, found in kinds.items() if not found]
    made = [{"type": whole}] if whole else []
    if kinds["boolean"] and len(set(kinds["boolean"])) == 1:
        made.append({"const": not kinds["boolean"][0]})
    if kinds["number"]:
        made += _between(sorted(set(kinds["number"])))
    if kinds["string"]:
        made.append({"type": "string", "pattern": f"^({_other_texts(set(kinds['string']))})$"})
    return any_of(made)


def _between(numbers):
    ends = [None, *numbers, None]
    return [{"type": "number"} | ({"exclusiveMinimum": low} if low is not None else {})
            | ({"exclusiveMaximum": high} if high is not None else {})
            for low, high in zip(ends, ends[1:], strict=False)]


def _other_texts(texts):
    """The pattern of all texts but these, letter by letter."""
    by_first = {}
    for one in texts:
        if one:
            by_first.setdefault(one[0], set()).add(one[1:])
    ways = [f"[^{''.join(map(_in_class, by_first))}][\\s\\S]*" if by_first else r"[\s\S]+"]
    ways += [f"{_letter(first)}({_other_texts(rest)})" for first, rest in by_first.items()]
    return "|".join(ways if "" in texts else ["", *ways])


def _letter(letter):
    return f"\\{letter}" if letter in "\\.+*?()|[]{}^$" else letter


def _in_class(letter):
    return f"\\{letter}" if letter in "\\]^-[&~" else letter


# ---- keywords that become others ----

def without_if(schema: dict[str, Any]) -> Any:
    """What `if`, `then` and `else` say: either the condition and what follows, or not and the other; None: cannot."""
    condition = schema["if"]
    other = negation(condition)
    if other is None:
        return None
    return any_of([all_of([condition, schema.get("then", True)]), all_of([other, schema.get("else", True)])])


def without_one_of(branches: Sequence[Any], resolved: Sequence[Any]) -> Any:
    """What oneOf says of branches that overlap: one of them, and none of the others; None where it cannot be said.
    resolved: the branches with the targets of their $refs."""
    if len(branches) > MANY_BRANCHES:
        return None
    ways = []
    for i, one in enumerate(branches):
        others = [_negation_beside(resolved[i], other) for k, other in enumerate(resolved) if k != i]
        if any(other is None for other in others):
            return None
        if len(branches) > MOST_BRANCHES and any(isinstance(other, dict) and "anyOf" in other for other in others):
            return None                             # alternatives times alternatives
        ways.append(all_of([one, *others]))
    return any_of(ways)


def _negation_beside(one, other):
    """Of what is valid under one, what is not under the other. Where both are objects of no other names than those in
    `properties`: the other lacks a name that there is, or does not hold without saying so. Of names that one has not,
    it says nothing then."""
    if not all(is_closed(schema) and schema.get("type") == "object" for schema in (one, other)):
        return negation(other)
    known = one["properties"]
    rest = {key: value for key, value in other.items() if key not in ("additionalProperties", "type")}
    rest["properties"] = {name: value for name, value in other["properties"].items() if name in known}
    left = negation(rest)
    return None if left is None else any_of([*({"required": [name]} for name in known
                                               if name not in other["properties"]), left])


def is_closed(schema: Any) -> bool:
    """Whether objects that are valid have no names but those in `properties`."""
    return isinstance(schema, dict) and isinstance(schema.get("properties"), dict) and \
        schema.get("additionalProperties") is False and not schema.get("patternProperties")
