"""POST /v1/responses, GET and DELETE /v1/responses/{id}: OpenAI's protocol of typed events. The last responses are kept
in memory, so that a request may go on from one."""
from __future__ import annotations

import secrets
import time
from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx._generation.model import draw_seed
from gomlx._generation.streams import Result
from gomlx.parsing import ANSWER, REASONING, TOOL
from gomlx.serve import conversation, fields, response_items
from gomlx.serve.calls import Calls
from gomlx.serve.chat_completions import submitted
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, anything, flag, integer, mapping, one_of, text
from gomlx.serve.jobs import Arrived, Job
from gomlx.serve.openai import needs, own
from gomlx.serve.sse import EventStream, dumps, event
from gomlx.serve.state import State
from gomlx.serve.tool_options import tool_options

LOGPROBS = "message.output_text.logprobs"
FIELDS = Fields(fields.GENERATION | {
    "model": text, "input": response_items.messages, "instructions": text, "max_output_tokens": integer(1),
    "tools": response_items.tools, "tool_choice": anything, "text": mapping, "reasoning": mapping, "stream": flag,
    "store": flag, "previous_response_id": text, "top_logprobs": integer(0, 20), "truncation": one_of("disabled"),
    "background": one_of(False), "parallel_tool_calls": flag, "metadata": mapping,
    "include": lambda name, value: [one_of(LOGPROBS)(name, one) for one in fields.items(name, value)]},
    ignored={"user", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
             "prompt_cache_options", "stream_options"},
    refused=dict.fromkeys(("conversation", "context_management", "max_tool_calls", "moderation", "prompt", "image",
                           "access_programs", "background_options"), "is not supported"))
TEXT = Fields({"format": mapping, "verbosity": one_of("medium")})
REASONING_FIELDS = Fields({"effort": text}, ignored={"summary", "generate_summary", "context"})


async def answer(state: State, request: Request, body: dict[str, Any]) -> Any:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    needs(found, "input")
    history = history_of(state, found) + found["input"]
    system = [{"role": "system", "content": found["instructions"]}] if "instructions" in found else []
    messages = conversation.messages("input", response_items.joined(system + history))
    options = options_of(found)
    job = await Job.begun(state, request, served, [
        partial(submitted, state, served, messages, options, "/parameters")])
    voice = Voice(job, found, body, history)
    if found.get("stream"):
        return EventStream(job, voice)
    return voice.whole((await job.read(request.receive))[0])


def options_of(found: dict[str, Any]) -> dict[str, Any]:
    options = {"seed": draw_seed()} | fields.options(found)
    given = TEXT.read(found.get("text", {}), "text.")
    options |= fields.constraint(
        fields.answer_format("text.format", given["format"]) if "format" in given else {},
        fields.structured(found["structured_outputs"]) if "structured_outputs" in found else {})
    effort = REASONING_FIELDS.read(found.get("reasoning", {}), "reasoning.").get("effort")
    return options | tool_options(found) | {
        "priority": found.get("priority", 0),
        "template_args": {"reasoning_effort": effort} if effort is not None else None}


