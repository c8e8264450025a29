"""Server-sent events: a response that is written while a job runs."""
from __future__ import annotations

import asyncio
import json
from typing import Any, Protocol

from starlette.types import Receive, Scope, Send

from gomlx._generation.streams import Result
from gomlx.serve.errors import Refused, refused
from gomlx.serve.jobs import Arrived, Job

COMMENT = b": still here\n\n"
HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"),
           (b"x-accel-buffering", b"no")]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def encoded(text: str) -> bytes:
    """Half a surrogate pair, which JSON may carry and UTF-8 not, becomes a question mark."""
    return text.encode("utf-8", "replace")


def data(value: Any) -> bytes:
    return b"data: " + encoded(dumps(value)) + b"\n\n"


def event(value: dict[str, Any]) -> bytes:
    """With the name that the protocols which name events have in "type"."""
    return b"event: " + encoded(value["type"]) + b"\n" + data(value)


def done(head: str, usage: dict[str, Any] | None) -> bytes:
    """The end of a stream of completions: what was used, where that was asked for, in a chunk that begins with head."""
    used = "" if usage is None else f'data: {head},"choices":[],"usage":{dumps(usage)}}}\n\n'
    return encoded(used + "data: [DONE]\n\n")


class Voice(Protocol):
    """What a protocol writes at each point of a stream, as bytes of events."""

    def begin(self) -> bytes: ...
    def arrived(self, index: int, tokens: Arrived) -> bytes: ...
    def ended(self, index: int, result: Result) -> bytes: ...
    def end(self) -> bytes: ...
    def failed(self, refused: Refused) -> bytes: ...


class EventStream:
    """An ASGI response. A client that goes away ends the job; one that waits gets comments."""
    status_code = 200

    def __init__(self, job: Job, voice: Voice) -> None:
        self._job, self._voice, self._silent = job, voice, True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watcher = None
        try:
            await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            watcher = asyncio.create_task(self._watch(receive, send))
            await self._speak(send)
        except OSError:                         # the client went away
            self._job.leave()
        finally:
            if watcher is not None:
                watcher.cancel()
            self._job.cancel()

    async def _speak(self, send):
        job, voice = self._job, self._voice
        try:
            await self._send(send, voice.begin())
            async for index, tokens in job.arrivals():
                piece = voice.arrived(index, tokens) if tokens else voice.ended(index, job.streams[index].result)
                if piece:
                    await self._send(send, piece)
            last = voice.end()
        except OSError:                         # the client's: it went away
            raise
        except Exception as error:
            last = voice.failed(refused(error))
        await send({"type": "http.response.body", "body": b"" if job.left else last, "more_body": False})

    async def _send(self, send, piece):
        self._silent = False
        await send({"type": "http.response.body", "body": piece, "more_body": True})

    async def _watch(self, receive, send):
        """Waits for the client to go away, and breaks long silences."""
        while True:
            self._silent = True
            try:
                async with asyncio.timeout(self._job.state.settings.heartbeat):
                    message = await receive()
            except TimeoutError:
                if self._silent:
                    await send({"type": "http.response.body", "body": COMMENT, "more_body": True})
                continue
            if message["type"] == "http.disconnect":
                self._job.leave()
                return
