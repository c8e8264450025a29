"""Items of /v1/responses: what goes in as messages, and what comes out."""
from __future__ import annotations

from typing import Any

from gomlx._generation.streams import Result
from gomlx.serve import conversation, fields
from gomlx.serve.chat_completions import calls_of
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, anything, flag, mapping, one_of, text
from gomlx.serve.openai import token_logprobs

ITEMS = {
    "message": Fields({"type": text, "role": text, "content": anything}, ignored={"id", "status", "phase"}),
    "function_call": Fields({"type": text, "call_id": text, "name": text, "arguments": text},
                            ignored={"id", "status"}),
    "function_call_output": Fields({"type": text, "call_id": text, "output": anything}, ignored={"id", "status"}),
    "reasoning": Fields({"type": text, "content": fields.items}, ignored={"id", "status", "summary"},
                        refused={"encrypted_content": "is not supported"})}
TOOL = Fields({"type": one_of("function"), "name": text, "description": text, "parameters": mapping, "strict": flag})


def messages(name: str, value: Any) -> list[dict[str, Any]]:
    """The input as OpenAI's messages of chat completions."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    made: list[dict[str, Any]] = []
    for i, item in enumerate(fields.items(name, value, conversation.MAX_MESSAGES)):
        where = f"{name}[{i}]"
        kind = mapping(where, item).get("type") or "message"
        if kind not in ITEMS:
            raise Refused(400, f"{where} is of type {kind!r:.80}, expected one of {', '.join(ITEMS)}", param=where)
        given = ITEMS[kind].read(item, where + ".")
        if kind == "message":
            made.append({"role": given.get("role"),
                         "content": conversation.content(where + ".content", given.get("content", ""))})
        elif kind == "function_call_output":
            made.append({"role": "tool", "tool_call_id": given.get("call_id"),
                         "content": conversation.content(where + ".output", given.get("output", ""))})
        else:
            _of_assistant(made, kind, given, where)
    return made


def _of_assistant(made, kind, given, where):
    """Calls and reasoning belong to one turn of the assistant with what follows them."""
    if not made or made[-1]["role"] != "assistant" or kind == "reasoning":
        made.append({"role": "assistant", "content": ""})
    if kind == "reasoning":
        made[-1]["reasoning_content"] = "".join(
            text(f"{where}.content", mapping(where + ".content", one).get("text")) for one in given.get("content", []))
    else:
        made[-1].setdefault("tool_calls", []).append({"id": given.get("call_id", ""), "type": "function", "function": {
            "name": given.get("name"), "arguments": given.get("arguments", "{}")}})


def joined(made: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Reasoning and the assistant's message after it as one message."""
    out: list[dict[str, Any]] = []
    for one in made:
        before = out[-1] if out else {}
        if one["role"] == before.get("role") == "assistant" and not before["content"] and "tool_calls" not in before:
            out[-1] = before | one
        else:
            out.append(one)
    return out


def tools(name: str, value: Any) -> list[dict[str, Any]]:
    """Tools of responses as those of chat completions."""
    made = []
    for i, one in enumerate(fields.items(name, value)):
        where = f"{name}[{i}]"
        if mapping(where, one).get("type") != "function":
            raise Refused(400, f"{where} is of type {one.get('type')!r:.80}, expected 'function': tools of the server "
                          "are not supported", param=where)
        given = TOOL.read(one, where + ".")
        given.pop("type")
        made.append({"type": "function", "function": given})
    return conversation.tools(name, made)


# ---- what comes out ----

def reasoning(number: str, said: str, status: str = "completed") -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_" + number, "summary": [], "status": status,
            "content": [{"type": "reasoning_text", "text": said}] if said else []}


def message(number: str, said: str | None, logprobs: list[Any], status: str = "completed") -> dict[str, Any]:
    """said: None before there is any content."""
    return {"type": "message", "id": "msg_" + number, "role": "assistant", "status": status,
            "content": [] if said is None else [part(said, logprobs)]}


def part(said: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": said, "annotations": [], "logprobs": logprobs}


def function_call(number: str, call: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    return {"type": "function_call", "id": "fc_" + number, "call_id": call["id"], "name": call["function"]["name"],
            "arguments": call["function"]["arguments"] if status != "in_progress" else "", "status": status}


def logprobs_of(tokenizer: Any, result: Result) -> list[dict[str, Any]]:
    top = result.top_logprobs or [()] * len(result.tokens)
    return [token_logprobs(tokenizer, *one) for one in zip(result.tokens, result.logprobs, top, strict=True)]


def output(number: str, result: Result, logprobs: list[Any]) -> list[dict[str, Any]]:
    """The items of a whole answer."""
    calls, lost = calls_of(result)
    made = [reasoning(f"{number}_0", result.reasoning)] if result.reasoning else []
    if result.answer or lost or not calls:
        made.append(message(f"{number}_{len(made)}", result.answer + lost, logprobs,
                            "completed" if result.finish_reason == "stop" else "incomplete"))
    for one in calls:
        made.append(function_call(f"{number}_{len(made)}", one))
    return made
