"""Fields of requests: each endpoint has a table of those that are used, that mean nothing here, and that are refused.
A field that no table knows is refused, too: nothing that a client asked for is ignored without its knowledge."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gomlx._base.arguments import shown
from gomlx._base.response_format import options_of
from gomlx._generation.sampling import Sampling
from gomlx.serve.errors import Refused

MAX_LIST = 1024                 # of stop texts, biases, words: more are a mistake or an attack
MAX_STOP = 4096                 # characters of a stop text
MAX_SAMPLES = 128

Check = Callable[[str, Any], Any]


class Fields:
    """An endpoint's table.

    used        {name: check(name, value)}: the check returns the value that is used
    ignored     names that are accepted because they mean nothing here
    refused     {name: why}
    """

    def __init__(self, used: Mapping[str, Check], ignored: Iterable[str] = (), refused: Mapping[str, str] = {}) -> None:
        self.used, self.ignored, self.refused = dict(used), frozenset(ignored), dict(refused)

    def read(self, body: Mapping[str, Any], what: str = "") -> dict[str, Any]:
        """The used fields that are not null. what: where the object stands in the body, "tools[0]."."""
        found = {}
        for name, value in body.items():
            if value is None and name in self.used.keys() | self.ignored | self.refused.keys():
                continue
            if name in self.used:
                found[name] = self.used[name](what + name, value)
            elif name not in self.ignored:
                why = self.refused.get(name, "is no field of this endpoint")
                raise Refused(400, f"{what + name:.100} {why}", param=f"{what + name:.100}")
        return found


def wrong(name: str, value: Any, expected: str) -> Refused:
    return Refused(400, f"{name} is {shown(value)}, expected {expected}", param=name)


# ---- checks ----

def anything(name: str, value: Any) -> Any:
    return value


def text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong(name, value, "a text")
    return value


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise wrong(name, value, "true or false")
    return value


def integer(least: int, most: int | None = None) -> Check:
    def check(name, value):
        if not isinstance(value, int) or isinstance(value, bool) or value < least or most is not None and value > most:
            raise wrong(name, value, f"an integer from {least}" + (f" to {most}" if most is not None else " on"))
        return value
    return check


def number(name: str, value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise wrong(name, value, "a number")
    return value


def mapping(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(name, value, "an object")
    return value


def items(name: str, value: Any, most: int = MAX_LIST) -> list[Any]:
    if not isinstance(value, list):
        raise wrong(name, value, "a list")
    if len(value) > most:
        raise Refused(400, f"{name} has {len(value)} items, expected {most} at most", param=name)
    return value


def one_of(*choices: Any) -> Check:
    def check(name, value):
        if not any(value is one or isinstance(one, str) and value == one for one in choices):
            raise wrong(name, value, " or ".join(map(repr, choices)))
        return value
    return check


def stops(name: str, value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else items(name, value)
    for one in texts:
        if not isinstance(one, str) or not 0 < len(one) <= MAX_STOP:
            raise wrong(name, one, f"texts of 1 to {MAX_STOP} characters")
    return texts


def ids(name: str, value: Any) -> list[int]:
    for one in items(name, value):
        if not isinstance(one, int) or isinstance(one, bool):
            raise wrong(name, one, "token ids")
    return value


def biases(name: str, value: Any) -> dict[int, float]:
    if len(mapping(name, value)) > MAX_LIST:
        raise Refused(400, f"{name} has {len(value)} items, expected {MAX_LIST} at most", param=name)
    try:
        return {int(one[:20]): number(name, bias) for one, bias in value.items()}
    except ValueError:
        raise wrong(name, value, "{token id: number}") from None


def texts_or_ids(name: str, value: Any) -> list[Any]:
    for one in items(name, value):
        if not isinstance(one, str):
            ids(name, one)
    return value


def sampler(name: str, value: Any) -> Any:
    return value if isinstance(value, str) else [text(name, one) for one in items(name, value, 32)]


# Fields of Sampling by their own names; what their values may be Sampling says.
SAMPLING: dict[str, Check] = {one.name: number for one in dataclasses.fields(Sampling)} | {
    "logit_bias": biases, "bad_words": texts_or_ids, "suppress_tokens": ids, "dry_sequence_breakers": texts_or_ids,
    "samplers": sampler, "penalty_prompt": flag}

# What generation takes besides, under our names and those of vLLM.
GENERATION: dict[str, Check] = SAMPLING | {
    "seed": integer(0, 2**63 - 1), "min_tokens": integer(0), "ignore_eos": flag, "stop": stops, "stop_token_ids": ids,
    "priority": integer(-10**6, 10**6), "structured_outputs": mapping}

RENAMED = {"stop_token_ids": "stop_ids", "max_completion_tokens": "max_tokens", "max_output_tokens": "max_tokens",
           "stop_sequences": "stop"}


def options(found: Mapping[str, Any]) -> dict[str, Any]:
    """Of fields those that are options of generate(), by their names there."""
    names = SAMPLING.keys() | {"seed", "min_tokens", "ignore_eos", "stop", "max_tokens", "top_logprobs",
                               "thinking_budget"} | RENAMED.keys()
    return {RENAMED.get(name, name): value for name, value in found.items() if name in names}


# ---- constraints ----

STRUCTURED = Fields({"json": anything, "regex": text, "choice": items, "grammar": text, "json_object": flag},
                    refused={"whitespace_pattern": "is not supported", "structural_tag": "is not supported"})


def structured(value: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's structured_outputs as an option of generate()."""
    found = STRUCTURED.read(value, "structured_outputs.")
    found = {name: one for name, one in found.items() if one is not False}
    if len(found) != 1:
        raise Refused(400, f"structured_outputs has {', '.join(found) or 'nothing'}, expected one of "
                      + ", ".join(sorted(STRUCTURED.used)), param="structured_outputs")
    (name, one), = found.items()
    if name == "json_object":
        return {"schema": {"type": "object"}}
    return {"schema": schema("structured_outputs.json", one)} if name == "json" else {name: one}


def schema(name: str, value: Any) -> Any:
    if not isinstance(value, (dict, bool)):
        raise wrong(name, value, "a JSON schema")
    return value


def answer_format(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """response_format, or the field `name` that is like it, as an option of generate()."""
    try:
        return options_of(value)
    except ValueError as error:
        raise Refused(400, str(error).replace("response_format", name, 1), param=name) from None


def constraint(*given: dict[str, Any]) -> dict[str, Any]:
    """The one constraint of these, or none."""
    found = [one for one in given if one]
    if len(found) > 1:
        raise Refused(400, "response_format and structured_outputs: expected at most one of them",
                      param="structured_outputs")
    return found[0] if found else {}
