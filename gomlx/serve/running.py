"""Runs an application under uvicorn: it answers while models are loaded, and ends in order when it is told to."""
from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Mapping

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from gomlx._generation.model import Model
from gomlx.serve.application import Application

log = logging.getLogger("gomlx.serve")
HEAD_SECONDS = 15               # for the head of a request to come
HEAD_BYTES = 1 << 16            # of it
UNREAD_BYTES = 1 << 26          # of a body that was refused before it came, until the connection ends
LAST_SECONDS = 5                # at least, for answers that are complete to be sent
CONNECTIONS = 1 << 14           # open at a time; uvicorn answers others with 503


class Patience:
    """What an HTTP protocol of uvicorn needs so that slow clients end: a request's head has HEAD_SECONDS from its first
    byte on, or from the connection's beginning, and HEAD_BYTES. uvicorn itself closes kept connections that are silent,
    and h11 alone bounds heads."""
    _late: asyncio.TimerHandle | None = None
    _head = 0                                   # bytes that came since the last request was complete

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)      # type: ignore[misc]
        self._wait()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        answered = before is None or before.response_complete
        reads = before is not None and before.more_body     # its body comes, be it that nobody wants it any more
        if answered:
            self._wait()
        super().data_received(data)             # type: ignore[misc]
        if self.cycle is not before:
            self._stop_waiting()
            self._head = 0
        elif answered or not reads:
            self._head += len(data)
            if self._head > (UNREAD_BYTES if reads else HEAD_BYTES) and not self.transport.is_closing():
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)            # type: ignore[misc]

    def _wait(self) -> None:
        if self._late is None:
            self._late = asyncio.get_running_loop().call_later(HEAD_SECONDS, self._is_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _is_late(self) -> None:
        self._late = None
        if (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing():
            self.transport.close()


class Patient(Patience, AutoHTTPProtocol):  # type: ignore[valid-type,misc]
    """With httptools where it is installed, else with h11."""


class Server(uvicorn.Server):
    """Signals end it in order, and say nothing to those who started it."""

    def capture_signals(self):
        return contextlib.nullcontext()


def run(app: Application, load: Callable[[], Mapping[str, Model]], host: str, port: int, grace: float,
        tell: Callable[[str], None]) -> int:
    """Serves until a signal comes; returns the exit status: 0, or 128 + signal where a second one came. load: makes the
    models, in a thread; what it raises ends the server and is raised here. tell: is told the address."""
    listening = listen(host, port)
    try:
        made = _Run(app, load, grace, tell)
        with asyncio.Runner(loop_factory=made.loop_factory) as runner:
            return runner.run(made.serve(listening))
    finally:
        listening.close()


def listen(host: str, port: int) -> socket.socket:
    """A socket that others wait at; OSError says which address was meant."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise OSError(error.errno, f"{host}:{port}: {error.strerror or error}") from None


class _Run:
    def __init__(self, app, load, grace, tell):
        self._app, self._load, self._grace, self._tell = app, load, grace, tell
        config = uvicorn.Config(app, log_config=None, access_log=False, server_header=False, http=Patient, ws="none",
                                limit_concurrency=CONNECTIONS, timeout_graceful_shutdown=LAST_SECONDS, lifespan="off")
        self.loop_factory = config.get_loop_factory()   # uvloop's, where it is installed
        self._server = Server(config)
        self._signals = []
        self._models = {}
        self._failure = None
        self._tasks = []

    async def serve(self, listening):
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._signalled, number)
        host, port = listening.getsockname()[:2]
        self._tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        self._app.state.loading = True
        self._tasks.append(asyncio.create_task(self._loads()))
        try:
            await self._server.serve(sockets=[listening])
            if not self._app.state.draining:
                await asyncio.to_thread(self._app.close, 0)
        finally:
            for model in self._models.values():
                model.close()
        if self._failure is not None:
            raise self._failure
        return 128 + self._signals[1] if len(self._signals) > 1 else 0

    async def _loads(self):
        started = time.monotonic()
        try:
            self._models = await asyncio.to_thread(self._load)
            if not self._app.state.draining:
                self._app.state.add(self._models)
                log.info("serving %s, loaded in %.1f s", ", ".join(self._models), time.monotonic() - started)
        except BaseException as error:
            self._failure = error
            self._server.should_exit = True

    def _signalled(self, number):
        self._signals.append(number)
        self._app.state.draining = True
        if len(self._signals) == 1:
            log.info("%s: no new requests; running ones have %g s", signal.Signals(number).name, self._grace)
            self._tasks.append(asyncio.create_task(self._drain(self._grace)))
        else:
            self._tasks.append(asyncio.create_task(self._drain(0)))

    async def _drain(self, grace):
        if len(self._signals) > 1:
            self._server.force_exit = True
        started = time.monotonic()
        await asyncio.to_thread(self._app.close, grace)
        left = grace - (time.monotonic() - started)     # for clients who read more slowly than the model speaks
        self._server.config.timeout_graceful_shutdown = max(math.ceil(left), LAST_SECONDS)
        self._server.should_exit = True
