"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's protocol."""
from __future__ import annotations

import json
import secrets
from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx._generation.model import draw_seed
from gomlx._generation.streams import Result
from gomlx.parsing import ANSWER, REASONING
from gomlx.serve import conversation, fields
from gomlx.serve.calls import Calls
from gomlx.serve.chat_completions import calls_of, submitted
from gomlx.serve.errors import Refused, refused
from gomlx.serve.fields import Fields, anything, flag, integer, mapping, number, one_of, text
from gomlx.serve.jobs import Arrived, Job
from gomlx.serve.openai import needs, own
from gomlx.serve.sse import EventStream, event
from gomlx.serve.state import State
from gomlx.serve.tool_options import tool_options

COMMON: dict[str, fields.Check] = {
    "model": text, "messages": fields.items, "system": anything, "tools": fields.items, "tool_choice": mapping,
    "thinking": mapping, "output_config": mapping}
FIELDS = Fields(COMMON | {
    "max_tokens": integer(1), "stop_sequences": fields.stops, "stream": flag, "temperature": number, "top_p": number,
    "top_k": integer(0), "seed": integer(0, 2**63 - 1), "speed": one_of("standard")},
    ignored={"metadata", "service_tier", "cache_control", "diagnostics", "inference_geo", "user_profile_id",
             "workspace_id"},
    refused=dict.fromkeys(("container", "mcp_servers", "context_management"), "is not supported"))
COUNT = Fields(COMMON | {"speed": one_of("standard")}, ignored={"cache_control", "user_profile_id", "workspace_id"})
BLOCKS = {"text": Fields({"type": text, "text": text}, ignored={"cache_control", "citations"}),
          "thinking": Fields({"type": text, "thinking": text}, ignored={"signature"}),
          "tool_use": Fields({"type": text, "id": text, "name": text, "input": mapping},
                             ignored={"cache_control", "caller"}),
          "tool_result": Fields({"type": text, "tool_use_id": text, "content": anything, "is_error": flag},
                                ignored={"cache_control"})}
MESSAGE = Fields({"role": one_of("user", "assistant", "system"), "content": anything})
TOOL = Fields({"type": one_of("custom"), "name": text, "description": text, "input_schema": mapping, "strict": flag},
              ignored={"cache_control", "input_examples", "eager_input_streaming"})
THINKING = Fields({"type": one_of("enabled", "disabled", "adaptive"), "budget_tokens": integer(1)},
                  ignored={"display"})
CHOICE = Fields({"type": one_of("auto", "any", "tool", "none"), "name": text, "disable_parallel_tool_use": flag})
OUTPUT = Fields({"format": mapping, "effort": text})
REASONS = {"stop": "end_turn", "length": "max_tokens", "context": "model_context_window_exceeded"}


