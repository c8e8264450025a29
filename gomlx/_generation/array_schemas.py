"""What a JSON schema says of the items of an array as a whole, `contains` and `uniqueItems`, as keywords that a grammar
holds a text to: exact, or None where there are none, or too many alternatives."""
from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from gomlx._generation.negation import TYPES, any_of, negation

MOST_PLACES = 16                # where in an array an item may be
MOST_VALUES = 64                # of whole numbers between limits
MOST_ORDERS = 400               # of different values one after another
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
    if values is None or "prefixItems" in schema:
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
    if value is None:
        return None
    is_count = not isinstance(value, bool) and isinstance(value, int | float) and value >= 0 and value == value // 1
    return None if not is_count else value if value == math.inf else int(value)


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