def history_of(state: State, found: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of the response that this one goes on from, its instructions aside."""
    name = found.get("previous_response_id")
    if name is None:
        return []
    if state.settings.keep_responses == 0:
        raise Refused(400, "previous_response_id: this server keeps no responses", param="previous_response_id")
    return kept(state, name)[1]


def kept(state: State, name: str) -> Any:
    if name not in state.responses:
        raise Refused(404, f"no response {name!r:.100} is kept", param="previous_response_id",
                      code="previous_response_not_found")
    return state.responses[name]


def get(state: State, request: Request) -> dict[str, Any]:
    return kept(state, request.path_params["name"])[0]


def delete(state: State, request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    kept(state, name)
    state.responses.drop(name)
    return {"id": name, "object": "response", "deleted": True}


class Voice:
    """A job in the words of responses: one item of output after another, each event with its number."""

    def __init__(self, job: Job, found: dict[str, Any], body: dict[str, Any], history: list[dict[str, Any]]) -> None:
        self._job, self._found, self._body, self._history = job, found, body, history
        self._tokenizer = job.served.model.tokenizer
        self._number = secrets.token_hex(16)
        self._created = time.time()
        self._events = 0
        self._output: list[dict[str, Any]] = []  # items that are complete
        self._open: str | None = None           # the channel of the item under way
        self._calls = Calls()
        self._call: Any = None                  # the one under way
        self._texts: list[str] = []             # of that item
        self._told: list[Any] = []              # log probabilities of the answer so far
        self._unsaid: list[Any] = []

    @property
    def _with_logprobs(self):
        return LOGPROBS in self._found.get("include", ()) or "top_logprobs" in self._found

    def _response(self, status, **more):
        body, found = self._body, self._found
        return {"id": "resp_" + self._number, "object": "response", "created_at": self._created, "status": status,
                "model": self._job.served.name, "output": list(self._output), "error": None,
                "incomplete_details": None, "instructions": body.get("instructions"),
                "max_output_tokens": body.get("max_output_tokens"), "metadata": body.get("metadata") or {},
                "parallel_tool_calls": self._found.get("parallel_tool_calls", True),
                "previous_response_id": body.get("previous_response_id"),
                "reasoning": body.get("reasoning") or {}, "store": found.get("store", True),
                "temperature": body.get("temperature"), "text": body.get("text") or {"format": {"type": "text"}},
                "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [],
                "top_logprobs": found.get("top_logprobs", 0), "top_p": body.get("top_p"), "truncation": "disabled",
                "usage": None, "user": body.get("user")} | more

    def _event(self, kind, **more):
        made = event({"type": "response." + kind, "sequence_number": self._events} | more)
        self._events += 1
        return made

    def begin(self) -> bytes:
        return self._event("created", response=self._response("in_progress")) + \
            self._event("in_progress", response=self._response("in_progress"))

    # ---- items under way ----
    @property
    def _place(self):
        kind = {ANSWER: "msg_", REASONING: "rs_", TOOL: "fc_"}[self._open]
        return {"item_id": f"{kind}{self._name}", "output_index": len(self._output), "content_index": 0}

    @property
    def _name(self):
        return f"{self._number}_{len(self._output)}"

    def arrived(self, index: int, tokens: Arrived) -> bytes:
        pieces = []
        for token, parts in tokens:
            if self._with_logprobs and token.id >= 0:
                self._unsaid.append(response_items.token_logprobs(self._tokenizer, token.id, token.logprob,
                                                                  token.top_logprobs or ()))
            for part in parts:
                if part.channel in (ANSWER, REASONING) and part.text:
                    pieces.append(self._said(part.channel, part.text))
                elif part.call is not None:
                    pieces.append(self._called(*self._calls.piece(part.call), part.call.arguments))
        return b"".join(pieces)

    def _said(self, channel, said):
        start = b"" if self._open == channel else self._close() + self._start(channel)
        self._texts.append(said)
        if channel == REASONING:
            return start + self._event("reasoning_text.delta", **self._place, delta=said)
        told, self._unsaid = self._unsaid, []
        self._told += told
        return start + self._event("output_text.delta", **self._place, delta=said, logprobs=told)

    def _called(self, call, is_new, arguments):
        """A piece of a call's arguments, in an item of its own."""
        start = b""
        if is_new:
            start = self._close()
            self._open, self._call = TOOL, call
            start += self._event("output_item.added", output_index=len(self._output), item=response_items.function_call(
                self._name, call.as_openai(""), "in_progress"))
        return start + self._event("function_call_arguments.delta", **self._call_place, delta=arguments)

    @property
    def _call_place(self):
        return {name: value for name, value in self._place.items() if name != "content_index"}

    def _start(self, channel):
        self._open, self._texts = channel, []
        if channel == REASONING:
            item = response_items.reasoning(self._name, "", "in_progress")
            part = {"type": "reasoning_text", "text": ""}
        else:
            item = response_items.message(self._name, None, [], "in_progress")
            part = response_items.part("", [])
        return self._event("output_item.added", output_index=len(self._output), item=item) + \
            self._event("content_part.added", **self._place, part=part)

    def _close(self, status="completed"):
        if self._open is None:
            return b""
        if self._open == TOOL:
            item = response_items.function_call(self._name, self._call.as_openai(), status)
            done = self._event("function_call_arguments.done", **self._call_place, arguments=item["arguments"],
                               name=item["name"])
            self._open = None
            return done + self._done(item)
        said = "".join(self._texts)
        if self._open == REASONING:
            done = self._event("reasoning_text.done", **self._place, text=said)
            part: dict[str, Any] = {"type": "reasoning_text", "text": said}
            item = response_items.reasoning(self._name, said)
        else:
            done = self._event("output_text.done", **self._place, text=said, logprobs=self._told)
            part = response_items.part(said, self._told)
            item = response_items.message(self._name, said, self._told, status)
        done += self._event("content_part.done", **self._place, part=part)
        self._open, self._told = None, []
        return done + self._done(item)

    def _done(self, item):
        made = self._event("output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        return made

    def ended(self, index: int, result: Result) -> bytes:
        rest, lost = self._calls.rest(result)
        pieces = [self._said(ANSWER, lost)] if lost else []
        if not pieces and self._open is None and not self._calls and not self._output:
            pieces.append(self._start(ANSWER))          # an empty answer is one
        self._told += self._unsaid
        status = "completed" if result.finish_reason == "stop" else "incomplete"
        pieces.append(self._close(status if not rest else "completed"))
        for one in rest:
            pieces.append(self._called(one, True, "".join(one.pieces)))
        pieces.append(self._close())
        return b"".join(pieces)

    def end(self) -> bytes:
        made = self._finished(self._job.results[0])
        return self._event(made["status"], response=made)

    def failed(self, refused: Refused) -> bytes:
        error = {"code": refused.code or "server_error", "message": refused.message}
        return event({"type": "error", "sequence_number": self._events, "param": refused.param} | error)

    def _finished(self, result):
        """The response, which is kept if it may be."""
        details = {} if result.finish_reason == "stop" else {"incomplete_details": {"reason": "max_output_tokens"}}
        made = self._response("incomplete" if details else "completed", completed_at=time.time(), **details, usage={
            "input_tokens": result.prompt_tokens, "output_tokens": result.generated_tokens,
            "total_tokens": result.prompt_tokens + result.generated_tokens,
            "input_tokens_details": {"cached_tokens": result.cached_tokens, "cache_write_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": self._job.reasoning[0]}}, gomlx=own(self._job, 0))
        self._keep(made)
        return made

    def _keep(self, made):
        state = self._job.state
        if not made["store"] or state.settings.keep_responses == 0:
            return
        turn = response_items.messages("output", [
            {name: value for name, value in one.items() if name != "encrypted_content"} for one in made["output"]
            if one["type"] != "function_call" or one["status"] == "completed"])
        history = self._history + turn
        state.responses.keep(made["id"], (made, history), len(dumps(made)) + len(dumps(history)))

    def whole(self, result: Result) -> dict[str, Any]:
        logprobs = response_items.logprobs_of(self._tokenizer, result) if self._with_logprobs else []
        self._output = response_items.output(self._number, result, logprobs)
        return self._finished(result)
