"""POST /v1/chat/completions."""
from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

from starlette.requests import Request

from gomlx._generation import chat
from gomlx._generation.model import draw_seed
from gomlx._generation.streams import Result
from gomlx.parsing import ANSWER, REASONING
from gomlx.schema import UnsupportedSchema
from gomlx.serve import conversation, fields
from gomlx.serve.calls import Calls
from gomlx.serve.errors import Refused
from gomlx.serve.fields import Fields, flag, integer, mapping, one_of, text
from gomlx.serve.jobs import Arrived, Job
from gomlx.serve.openai import REASONS, identifier, needs, now, own, samples, token_logprobs, usage
from gomlx.serve.sse import EventStream, data, done, dumps, encoded
from gomlx.serve.state import Served, State
from gomlx.serve.tool_options import held, tool_options

FIELDS = Fields(fields.GENERATION | {
    "model": text, "messages": conversation.messages, "max_tokens": integer(0), "max_completion_tokens": integer(0),
    "n": integer(1, fields.MAX_SAMPLES), "stream": flag, "stream_options": mapping, "logprobs": flag,
    "top_logprobs": integer(0, 256), "tools": conversation.tools, "tool_choice": fields.anything,
    "response_format": mapping, "reasoning_effort": text, "chat_template_kwargs": mapping,
    "thinking_budget": integer(0), "parallel_tool_calls": flag, "store": one_of(False),
    "modalities": lambda name, value: [one_of("text")(name, one) for one in fields.items(name, value)],
    "verbosity": one_of("medium")},
    ignored={"user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
             "prompt_cache_options", "prediction"},
    refused=dict.fromkeys(("audio", "web_search_options", "moderation"), "is not supported")
    | {"functions": "is not supported, expected tools", "function_call": "is not supported, expected tool_choice"})
PARAMETERS = "/function/parameters"        # of a tool, its schema
STREAM_OPTIONS = Fields({"include_usage": flag}, ignored={"include_obfuscation", "continuous_usage_stats"})