def converted(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Anthropic's messages as OpenAI's."""
    made: list[dict[str, Any]] = []
    if "system" in found:
        made.append({"role": "system", "content": blocks_text("system", found["system"])})
    for i, one in enumerate(found["messages"]):
        where = f"messages[{i}]"
        given = MESSAGE.read(mapping(where, one), where + ".")
        needs(given, "role", "content")
        if isinstance(given["content"], str):
            made.append({"role": given["role"], "content": given["content"]})
        else:
            made += from_blocks(given["role"], fields.items(where + ".content", given["content"]), where + ".content")
    if made and made[-1]["role"] == "assistant":
        raise Refused(400, "messages: the last one is the assistant's; an answer that is begun is not supported",
                      param="messages")
    return made


def blocks_text(name: str, value: Any) -> str:
    return conversation.content(name, value)


def from_blocks(role: str, blocks: list[Any], where: str) -> list[dict[str, Any]]:
    """Results of tools are messages of their own, before the text that comes with them."""
    results, said, calls, thoughts = [], [], [], []
    for i, block in enumerate(blocks):
        kind = mapping(f"{where}[{i}]", block).get("type")
        if kind not in BLOCKS:
            raise Refused(400, f"{where}[{i}] is of type {kind!r:.80}, expected one of {', '.join(BLOCKS)}: images and "
                          "documents are not supported, and nothing is fetched", param=f"{where}[{i}]")
        given = BLOCKS[kind].read(block, f"{where}[{i}].")
        if kind == "text":
            said.append(given.get("text", ""))
        elif kind == "thinking":
            thoughts.append(given.get("thinking", ""))
        elif kind == "tool_use":
            calls.append({"id": given.get("id", ""), "type": "function", "function": {
                "name": given.get("name"), "arguments": given.get("input", {})}})
        else:
            results.append({"role": "tool", "tool_call_id": given.get("tool_use_id"),
                            "content": conversation.content(f"{where}[{i}].content", given.get("content", ""))})
    one: dict[str, Any] = {"role": role, "content": "".join(said)}
    if calls:
        one["tool_calls"] = calls
    if thoughts:
        one["reasoning_content"] = "\n".join(thoughts)
    return results + ([one] if said or calls or thoughts or not results else [])


def asked(found: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, options of Scheduler.chat) of the fields of a request."""
    needs(found, "messages")
    messages = conversation.messages("messages", converted(found))
    options = fields.options(found)
    thinking = THINKING.read(found.get("thinking", {}), "thinking.")
    if thinking and thinking.get("type") != "adaptive":
        options["enable_thinking"] = thinking.get("type") == "enabled"
    if "budget_tokens" in thinking:
        options["thinking_budget"] = thinking["budget_tokens"]
    output = OUTPUT.read(found.get("output_config", {}), "output_config.")
    if "format" in output:
        options |= fields.answer_format("output_config.format", output["format"])
    return messages, options | tool_options(tools_of(found)) | {
        "priority": 0, "template_args": {"reasoning_effort": output["effort"]} if "effort" in output else None}


def tools_of(found: dict[str, Any]) -> dict[str, Any]:
    """tools, tool_choice and parallel_tool_calls as OpenAI has them."""
    offered = []
    for i, tool in enumerate(found.get("tools", [])):
        where = f"tools[{i}]"
        if mapping(where, tool).get("type", "custom") != "custom":
            raise Refused(400, f"{where} is of type {tool['type']!r:.80}: tools of the server are not supported",
                          param=where)
        given = TOOL.read(tool, where + ".")
        offered.append({"type": "function", "function": {
            name: given[theirs] for name, theirs in (("name", "name"), ("description", "description"),
                                                     ("parameters", "input_schema"), ("strict", "strict"))
            if theirs in given}})
    made: dict[str, Any] = {"tools": conversation.tools("tools", offered)}
    if "tool_choice" in found:
        choice = CHOICE.read(found["tool_choice"], "tool_choice.")
        needs(choice, "type")
        if choice["type"] == "tool":
            needs(choice, "name")
        made["tool_choice"] = {"type": "function", "name": choice["name"]} if choice["type"] == "tool" else \
            {"any": "required"}.get(choice["type"], choice["type"])
        made["parallel_tool_calls"] = not choice.get("disable_parallel_tool_use", False)
    return made


async def answer(state: State, request: Request, body: dict[str, Any]) -> Any:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    needs(found, "max_tokens")
    messages, options = asked(found)
    options.setdefault("seed", draw_seed())
    job = await Job.begun(state, request, served, [
        partial(submitted, state, served, messages, options, "/input_schema")])
    voice = Voice(job)
    if found.get("stream"):
        return EventStream(job, voice)
    return voice.whole((await job.read(request.receive))[0])


async def count(state: State, request: Request, body: dict[str, Any]) -> dict[str, int]:
    found = COUNT.read(body)
    served = state.served(found.get("model"))
    messages, options = asked(found)

    def counted():
        rendering = {name: options.get(name) for name in ("tools", "template_args", "enable_thinking")}
        return len(served.model.encode(served.model._text_of_messages(messages, **rendering)))

    try:
        return {"input_tokens": await state.in_thread(counted)}
    except Exception as error:
        raise refused(error) from error


def reason_of(result: Result, calls: Calls | list[Any]) -> tuple[str, str | None]:
    """(stop_reason, stop_sequence)."""
    if calls and result.finish_reason == "stop":
        return "tool_use", None
    if result.finish_reason == "stop" and isinstance(result.stop, str):
        return "stop_sequence", result.stop
    return REASONS.get(result.finish_reason, "end_turn"), None


class Voice:
    """A job in the words of messages: one block of content after another."""

    def __init__(self, job: Job) -> None:
        self._job, self._id = job, "msg_" + secrets.token_hex(12)
        self._count = -1                        # of blocks, less one
        self._calls = Calls()
        self._open: str | None = None           # the kind of the block under way

    def _message(self, **more):
        usage = {"input_tokens": len(self._job.streams[0].prompt_ids), "output_tokens": 0,
                 "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        return {"id": self._id, "type": "message", "role": "assistant", "model": self._job.served.name, "content": [],
                "stop_reason": None, "stop_sequence": None, "usage": usage} | more

    def begin(self) -> bytes:
        return event({"type": "message_start", "message": self._message()}) + event({"type": "ping"})

    def arrived(self, index: int, tokens: Arrived) -> bytes:
        pieces = []
        for _, parts in tokens:
            for part in parts:
                if part.channel in (ANSWER, REASONING) and part.text:
                    pieces.append(self._said(part.channel, part.text))
                elif part.call is not None:
                    pieces.append(self._called(*self._calls.piece(part.call), part.call.arguments))
        return b"".join(pieces)

    def _said(self, channel, said):
        kind = "text" if channel == ANSWER else "thinking"
        start = b"" if self._open == kind else self._close() + self._start(
            kind, {"type": "text", "text": ""} if kind == "text" else
            {"type": "thinking", "thinking": "", "signature": ""})
        return start + self._delta({"type": kind + "_delta", kind: said})

    def _called(self, call, is_new, arguments):
        """A piece of a call's arguments, in a block of its own."""
        start = self._close() + self._start("tool_use", {"type": "tool_use", "id": call.id, "name": call.name,
                                                         "input": {}}) if is_new else b""
        return start + self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _start(self, kind, block):
        self._count, self._open = self._count + 1, kind
        return event({"type": "content_block_start", "index": self._count, "content_block": block})

    def _delta(self, delta):
        return event({"type": "content_block_delta", "index": self._count, "delta": delta})

    def _close(self):
        if self._open is None:
            return b""
        signed = self._delta({"type": "signature_delta", "signature": ""}) if self._open == "thinking" else b""
        self._open = None
        return signed + event({"type": "content_block_stop", "index": self._count})

    def ended(self, index: int, result: Result) -> bytes:
        rest, lost = self._calls.rest(result)
        pieces = [self._said(ANSWER, lost)] if lost else []
        pieces += [self._called(one, True, "".join(one.pieces)) for one in rest]
        pieces.append(self._close())
        reason, stop = reason_of(result, self._calls)
        pieces.append(event({"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": stop},
                             "usage": usage(result), "gomlx": own(self._job, 0)}))
        return b"".join(pieces)

    def end(self) -> bytes:
        return event({"type": "message_stop"})

    def failed(self, refused: Refused) -> bytes:
        return event(refused.as_anthropic())

    def whole(self, result: Result) -> dict[str, Any]:
        calls, lost = calls_of(result)
        reason, stop = reason_of(result, calls)
        blocks: list[dict[str, Any]] = []
        if result.reasoning:
            blocks.append({"type": "thinking", "thinking": result.reasoning, "signature": ""})
        if result.answer or lost:
            blocks.append({"type": "text", "text": result.answer + lost})
        return self._message(content=blocks + tool_uses(calls), stop_reason=reason, stop_sequence=stop,
                             usage=usage(result), gomlx=own(self._job, 0))


def tool_uses(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "tool_use", "id": one["id"], "name": one["function"]["name"],
             "input": json.loads(one["function"]["arguments"])} for one in calls]


def usage(result: Result) -> dict[str, int]:
    """Anthropic counts what a cache had apart from what was read."""
    return {"input_tokens": result.prompt_tokens - result.cached_tokens, "output_tokens": result.generated_tokens,
            "cache_read_input_tokens": result.cached_tokens, "cache_creation_input_tokens": 0}
