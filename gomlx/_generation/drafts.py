"""What the draft of JSON Schema that a document names in $schema does not have yet: there it says nothing."""
from __future__ import annotations

import re
from typing import Any

SINCE = {"const": 6, "contains": 6, "propertyNames": 6, "if": 7, "then": 7, "else": 7} | dict.fromkeys(
    ("dependentRequired", "dependentSchemas", "minContains", "maxContains", "unevaluatedItems",
     "unevaluatedProperties", "$recursiveRef"), 2019) | dict.fromkeys(("prefixItems", "$dynamicRef"), 2020)
NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependencies", "dependentSchemas")
VALUES = ("const", "enum", "default", "examples")       # which are no schemas
_DRAFT = re.compile(r"/draft[-/](0[3-7]|20\d\d)[-/]")


def without_later(schema: Any) -> tuple[Any, list[str]]:
    """A schema without the keywords that are later than its draft, and a line for each of these."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    found = _DRAFT.search(named) if isinstance(named, str) else None
    lines: list[str] = []
    return (_kept(schema, int(found[1]), "", lines) if found else schema), lines


def _kept(value, draft, pointer, lines, is_schema=True):
    if isinstance(value, list):
        return [_kept(one, draft, f"{pointer}/{i}", lines) for i, one in enumerate(value)]
    if not isinstance(value, dict):
        return value
    made = {}
    for key, one in value.items():
        if is_schema and SINCE.get(key, 0) > draft:
            lines.append(f"{pointer or '/'}: {key} is no keyword of the draft that $schema names: it says nothing")
        elif is_schema and key in VALUES:
            made[key] = one
        else:
            inner = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            made[key] = _kept(one, draft, inner, lines, not (is_schema and key in NAMES))
    return made
