"""Refusals: what is wrong with a request, as a status and in the words of its protocol."""
from __future__ import annotations

import asyncio
import json
import logging
import os
import traceback
from contextvars import ContextVar
from typing import Any

from gomlx import _gomlx
from gomlx._generation.scheduler import QueueFull
from gomlx.schema import UnsupportedSchema

log = logging.getLogger("gomlx.serve")
NUMBER: ContextVar[str] = ContextVar("the number of the request that is answered", default="")
SAID = 200                      # characters of an error's message in the log
RETRY_SECONDS = 1
KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error",
         405: "invalid_request_error", 408: "invalid_request_error", 413: "request_too_large", 429: "rate_limit_error",
         500: "api_error", 503: "overloaded_error"}


class Refused(Exception):
    """A request that gets a status instead of an answer. param: the field that is wrong; code: OpenAI's word for it."""

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @property
    def headers(self) -> dict[str, str]:
        made = {"retry-after": str(RETRY_SECONDS)} if self.status in (429, 503) else {}
        return made | ({"www-authenticate": "Bearer"} if self.status == 401 else {})

    def as_openai(self) -> dict[str, Any]:
        return {"error": {"message": self.message, "type": KINDS[self.status], "param": self.param, "code": self.code}}

    def as_anthropic(self) -> dict[str, Any]:
        return {"type": "error", "error": {"type": KINDS[self.status], "message": self.message}}


def refused(error: BaseException) -> Refused:
    """What an exception of the library is to a client; one that is nobody's fault but ours has a line in the log."""
    if isinstance(error, Refused):
        return error
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, QueueFull):
        return Refused(429, said, code="queue_full")
    if isinstance(error, _gomlx.ContextLengthExceeded):
        return Refused(400, said, param="messages", code="context_length_exceeded")
    if isinstance(error, UnsupportedSchema):
        return Refused(400, said, param=error.places[0].pointer or None)
    if isinstance(error, (asyncio.TimeoutError, TimeoutError)):
        return Refused(503, said, code="timeout")
    if isinstance(error, (ValueError, TypeError, OverflowError, ImportError, RecursionError)):
        return Refused(400, said)
    if isinstance(error, MemoryError):                  # a prompt that kv_bytes never has room for, or no memory now
        return Refused(400 if "kv_bytes" in said else 503, said, code="out_of_memory")
    log_failure(error, said)
    return Refused(500, said, code="internal_error")


def log_failure(error: BaseException, said: str) -> None:
    """One line: the request's number, the error and where it was raised, without the request's body."""
    at = traceback.extract_tb(error.__traceback__)
    entry = {"id": NUMBER.get(), "error": f"{type(error).__name__}: {said:.{SAID}}",
             "at": [f"{os.path.basename(one.filename)}:{one.lineno} {one.name}" for one in at]}
    log.error("%s", " ".join(f"{name}={json.dumps(value)}" for name, value in entry.items()), extra={"entry": entry})


def draining() -> Refused:
    return Refused(503, "the server is shutting down", code="draining")


def timed_out() -> Refused:
    return Refused(503, "the request was ended by its timeout", code="timeout")