def asked(found: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(messages, options of Scheduler.chat) of the fields of a request."""
    needs(found, "messages")
    options = fields.options(found)
    options |= fields.constraint(
        fields.answer_format("response_format", found["response_format"]) if "response_format" in found else {},
        fields.structured(found["structured_outputs"]) if "structured_outputs" in found else {})
    if "top_logprobs" in found and not found.get("logprobs"):
        raise Refused(400, "top_logprobs: expected logprobs, too", param="top_logprobs")
    variables = dict(found.get("chat_template_kwargs", {}))
    if "enable_thinking" in variables:
        options["enable_thinking"] = flag("chat_template_kwargs.enable_thinking", variables.pop("enable_thinking"))
    if "reasoning_effort" in found:
        variables["reasoning_effort"] = found["reasoning_effort"]
    return found["messages"], options | tool_options(found) | {
        "template_args": variables or None, "priority": found.get("priority", 0)}


async def answer(state: State, request: Request, body: dict[str, Any]) -> Any:
    found = FIELDS.read(body)
    served = state.served(found.get("model"))
    messages, options = asked(found)
    streaming = STREAM_OPTIONS.read(found.get("stream_options", {}), "stream_options.")
    if streaming and not found.get("stream"):
        raise Refused(400, "stream_options: expected stream, too", param="stream_options")
    seeds = samples(found.get("n", 1), options.pop("seed", draw_seed()))
    job = await Job.begun(state, request, served, [
        partial(submitted, state, served, messages, options | {"seed": seed}) for seed in seeds])
    voice = Voice(job, found, bool(streaming.get("include_usage")))
    if found.get("stream"):
        return EventStream(job, voice)
    return voice.whole(await job.read(request.receive))


def submitted(state: State, served: Served, messages: list[dict[str, Any]], options: dict[str, Any],
              parameters: str = PARAMETERS) -> Any:
    """A stream of the scheduler. What its template does not know is refused, so that nothing is ignored. parameters:
    where the protocol has a tool's schema, a pointer from the tool."""
    check_variables(served, options)
    if options["tools"]:
        options = options | {"tool_choice": held(served.model, options["tools"], options["tool_choice"])}
    try:
        return served.scheduler.chat(messages, timeout=state.settings.request_timeout, **options)
    except UnsupportedSchema as error:
        raise UnsupportedSchema([
            replace(one, pointer=re.sub(rf"^(/tools/\d+){PARAMETERS}", rf"\1{parameters}", one.pointer))
            for one in error.places]) from None


def check_variables(served: Served, options: dict[str, Any]) -> None:
    if not options.get("template_args"):
        return
    known = chat.variables(served.model.tokenizer.template_for(options["tools"]))
    for name in options["template_args"]:
        if name not in known:
            raise Refused(400, f"{name:.100} is no variable of this model's chat template", param=f"{name:.100}")


class Voice:
    """A job in the words of chat completions."""

    def __init__(self, job: Job, found: dict[str, Any], with_usage: bool) -> None:
        self._job, self._tokenizer = job, job.served.model.tokenizer
        self._id, self._created, self._with_usage = identifier("chatcmpl"), now(), with_usage
        self._logprobs = found.get("logprobs", False)
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self._created,
                "model": job.served.name, "system_fingerprint": None}
        self._head = dumps(head)[:-1]           # the same in each chunk, so it is written once
        self._calls = [Calls() for _ in job.streams]
        self._unsaid: list[list[dict[str, Any]]] = [[] for _ in job.streams]     # log probabilities without a text yet

    def _chunk(self, index, delta, logprobs="null", reason="null", more=""):
        return encoded(f'data: {self._head},"choices":[{{"index":{index},"delta":{delta},"logprobs":{logprobs},'
                       f'"finish_reason":{reason}{more}}}]{self._no_usage}}}\n\n')

    @property
    def _no_usage(self):
        return ',"usage":null' if self._with_usage else ""

    def begin(self) -> bytes:
        return b"".join(self._chunk(i, '{"role":"assistant","content":""}') for i in range(len(self._job.streams)))

    def arrived(self, index: int, tokens: Arrived) -> bytes:
        reasoning = "".join([part.text for _, parts in tokens for part in parts if part.channel == REASONING])
        said = "".join([part.text for _, parts in tokens for part in parts if part.channel == ANSWER])
        logprobs = "null"
        if self._logprobs:
            self._unsaid[index] += [token_logprobs(self._tokenizer, one.id, one.logprob, one.top_logprobs or ())
                                    for one, _ in tokens if one.id >= 0]
            if said or reasoning:
                logprobs, self._unsaid[index] = dumps({"content": self._unsaid[index], "refusal": None}), []
        pieces = []
        if reasoning:
            delta = '{"reasoning_content":' + dumps(reasoning) + "}"
            pieces.append(self._chunk(index, delta, "null" if said else logprobs))
        if said:
            pieces.append(self._chunk(index, '{"content":' + dumps(said) + "}", logprobs))
        for _, parts in tokens:
            for part in parts:
                if part.call is not None:
                    pieces.append(self._called(index, *self._calls[index].piece(part.call), part.call.arguments))
        return b"".join(pieces)

    def ended(self, index: int, result: Result) -> bytes:
        calls = self._calls[index]
        rest, lost = calls.rest(result)
        pieces = []
        if lost:                                # what looked like a call and was none is a part of the answer
            pieces.append(self._chunk(index, dumps({"content": lost})))
        pieces += [self._called(index, one, True, "".join(one.pieces)) for one in rest]
        logprobs = dumps({"content": self._unsaid[index], "refusal": None}) if self._unsaid[index] else "null"
        pieces.append(self._chunk(index, "{}", logprobs, dumps(reason_of(result, calls)),
                                  ',"gomlx":' + dumps(own(self._job, index))))
        return b"".join(pieces)

    def _called(self, index, call, is_new, arguments):
        """A piece of a call's arguments; a new one's name and id come before."""
        rest = {"index": call.at, "function": {"arguments": arguments}}
        made = self._chunk(index, dumps({"tool_calls": [rest]}))
        if not is_new:
            return made
        return self._chunk(index, dumps({"tool_calls": [{"index": call.at} | call.as_openai("")]})) + made

    def end(self) -> bytes:
        return done(self._head, self._usage() if self._with_usage else None)

    def failed(self, refused: Refused) -> bytes:
        return data(refused.as_openai())

    def _usage(self):
        return usage(self._job.results, sum(self._job.reasoning))

    def whole(self, results: list[Result]) -> dict[str, Any]:
        return {"id": self._id, "object": "chat.completion", "created": self._created, "model": self._job.served.name,
                "system_fingerprint": None, "usage": self._usage(),
                "choices": [self._choice(i, one) for i, one in enumerate(results)]}

    def _choice(self, index, result):
        calls, lost = calls_of(result)
        message: dict[str, Any] = {"role": "assistant", "content": result.answer + lost, "refusal": None}
        if result.reasoning:
            message["reasoning_content"] = result.reasoning
        if calls:
            message |= {"tool_calls": calls, "content": message["content"] or None}
        logprobs = None
        if self._logprobs:
            top = result.top_logprobs or [()] * len(result.tokens)
            logprobs = {"refusal": None, "content": [
                token_logprobs(self._tokenizer, *one) for one in zip(result.tokens, result.logprobs, top, strict=True)]}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason_of(result, calls),
                "gomlx": own(self._job, index)}


def calls_of(result: Result) -> tuple[list[dict[str, Any]], str]:
    """(the calls of tools that could be read, the text of those that could not)."""
    calls, lost = Calls().rest(result)
    return [one.as_openai() for one in calls], lost


def reason_of(result: Result, calls: Calls | list[dict[str, Any]]) -> str:
    return "tool_calls" if calls and result.finish_reason == "stop" else REASONS.get(result.finish_reason, "stop")
