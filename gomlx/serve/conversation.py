"""Messages of clients, as chat templates take them: texts instead of lists of parts, arguments of calls as objects,
results of tools with the tool's name, and ids of calls that every template accepts."""
from __future__ import annotations

import json
from typing import Any

from gomlx._generation.tool_calls import DEPTH
from gomlx._generation.tool_choice import NO_ARGUMENTS
from gomlx.serve import fields
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, anything, flag, mapping, text

MAX_MESSAGES = 4096
MAX_TOOLS = 256
MESSAGE = Fields({"role": fields.one_of("system", "developer", "user", "assistant", "tool"), "content": anything,
                  "name": text, "tool_calls": fields.items, "tool_call_id": text, "reasoning_content": text,
                  "reasoning": text, "thinking": text},
                 ignored={"annotations"},
                 refused={"refusal": "is not supported", "audio": "is not supported: there is text only",
                          "function_call": "is not supported, expected tool_calls"})
PART = Fields({"type": text, "text": text}, ignored={"cache_control", "annotations", "logprobs", "citations"})
CALL = Fields({"id": text, "type": fields.one_of("function"), "function": mapping}, ignored={"index"})
FUNCTION = Fields({"name": text, "arguments": anything})
TOOL = Fields({"type": fields.one_of("function"), "function": mapping})
TOOL_FUNCTION = Fields({"name": text, "description": text, "parameters": mapping, "strict": flag})
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")


def content(name: str, value: Any) -> str:
    """A text, or the texts of a list of parts; what is no text is refused, and nothing is fetched."""
    if isinstance(value, str):
        return value
    pieces = []
    for i, part in enumerate(fields.items(name, value)):
        where = f"{name}[{i}]"
        kind = mapping(where, part).get("type")
        if kind not in TEXT_PARTS:
            raise Refused(400, f"{where} is of type {kind!r:.80}, expected text: images, audio and files are not "
                          "supported, and nothing is fetched", param=where)
        pieces.append(PART.read({"text": part.get("refusal")} | part if kind == "refusal" else part, where + ".")
                      .get("text", ""))
    return "".join(pieces)


def messages(name: str, value: Any) -> list[dict[str, Any]]:
    """OpenAI's messages for a template."""
    made: list[dict[str, Any]] = []
    calls: dict[str, tuple[str, str]] = {}      # the client's id: ours, and the tool's name
    for i, one in enumerate(fields.items(name, value, MAX_MESSAGES)):
        where = f"{name}[{i}]."
        given = MESSAGE.read(mapping(f"{name}[{i}]", one), where)
        if "role" not in given:
            raise Refused(400, f"{where}role is missing", param=where + "role")
        made.append(_message(given, where, calls))
    if not made:
        raise Refused(400, f"{name} is empty", param=name)
    return made


def _message(given, where, calls):
    role = "system" if given["role"] == "developer" else given["role"]
    one: dict[str, Any] = {"role": role, "content": content(where + "content", given.get("content", ""))}
    if role == "assistant" and "tool_calls" in given:
        one["tool_calls"] = [_call(call, f"{where}tool_calls[{i}]", calls)
                             for i, call in enumerate(given["tool_calls"])]
    reasoning = given.get("reasoning_content") or given.get("reasoning") or given.get("thinking")
    if reasoning:
        one |= {"reasoning_content": reasoning, "thinking": reasoning}
    if "name" in given:
        one["name"] = given["name"]
    if role == "tool":
        if given.get("tool_call_id") not in calls:
            raise Refused(400, f"{where}tool_call_id is {given.get('tool_call_id')!r:.80}, which no earlier message "
                          "calls", param=where + "tool_call_id")
        one["tool_call_id"], name = calls[given["tool_call_id"]]
        one.setdefault("name", name)
    return one


def _call(call, where, calls):
    given = CALL.read(mapping(where, call), where + ".")
    function = FUNCTION.read(given.get("function", {}), where + ".function.")
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise Refused(400, f"{where}.function.arguments is not JSON: {str(error)[:100]}", param=where) from None
    if not isinstance(arguments, dict) or depth(arguments) > DEPTH or "name" not in function:
        raise Refused(400, f"{where}.function: expected a name, and arguments as an object", param=where)
    own = f"call{len(calls):05}"                # nine characters, as Mistral's template wants them
    if "id" in given:
        calls[given["id"]] = own, function["name"]
    return {"id": own, "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def depth(value: Any) -> int:
    deep, level = 0, [value]
    while level and deep <= DEPTH:
        deep += 1
        level = [inner for one in level if isinstance(one, (dict, list))
                 for inner in (one.values() if isinstance(one, dict) else one)]
    return deep


def tools(name: str, value: Any) -> list[dict[str, Any]]:
    """OpenAI's tools, checked; one without parameters takes none."""
    made, names = [], set()
    for i, one in enumerate(fields.items(name, value, MAX_TOOLS)):
        where = f"{name}[{i}]."
        kind = mapping(f"{name}[{i}]", one).get("type")
        if kind != "function":
            raise Refused(400, f"{where}type is {kind!r:.80}, expected 'function'", param=where + "type")
        function = TOOL_FUNCTION.read(TOOL.read(one, where).get("function", {}), where + "function.")
        if not function.get("strict"):
            function.pop("strict", None)
        if not function.get("name") or function["name"] in names:
            raise Refused(400, f"{where}function.name: expected a name that no other tool has", param=where + "name")
        names.add(function["name"])
        made.append({"type": "function", "function": {      # in the order that models have seen
            "name": "", "description": "", "parameters": NO_ARGUMENTS} | function})
    return made
