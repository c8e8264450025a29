"""What every request passes: its key is looked at, it is counted, and it has a line in the log."""
from __future__ import annotations

import hmac
import json
import logging
import secrets
import time
from collections.abc import Iterable
from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gomlx.serve.errors import NUMBER, Refused, refused
from gomlx.serve.sse import dumps, encoded
from gomlx.serve.state import State

log = logging.getLogger("gomlx.serve")
OPEN = ("/health", "/version")                  # without a key: for those who watch over the server


class Gate:
    """Middleware. paths: the endpoints, as they are counted; others are counted as one."""

    def __init__(self, app: ASGIApp, state: State, paths: Iterable[str]) -> None:
        self._app, self._state, self._paths = app, state, set(paths)
        self._keys = [one.encode() for one in state.settings.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started, status, number = time.monotonic(), 0, secrets.token_hex(8)
        NUMBER.set(number)

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", number.encode())]
            await send(message)

        try:
            if has_two_lengths(scope):
                await refuse(scope, told, Refused(400, "content-length and transfer-encoding: expected one of them"),
                             (b"connection", b"close"))
            elif scope["path"] not in OPEN and not self._is_allowed(Request(scope)):
                await refuse(scope, told, Refused(401, "a key is needed: Authorization: Bearer KEY, or x-api-key",
                                                  code="invalid_api_key"))
            else:
                await self._app(scope, receive, told)
        except Exception as error:
            if status:                          # of what has begun nothing can be taken back: the connection ends
                refused(error)
                raise
            await refuse(scope, told, refused(error))
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._state.metrics.requests.labels(path, str(status)).inc()
            self._log(scope, number, path, status, time.monotonic() - started)

    def _is_allowed(self, request):
        """Each key is compared in constant time, and all of them are."""
        if not self._keys:
            return True
        scheme, _, shown = request.headers.get("authorization", "").partition(" ")
        given = shown if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        return sum(hmac.compare_digest(given.strip().encode("latin-1"), one) for one in self._keys) > 0

    def _log(self, scope, number, path, status, seconds):
        """One line: what a client wrote is in quotes, with its line ends escaped."""
        if not log.isEnabledFor(logging.INFO):
            return
        entry: dict[str, Any] = {"id": number, "method": scope["method"][:10], "path": scope["path"][:200],
                                 "status": status, "seconds": round(seconds, 4)}
        entry |= {name: round(value, 4) if isinstance(value, float) else value
                  for name, value in scope.get("gomlx.log", {}).items()}
        if self._state.settings.log_prompts and "gomlx.body" in scope:
            entry["body"] = scope["gomlx.body"]
        log.info("%s", " ".join(f"{name}={json.dumps(value)}" for name, value in entry.items()),
                 extra={"entry": entry})


def has_two_lengths(scope: Scope) -> bool:
    """Whether a request says twice how long it is: what stands before a server may take the other one, and what follows
    for a request of its own."""
    return {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}


async def refuse(scope: Scope, send: Send, error: Refused, *more: tuple[bytes, bytes]) -> None:
    anthropic = scope["path"].startswith("/v1/messages")
    body = encoded(dumps(error.as_anthropic() if anthropic else error.as_openai()))
    headers = [(b"content-type", b"application/json"), *more,
               *((name.encode(), value.encode()) for name, value in error.headers.items())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
