"""What the files of a run's folder may say: it is checked before it is used, as anything may be in a file."""
from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._training.config import LoRAConfig
from gomlx._training.settings import Settings

MOST = 2**53                    # of counts
SAME_MODEL = ("architecture", "hidden_size", "n_layers", "vocab_size", "weight_types")     # what resuming compares


def is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST


def is_number(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value) or isinstance(value, int) and is_count(abs(value))


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(is_text(one) for one in value)


def are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(is_number(one) for one in value.values())


def are_numbers_or_null(value: Any) -> bool:
    return isinstance(value, dict) and all(one is None or is_number(one) for one in value.values())


Field = tuple[str, Callable[[Any], bool]]
ANY: Field = "anything", lambda value: True
COUNT: Field = f"an integer from 0 to {MOST}", is_count
NUMBER: Field = "a finite number", is_number
TEXT: Field = "a text", is_text
TEXTS: Field = "a list of texts", are_texts
OBJECT: Field = "an object", is_object
NUMBERS: Field = "an object of finite numbers", are_numbers
NUMBERS_OR_NULL: Field = "an object of finite numbers or null", are_numbers_or_null


def maybe(field: Field) -> Field:
    words, fits = field
    return f"{words} or null", lambda value: value is None or fits(value)


CONFIG_FIELDS = {"format": ANY, "model": OBJECT, "settings": OBJECT, "adapter": OBJECT, "lora": maybe(OBJECT),
                 "data": OBJECT, "eval_data": maybe(OBJECT)}
MODEL_FIELDS = {"path": TEXT} | dict.fromkeys(SAME_MODEL, ANY)
ADAPTER_FIELDS = {"scales": NUMBERS, "whole": TEXTS, "meta": OBJECT}
DATA_FIELDS = {"path": maybe(TEXT), "rows": COUNT, "fingerprint": TEXT}
STATE_FIELDS = {"step": COUNT, "epoch": COUNT, "position": COUNT, "best": maybe(NUMBER), "waited": COUNT}
STEP_FIELDS = {"step": COUNT, "epoch": NUMBER, "loss": NUMBER, "rows": COUNT, "tokens": COUNT, "targets": COUNT,
               "learning_rate": NUMBER, "gradient_norm": NUMBER, "seconds": NUMBER, "peak_memory_bytes": COUNT,
               "eval_loss": maybe(NUMBER), "metrics": NUMBERS_OR_NULL}


def parsed(where: str, text: str | bytes) -> Any:
    """JSON, or gomlx.Error."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _gomlx.Error(f"{where}: not JSON: {error}") from None


def checked(where: str, value: Any, fields: Mapping[str, Field]) -> dict[str, Any]:
    """The value, which is an object of these keys. gomlx.Error says what is there instead."""
    if not isinstance(value, dict):
        raise _gomlx.Error(f"{where}: expected an object, got {arguments.shown(value)}")
    missing = next((name for name in fields if name not in value), None)
    if missing is not None:
        raise _gomlx.Error(f"{where}: {missing} is missing")
    for name, one in value.items():
        if name not in fields:
            raise _gomlx.Error(f"{where}: {arguments.shown(name)} is unknown, expected {', '.join(fields)}")
        words, fits = fields[name]
        if not fits(one):
            raise _gomlx.Error(f"{where}: {name} is {arguments.shown(one)}, expected {words}")
    return value


def checked_config(where: str, value: Any) -> dict[str, Any]:
    """What config.json says of a run."""
    found = checked(where, value, CONFIG_FIELDS)
    checked(f"{where}: model", found["model"], MODEL_FIELDS)
    checked(f"{where}: adapter", found["adapter"], ADAPTER_FIELDS)
    for name in ("data", "eval_data"):
        if found[name] is not None:
            checked(f"{where}: {name}", found[name], DATA_FIELDS)
    for name, kind in (("settings", Settings), ("lora", LoRAConfig)):
        if found[name] is None:
            continue
        checked(f"{where}: {name}", found[name], dict.fromkeys((one.name for one in dataclasses.fields(kind)), ANY))
        try:
            kind(**found[name])
        except (ValueError, TypeError) as error:
            raise _gomlx.Error(f"{where}: {name}: {error}") from None
    return found


def checked_arrays(where: str, arrays: Mapping[str, Any], expected: Mapping[str, Any], *, all_of_them: bool) -> None:
    """gomlx.Error unless arrays have the names and shapes of those that are expected."""
    missing = next((name for name in expected if name not in arrays), None)
    if missing is not None and all_of_them:
        raise _gomlx.Error(f"{where}: {missing} is missing")
    for name, one in arrays.items():
        if name not in expected:
            raise _gomlx.Error(f"{where}: {arguments.shown(name)} is unknown")
        if one.shape != expected[name].shape:
            raise _gomlx.Error(f"{where}: {name} is {list(one.shape)}, expected {list(expected[name].shape)}")


def is_there(path: str) -> bool:
    """Whether there is a file; gomlx.Error for a folder, a pipe or a device, which is never opened."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise _gomlx.Error(f"{path}: expected a file")
    return os.path.exists(path)
