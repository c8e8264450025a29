"""Python types as JSON schemas, and values of JSON as objects of these types: pydantic models, dataclasses, TypedDicts,
Enums, Literal, list, dict, tuple, unions and JSON's own types."""
from __future__ import annotations

import dataclasses
import enum
import types
import typing
from typing import Any

PLAIN = {str: {"type": "string"}, bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"},
         type(None): {"type": "null"}, None: {"type": "null"}}


def schema_of(kind: Any) -> dict[str, Any]:
    """The JSON schema of a type; TypeError for one that JSON has no counterpart of."""
    definitions: dict[str, Any] = {}
    made = _schema(kind, definitions, ())
    return made | {"$defs": definitions} if definitions else made


def build(kind: Any, value: Any) -> Any:
    """An object of the type from a value that is valid under its schema."""
    if _is_pydantic(kind):
        return kind.model_validate(value)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return kind(**{name: build(hints[name], one) for name, one in value.items()})
    if typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {name: build(hints[name], one) for name, one in value.items()}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return [build(inner[0], one) for one in value]
    if origin is tuple:
        return tuple(build(one, item) for one, item in zip(inner, value, strict=True))
    if origin is dict:
        return {name: build(inner[1], one) for name, one in value.items()}
    if _is_union(origin):
        return _built_by_one(inner, value)
    return float(value) if kind is float else value


def _built_by_one(kinds, value):
    for kind in kinds:
        if _fits(kind, value):
            return build(kind, value)
    return value


def _fits(kind, value):
    """Whether a value may have come of a type's schema."""
    if _is_pydantic(kind):
        try:
            kind.model_validate(value)
        except ValueError:
            return False
        return True
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return any(value == one.value for one in kind)
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        names = set(typing.get_type_hints(kind))
        return isinstance(value, dict) and set(_required(kind)) <= set(value) <= names and all(
            _fits(one, value[name]) for name, one in typing.get_type_hints(kind).items() if name in value)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return any(type(one) is type(value) and one == value for one in inner)
    if origin in (list, tuple):
        return isinstance(value, list)
    if origin is dict or kind is dict:
        return isinstance(value, dict)
    if kind is None or kind is type(None):
        return value is None
    return kind is Any or type(value) is kind or (kind is float and type(value) is int)


def _schema(kind, definitions, outer):
    if kind is Any:
        return {}
    if kind in (str, bool, int, float, None, type(None)):
        return dict(PLAIN[kind])
    if kind in outer:
        raise TypeError(f"schema: {kind!r} contains itself; give its JSON schema instead")
    if _is_pydantic(kind):
        made = _closed(kind.model_json_schema())
        for name, one in made.pop("$defs", {}).items():
            if definitions.setdefault(name, one) != one:
                raise TypeError(f"schema: two types are called {name}; give a JSON schema instead")
        return made
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if dataclasses.is_dataclass(kind) or typing.is_typeddict(kind):
        hints = typing.get_type_hints(kind)
        return {"type": "object", "additionalProperties": False, "required": _required(kind), "properties": {
            name: _schema(_unwrapped(one), definitions, (*outer, kind)) for name, one in hints.items()}}
    return _generic(kind, definitions, outer)


def _closed(schema):
    """A schema of pydantic's, whose objects have the properties that they name, where it does not say otherwise."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: one if key in ("const", "enum", "default", "examples") else _closed(one)
            for key, one in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def _generic(kind, definitions, outer):
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin is list:
        return {"type": "array", "items": _schema(inner[0], definitions, outer)}
    if origin is tuple and Ellipsis not in inner:
        items = [_schema(one, definitions, outer) for one in inner]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if origin is dict and inner[0] is str:
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions, outer)}
    if _is_union(origin):
        return {"anyOf": [_schema(one, definitions, outer) for one in inner]}
    if kind in (list, dict):
        return {"type": "array" if kind is list else "object"}
    raise TypeError(f"schema: {kind!r:.80} is neither a JSON schema nor a type that JSON has a counterpart of")


def _required(kind):
    if typing.is_typeddict(kind):
        return sorted(kind.__required_keys__)
    return [one.name for one in dataclasses.fields(kind)
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING]


def _unwrapped(kind):
    """A TypedDict's Required[...] and NotRequired[...] are said in its keys."""
    return typing.get_args(kind)[0] if typing.get_origin(kind) in (typing.Required, typing.NotRequired) else kind


def _is_union(origin):
    return origin is typing.Union or origin is types.UnionType


def _is_pydantic(kind):
    return isinstance(kind, type) and hasattr(kind, "model_json_schema") and hasattr(kind, "model_validate")
