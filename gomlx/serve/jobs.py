"""Jobs: the streams that answer one request, read together until they end or the client goes away."""
from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from starlette.requests import Request

from gomlx import _gomlx
from gomlx._generation.scheduler import Request as Stream
from gomlx._generation.streams import Result
from gomlx.parsing import REASONING, Part
from gomlx.serve.errors import Refused, draining, refused, timed_out
from gomlx.serve.state import Served, State

Arrived = list[tuple[_gomlx.Token, list[Part]]]


class Job:
    """streams      one for each choice
    reasoning       of each, how many tokens were reasoning
    """

    def __init__(self, state: State, served: Served, streams: Sequence[Stream], notes: dict[str, Any]) -> None:
        self.state, self.served, self.streams = state, served, list(streams)
        self.reasoning = [0] * len(self.streams)
        self.left = False                       # the client went away
        self._notes = notes
        self._over = [False] * len(self.streams)
        self._gaps = state.metrics.gaps(served.name)

    @classmethod
    async def begun(cls, state: State, request: Request, served: Served, makers: Sequence[Callable[[], Stream]]) -> Job:
        """Submits what each maker makes; all of them, or Refused."""
        notes = request.scope["gomlx.log"] = {"model": served.name}
        made: list[Stream] = []

        def submit():
            for maker in makers:
                made.append(maker())

        try:
            await state.in_thread(submit)
        except Exception as error:
            for one in made:
                one.cancel()
            raise draining() if state.draining else refused(error) from error
        return cls(state, served, made, notes)

    async def arrivals(self) -> AsyncIterator[tuple[int, Arrived]]:
        """(the stream's index, the tokens that came), [] as a stream's last. Refused where one failed, or was ended by
        something else than its client."""
        if len(self.streams) == 1:
            async for arrived in self._of_one(0):
                yield 0, arrived
            return
        queue: asyncio.Queue[tuple[int, Arrived | Exception]] = asyncio.Queue(64)
        tasks = [asyncio.create_task(self._into(queue, i)) for i in range(len(self.streams))]
        try:
            left = len(tasks)
            while left:
                i, arrived = await queue.get()
                if isinstance(arrived, Exception):
                    raise arrived
                left -= not arrived
                yield i, arrived
        finally:
            self.cancel()
            for task in tasks:
                task.cancel()

    async def _into(self, queue, i):
        try:
            async for arrived in self._of_one(i):
                await queue.put((i, arrived))
        except Exception as error:
            await queue.put((i, error))

    async def _of_one(self, i):
        stream, last = self.streams[i], None
        try:
            while arrived := await stream.arrived():
                now = time.monotonic()
                if last is not None:
                    self._gaps.observe(now - last)
                last = now
                self.reasoning[i] += sum(any(part.channel == REASONING for part in parts) for _, parts in arrived)
                yield arrived
        except Refused:
            raise
        except Exception as error:
            raise refused(error) from error
        self._over[i] = True
        self._check_end(stream)
        yield []

    def _check_end(self, stream):
        result = stream.result
        self.state.metrics.ended(self.served.name, stream, result)
        for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
            self._notes[name] = self._notes.get(name, 0) + getattr(result, name)
        self._notes |= {"queue_seconds": stream.queue_seconds, "first_token_seconds": stream.first_token_seconds,
                        "finish_reason": result.finish_reason}
        if stream.result.finish_reason == "timeout":
            raise timed_out()
        if stream.result.finish_reason == "cancelled" and not self.left:
            raise draining()

    async def read(self, receive: Callable[[], Any]) -> list[Result]:
        """Reads all to their ends, while it watches that the client stays."""
        watcher = asyncio.create_task(self._watch(receive))
        try:
            async for _ in self.arrivals():
                pass
        finally:
            watcher.cancel()
            self.cancel()
        return self.results

    async def _watch(self, receive):
        while (await receive())["type"] != "http.disconnect":
            pass
        self.leave()

    def leave(self) -> None:
        """The client went away."""
        self.left = True
        self.cancel()

    def cancel(self) -> None:
        """Ends what has not ended."""
        for one, over in zip(self.streams, self._over, strict=True):
            if not over:
                one.cancel()

    @property
    def results(self) -> list[Result]:
        return [one.result for one in self.streams]
