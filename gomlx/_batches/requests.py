"""What a row asks of a model, in gomlx's words or in those of OpenAI's batch files."""
from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gomlx._base import response_format
from gomlx._batches.inputs import Inputs, Row
from gomlx._batches.journal import key_of

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
IGNORED = ("model", "user", "metadata", "store", "service_tier")     # of a body: no matter here


@dataclass
class Request:
    """One row: what it is known by, and what it asks. body: of a row of OpenAI's, whose url says its form."""
    file: str
    line: int
    name: Any = None
    asked: dict[str, Any] | None = None         # options, among them prompt, messages or text
    url: str | None = None
    model: Any = None
    error: str | None = None

    @property
    def key(self) -> str:
        return key_of(self.name, self.file, self.line)

    def seed(self, of_all: int) -> int:
        """The seed of its draws: of its id, else of its file's name and its line, and of nothing else."""
        known = key_of(self.name, os.path.basename(self.file), self.line)
        return int.from_bytes(hashlib.sha256(f"{of_all} {known}".encode()).digest()[:6], "big")

    def head(self) -> dict[str, Any]:
        return {"file": self.file, "line": self.line, "id": self.name}


def read(inputs: Inputs, row: Row, wants: str, urls: Sequence[str]) -> Request:
    """The request of a row; one that cannot be read has its error. wants: "prompt" or "text"; urls: those of OpenAI's
    rows that may be asked."""
    made = Request(row.file, row.line)
    try:
        value = inputs.value(row)
        if isinstance(value, dict):
            value = dict(value)
            if "custom_id" in value or "body" in value:
                _read_openai(made, row, value, wants, urls)
                return made
            made.name = _checked_name(value.pop("id", None), row)
        made.asked = _checked({wants: value} if isinstance(value, str) else value, row, wants)
    except ValueError as error:
        made.error = f"ValueError: {error}"
    return made


def _checked_name(name, row):
    """An id, as the row of a result can have it."""
    try:
        json.dumps(name, allow_nan=False)
    except ValueError:
        raise ValueError(f"{row.where()}: id: expected no NaN and no infinity, got {name!r:.80}") from None
    return name


def _read_openai(made, row, value, wants, allowed):
    made.name, made.url, body = value.get("custom_id"), value.get("url"), value.get("body")
    if not isinstance(made.url, str) or made.url not in allowed:
        expected = " or ".join(allowed) or "a text: this command has no such rows"
        made.error = f"ValueError: {row.where()}: url: expected {expected}, got {made.url!r}"
        made.url = ""                           # answered in OpenAI's form all the same
        return
    try:
        if not isinstance(made.name, str) or not isinstance(body, dict):
            raise ValueError(f"{row.where()}: expected an object with a text \"custom_id\", \"url\" and \"body\"")
        made.model = body.get("model")
        made.asked = _checked(_options(body, row), row, wants)
    except ValueError as error:
        made.error = f"ValueError: {error}"


def _options(body, row):
    """A body of OpenAI's in gomlx's words."""
    asked = {name: one for name, one in body.items() if name not in IGNORED and one is not None}
    for name, only in (("n", 1), ("stream", False), ("logprobs", False), ("encoding_format", "float")):
        if asked.pop(name, only) != only:
            raise ValueError(f"{row.where()}: {name}: only {only} in a batch, got {body[name]!r}")
    if "max_completion_tokens" in asked:
        asked["max_tokens"] = asked.pop("max_completion_tokens")
    if "response_format" in asked:
        try:
            asked |= response_format.options_of(asked.pop("response_format"))
        except ValueError as error:
            raise ValueError(f"{row.where()}: {error}") from None
    if "input" in asked:
        asked["text"] = asked.pop("input")
        more = sorted(asked.keys() - {"text"})
        if more:
            raise ValueError(f"{row.where()}: {more[0]}: unknown for embeddings")
    return asked


def _checked(asked, row, wants):
    where = row.where()
    names = ("prompt", "messages") if wants == "prompt" else ("text",)
    if not isinstance(asked, dict) or sum(name in asked for name in names) != 1:
        expected = "either \"prompt\" or \"messages\"" if wants == "prompt" else "\"text\""
        raise ValueError(f"{where}: expected an object with {expected}")
    if wants == "text":
        if not isinstance(asked["text"], str):
            raise ValueError(f"{where}: text: expected a text, got {type(asked['text']).__name__}")
        return asked
    messages = asked.get("messages", [{}])
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise ValueError(f"{where}: messages: expected a list of {{\"role\": ..., \"content\": ...}}")
    if isinstance(asked.get("logit_bias"), dict):       # JSON's names are texts
        try:
            asked["logit_bias"] = {int(token_id): bias for token_id, bias in asked["logit_bias"].items()}
        except ValueError:
            raise ValueError(f"{where}: logit_bias: expected token ids as names") from None
    return asked


def answer(request: Request, made: dict[str, Any], calls: list[Any] | None = None) -> dict[str, Any]:
    """The row of a result. made: its fields, with "error" a text or None; calls: of tools, as OpenAI has them."""
    if request.url is None:
        return request.head() | made
    known = hashlib.sha256(request.key.encode()).hexdigest()[:24]
    head = {"file": request.file, "line": request.line, "id": f"batch_req_{known}", "custom_id": request.name}
    if made["error"] is not None:
        code, _, text = made["error"].partition(": ")
        return head | {"response": None, "error": {"code": code, "message": text}}
    body = _embedding(made) if request.url == EMBEDDINGS else _completion(request, known, made, calls)
    return head | {"response": {"status_code": 200, "request_id": known, "body": body | {"model": request.model}},
                   "error": None}


def _embedding(made):
    used = {"prompt_tokens": made["prompt_tokens"], "total_tokens": made["prompt_tokens"]}
    return {"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": made["embedding"]}],
            "usage": used}


def _completion(request, known, made, calls):
    """A completion as OpenAI has it; created is 0, so that a row is the same whenever it was made."""
    reason = "stop" if made["finish_reason"] == "stop" else "length"
    used = {"prompt_tokens": made["prompt_tokens"], "completion_tokens": made["generated_tokens"],
            "total_tokens": made["prompt_tokens"] + made["generated_tokens"]}
    if request.url == COMPLETIONS:
        choice = {"index": 0, "text": made["text"], "logprobs": None, "finish_reason": reason}
        return {"id": f"cmpl-{known}", "object": "text_completion", "created": 0, "choices": [choice], "usage": used}
    message = {"role": "assistant", "content": made["answer"] or (None if calls else "")}
    if made["reasoning"] is not None:
        message["reasoning_content"] = made["reasoning"]
    if calls:
        message["tool_calls"], reason = calls, "tool_calls" if reason == "stop" else reason
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": reason}
    return {"id": f"chatcmpl-{known}", "object": "chat.completion", "created": 0, "choices": [choice], "usage": used}
