"""What a server has: its settings, its models with a scheduler each, its metrics, and threads that read prompts."""
from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gomlx._generation import chat
from gomlx._generation.model import Model
from gomlx.serve.errors import Refused, draining
from gomlx.serve.metrics import Metrics

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What gomlx.serve.app() takes by keyword."""
    max_streams: int = 16
    kv_bytes: int | None = None
    queue: int = 256
    gap_ms: float | None = None
    request_timeout: float | None = None        # seconds of a request at most; None: no bound
    max_body_bytes: int = 4 << 20
    keep_responses: int = 256                   # of /v1/responses, for previous_response_id; 0 refuses it
    keep_responses_bytes: int = 64 << 20        # of these, their conversations and all
    any_model_name: bool = False                # a name that no model has means the first one
    keys: tuple[str, ...] = ()                  # of clients; (): none is asked for
    cors: tuple[str, ...] = ()                  # origins whose pages may call
    log_prompts: bool = False
    heartbeat: float = 10.0                     # seconds of silence after which a stream gets a comment


class Served:
    """A model and the scheduler that serves it, under a name."""

    def __init__(self, name: str, model: Model, settings: Settings) -> None:
        self.name, self.model, self.created = name, model, int(time.time())
        if model.tokenizer.chat_template is not None:
            chat.sandbox()                      # it imports Jinja2, which the first request shall not wait for
        model.ready_for_constraints()           # nor for the matcher's view of the vocabulary
        self.scheduler = model.scheduler(max_streams=settings.max_streams, kv_bytes=settings.kv_bytes,
                                         queue=settings.queue, gap_ms=settings.gap_ms)


class Kept:
    """The last responses by their ids: `most` of them, and `bytes` at most."""

    def __init__(self, most: int, bytes: int) -> None:
        self._most, self._room = most, bytes
        self._found: OrderedDict[str, tuple[Any, int]] = OrderedDict()

    def keep(self, name: str, value: Any, size: int) -> None:
        """The oldest go for it. One that is larger than all the room is not kept."""
        self._found[name] = value, size
        self._room -= size
        while self._found and (len(self._found) > self._most or self._room < 0):
            self.drop(next(iter(self._found)))

    def drop(self, name: str) -> None:
        self._room += self._found.pop(name)[1]

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def __getitem__(self, name: str) -> Any:
        return self._found[name][0]


@dataclass
class State:
    settings: Settings
    models: dict[str, Served] = field(default_factory=dict)
    loading: bool = False
    draining: bool = False
    started: float = field(default_factory=time.time)
    metrics: Metrics = field(default_factory=Metrics)
    # Renders templates and makes tokens: neither holds up the event loop, and more threads would only share the GIL.
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "gomlx requests"))
    # Scores and embeds: what takes long, and takes turns with the schedulers' passes.
    scorer: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "gomlx scores"))
    scoring: int = 0                            # calls that the scorer has or that wait for it
    responses: Kept = field(init=False)

    def __post_init__(self) -> None:
        self.responses = Kept(self.settings.keep_responses, self.settings.keep_responses_bytes)

    def add(self, models: Mapping[str, Model]) -> None:
        for name, model in models.items():
            self.models[name] = Served(name, model, self.settings)
            self.metrics.watch(self.models[name])
        self.loading = False

    def served(self, name: str | None) -> Served:
        """The model of a request; None is the first one. Refused with 404 where there is none of the name."""
        if self.draining:
            raise draining()
        if not self.models:
            raise Refused(503, "the model is being loaded", code="loading")
        if name in self.models:
            return self.models[name]
        if name is None or self.settings.any_model_name:
            return next(iter(self.models.values()))
        raise Refused(404, f"no model {name!r:.100} here; there is {', '.join(self.models)}", param="model",
                      code="model_not_found")

    async def in_thread(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, function)

    async def in_turn(self, function: Callable[[], T]) -> T:
        """Of the functions that compute, one after another; Refused with 429 where too many wait."""
        if self.scoring > self.settings.queue:
            raise Refused(429, f"{self.scoring} requests are scored or wait for it; the queue has room for "
                          f"{self.settings.queue}", code="queue_full")
        self.scoring += 1
        future = asyncio.get_running_loop().run_in_executor(self.scorer, function)
        try:
            return await future
        except asyncio.CancelledError:
            if self.draining and future.cancelled():
                raise draining() from None
            raise
        finally:
            self.scoring -= 1

    def close(self, grace: float | None = None) -> None:
        """Takes no more requests, gives those that there are `grace` seconds, and ends the schedulers' threads."""
        self.draining = True
        end = None if grace is None else time.monotonic() + grace
        for served in self.models.values():
            served.scheduler.close(None if end is None else max(end - time.monotonic(), 0))
        self.scorer.shutdown(cancel_futures=True)       # what it computes needs its model
        self.pool.shutdown()
