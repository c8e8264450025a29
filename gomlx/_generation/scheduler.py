"""Scheduler: one thread that owns a model's decoder, and requests of any thread or task that share its passes.

Each request gets the tokens that it gets alone, whatever else is served, preempted or cached: a row's bits do not
depend on the others of a pass, and a stream that gave its cache back computes its ids again and keeps all else."""
from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._generation.model import deadline_of, options_of
from gomlx._generation.options import CHAT, GENERATE, ChatOptions, GenerateOptions, GenerationOptions, Message
from gomlx._generation.prompt_cache import common_length, packed
from gomlx._generation.streams import Generation, TokenStream

if TYPE_CHECKING:
    from typing import Unpack

    from gomlx._generation.model import Ids, Model
    from gomlx.parsing import Part

BLOCK = 256                     # positions that a cache reserves at a time
WORTH_WAITING = 64              # tokens that a running request computes and a new one may share
WAKE_SECONDS = 0.05             # between two looks at requests that wait, where none runs
MAX_STREAMS = 1024


class QueueFull(RuntimeError):
    """A scheduler's queue has no room for another request."""


class Request(TokenStream):
    """A stream whose tokens a scheduler's thread computes: they wait here until they are read."""

    def __init__(self, scheduler: Scheduler, opener: Callable[[Any], Generation], ids: Sequence[int], uses: Any,
                 priority: int, deadline: float | None, number: int) -> None:
        super().__init__(Generation(None, 0, None, []), deadline=deadline)
        self.prompt_ids = list(ids)
        self._packed = packed(self.prompt_ids)
        self._opener = opener           # makes the Generation, of a session that has a beginning of the prompt, or None
        self._uses = uses
        self._scheduler = scheduler
        self._items: deque[Any] = deque()       # (token, parts) or an exception; None: the end
        self._news = threading.Condition()
        self._waiter: Any = None                # (loop, future) of the task that waits
        self._order = (-priority, number)
        self._opened = False                    # the engine has it
        self._checkpoint = 0                    # tokens that it shared with running ones when it was begun
        self._finished = False                  # by the scheduler's thread
        self._read_end = False
        self._parts: list[Any] = []
        self._submitted = time.monotonic()
        self._admitted: float | None = None
        self._first: float | None = None

    def __lt__(self, other: Request) -> bool:
        return self._order < other._order

    # ---- of the scheduler's thread ----
    def _put(self, *items):
        with self._news:
            self._items.extend(items)
            self._news.notify_all()             # readers, and close()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            loop, future = waiter
            self._scheduler._waking.setdefault(loop, []).append(future)

    def _take(self, token):
        if self._first is None:
            self._first = time.monotonic()
        self._made.take(token)
        self._put((token, list(self._made.parts)))

    def _finish(self, finish_reason="cancelled", error=None, later=None):
        """Makes its result, and returns what _tell() says. later: as of Generation.close()."""
        try:
            self._made.close(finish_reason, error, later)
        except BaseException as raised:         # a parser's or a type's, while the result was made
            error = error or contained(raised)
            self._made = Generation(None, 0, None, [])
            self._made.close(error=error)
        return [None] if error is None else [error, None]

    def _tell(self, last):
        """The end, to its readers."""
        self._finished = True
        self._put(*last)

    # ---- of the reader ----
    def __next__(self) -> _gomlx.Token:
        self._scheduler._check_process()
        with self._news:
            while not self._items and not self._read_end:
                self._news.wait()
            return self._next()

    def _next(self):
        """With the lock."""
        item = self._items.popleft() if self._items else None
        if item is None:
            self._read_end = True
            self._news.notify_all()             # other readers, too, are at the end
            raise StopIteration
        if isinstance(item, Exception):
            raise item
        token, self._parts = item
        return token

    async def __anext__(self) -> _gomlx.Token:
        """The next one. A task that is cancelled meanwhile ends the stream."""
        await self._arrival()
        try:
            with self._news:
                return self._next()
        except StopIteration:
            raise StopAsyncIteration from None

    async def arrived(self) -> list[tuple[_gomlx.Token, list[Part]]]:
        """Waits for the next token, and returns all that are there with the parts of their text; [] at the end. A task
        that is cancelled meanwhile ends the stream."""
        await self._arrival()
        found = []
        with self._news:
            while self._items and not (found and isinstance(self._items[0], (Exception, type(None)))):
                try:
                    found.append((self._next(), self._parts))
                except StopIteration:
                    break
        return found

    async def _arrival(self):
        self._scheduler._check_process()
        with self._news:
            waits = not self._items and not self._read_end
            if waits and self._waiter is not None:
                raise RuntimeError("another task waits for the next token of this stream")
            if waits:
                loop = asyncio.get_running_loop()
                future = loop.create_future()
                self._waiter = loop, future
        if waits:
            try:
                await future
            except asyncio.CancelledError:
                self.cancel()                   # close() would hold up the event loop until the pass has ended
                raise

    def cancel(self) -> None:
        """Ends the stream after the forward pass that is under way, from any thread."""
        self._scheduler._check_process()
        self._cancelled = True
        stream = self._made.stream
        if stream is not None:
            stream.cancel()
        self._scheduler._wake()

    def close(self) -> None:
        """Ends the stream; what it has so far is in `result`, but after a call from within a forward pass, as a logits
        processor's, which it ends with."""
        self.cancel()
        if threading.current_thread() is self._scheduler._thread:
            return
        with self._news:
            while not self._finished:
                self._news.wait(WAKE_SECONDS)

    @property
    def channel(self) -> str:
        """Where the text of the token that was read last went: "reasoning", "answer" or "tool"."""
        return self._parts[-1].channel if self._parts else "answer"

    def parts(self):
        """Iterates over Part(channel, text): the text as "reasoning", "answer" and "tool", without markup."""
        for _ in self:
            yield from self._parts

    @property
    def prompt_scores(self) -> tuple[list[float | None], list[tuple[tuple[int, float], ...]]] | None:
        """prompt_logprobs and prompt_top_logprobs of the result to be, from the first token on; None: not asked for."""
        return self._made.prompt_scores

    @property
    def queue_seconds(self) -> float | None:
        """How long it waited until its prompt was begun; None while it waits."""
        return None if self._admitted is None else self._admitted - self._submitted

    @property
    def first_token_seconds(self) -> float | None:
        """From the call to the first token; None before that."""
        return None if self._first is None else self._first - self._submitted


def contained(error: BaseException) -> Exception:
    """What a callback raised, as an error of its request: an exit that it asks for is not the scheduler's."""
    return error if isinstance(error, Exception) else RuntimeError(f"a callback of the request raised {error!r}")


def wake(futures):
    for one in futures:
        if not one.done():
            one.set_result(None)


class Bell:
    """What the scheduler's thread sleeps on: it holds nothing else then, so that a scheduler that nobody has any more
    goes, and its thread with it."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._rung = False

    def ring(self) -> None:
        with self._news:
            self._rung = True
            self._news.notify()

    def wait(self, seconds: float | None) -> None:
        """Until it rings or has rung since the last time; for `seconds` at most."""
        with self._news:
            self._news.wait_for(lambda: self._rung, seconds)
            self._rung = False


def serve(reference: weakref.ref[Scheduler], bell: Bell) -> None:
    """The thread: turns of a scheduler until it is closed or gone."""
    while (scheduler := reference()) is not None:
        seconds = scheduler._next_turn()
        del scheduler
        if seconds < 0:
            return
        if seconds > 0:
            bell.wait(None if seconds == math.inf else seconds)


class Scheduler:
    """Serves a model's requests together: `with model.scheduler() as scheduler: scheduler.generate(...)`. Its methods
    may be called from any thread or task; streams are read with `for` or `async for`, without a thread for each. A
    process that was forked has no such thread: there each call raises RuntimeError, and close() does nothing.

    max_streams     requests that are computed at a time, 1 to 1024; others wait
    kv_bytes        bytes of keys, values and states of all that are computed, what they share counted once. Where
                    these do not suffice, the youngest of the lowest priority gives its own back and goes on later, to
                    the same tokens; one that is alone takes what it needs. None: no bound
    queue           requests that may wait; another one raises QueueFull
    gap_ms          milliseconds that prompts of others may keep a stream's next token waiting, as far as a forward pass
                    can be that short; None: no bound
    """

    def __init__(self, model: Model, *, max_streams: int = 16, kv_bytes: int | None = None, queue: int = 256,
                 gap_ms: float | None = None) -> None:
        self._model = model
        self._max_streams = arguments.integer("max_streams", max_streams, 1, MAX_STREAMS)
        self._kv_bytes = None if kv_bytes is None else arguments.integer("kv_bytes", kv_bytes, 1)
        self._queue = arguments.integer("queue", queue, 0)
        self._decoder = model._engine.new_decoder()
        if gap_ms is not None:
            self._decoder.limit(rows=0, gap_ms=arguments.seconds("gap_ms", gap_ms))
        self._position_bytes = int(model.info["kv_bytes_per_token"])
        self._lock = threading.Lock()
        self._bell = Bell()
        self._waiting: list[Request] = []       # a heap
        self._live: dict[Any, Request] = {}     # the engine's stream -> its request
        self._preempted: list[Request] = []     # opened, without a cache
        self._waking: dict[Any, list[Any]] = {}     # loop -> futures of its tasks whose streams have news
        self._left: list[Callable[[], None]] = []   # give back what those had who left during the pass
        self._numbers = itertools.count()
        self._closing = False
        self._process = os.getpid()
        self._deadline: float | None = None     # of close(grace)
        self._counts = dict.fromkeys(("requests", "finished", "cancelled", "failed", "preempted", "refused",
                                      "prompt_tokens", "cached_tokens", "generated_tokens"), 0)
        self._thread = threading.Thread(target=serve, args=(weakref.ref(self), self._bell), name="gomlx scheduler",
                                        daemon=True)
        weakref.finalize(self, self._bell.ring).atexit = False
        self._thread.start()

    def _check_process(self):
        if os.getpid() != self._process:        # its locks, too, may be held for ever here
            raise RuntimeError(f"the scheduler's thread is in process {self._process}, and this one, {os.getpid()}, "
                               "was forked from it: load the model and make a scheduler here")

    # ---- requests, from any thread ----
    def generate(self, prompt: str | Ids, *, priority: int = 0, options: GenerationOptions | None = None,
                 **changes: Unpack[GenerateOptions]) -> Request:
        """As Model.generate() with n = 1 and without a session; the stream is computed whether it is read or not.
        priority: requests of a higher one are begun first, and preempted last. QueueFull where too many wait."""
        arguments.known("generate", changes, GENERATE)
        return self._submit(prompt, options_of(options, changes), priority)

    def chat(self, messages: str | Sequence[Message], *, priority: int = 0,
             options: GenerationOptions | None = None, **changes: Unpack[ChatOptions]) -> Request:
        """As Model.chat() with n = 1 and without a session."""
        arguments.known("chat", changes, CHAT)
        asked = options.given() | changes if options is not None else changes
        text, made = self._model._rendered(messages, **asked)
        return self._submit(text, made, priority)

    def _submit(self, prompt, options, priority):
        self._check_process()
        if options.session is not None:
            raise ValueError("session: a scheduler keeps what prompts share itself; model.generate() takes a session")
        priority = arguments.integer("priority", priority, -10**9, 10**9)
        deadline = deadline_of(options.timeout)
        model = self._model
        ids = model._prompt_ids(prompt)
        if options.probe is None and options.prefill != "validate":     # what is wrong is said here
            model._open(prompt, options, deadline, ids=ids, begin=model._engine.new_session()).close()
        self._check_room(len(ids))
        shares = model._shares(options.adapter)
        alone = options.steer or options.prompt_logprobs is not None
        opener = partial(model._open, prompt, options, deadline, ids=ids)
        with self._lock:
            if self._closing:
                raise RuntimeError("the scheduler is closed")
            if len(self._waiting) + len(self._preempted) >= self._queue + self._free():
                self._counts["refused"] += 1
                raise QueueFull(f"{len(self._waiting)} requests wait and {len(self._live)} are computed; the queue has "
                                f"room for {self._queue}")
            request = Request(self, opener, ids, None if alone else model._uses(shares),
                              priority, deadline, next(self._numbers))
            self._counts["requests"] += 1
            heapq.heappush(self._waiting, request)
        self._bell.ring()
        return request

    def _free(self):
        return max(self._max_streams - len(self._live), 0)

    def _check_room(self, n):
        needs = self._room_of(n)
        if self._kv_bytes is not None and needs > self._kv_bytes:
            raise MemoryError(f"a prompt of {n} tokens needs {needs} bytes of keys and values, and the scheduler has "
                              f"{self._kv_bytes} (kv_bytes)")

    def score(self, text: Any, **options: Any) -> Any:
        """Model.score(): it takes turns with the scheduler's passes."""
        return self._model.score(text, **options)

    def embed(self, texts: Any, *arguments: Any, **options: Any) -> Any:
        """Model.embed(): it takes turns with the scheduler's passes."""
        return self._model.embed(texts, *arguments, **options)

    def warm(self, prefix: str | Ids | None = None, **options: Any) -> int:
        """Model.warm_prompt_cache(): what later prompts begin with is computed once and kept."""
        return self._model.warm_prompt_cache(prefix, **options)

    @property
    def stats(self) -> dict[str, int]:
        """Requests that are "running", "waiting" and, of these, "suspended" without their cache now; "requests",
        "finished", "cancelled", "failed", "refused" and times "preempted" since the beginning; of all that have ended,
        "prompt_tokens", of these "cached_tokens", and "generated_tokens"; "kv_bytes" and "kv_limit" (0: none)."""
        self._check_process()
        with self._lock:
            return {"running": len(self._live), "waiting": len(self._waiting) + len(self._preempted),
                    "suspended": len(self._preempted), **self._counts,
                    "kv_bytes": self._bound(self._live.values()), "kv_limit": self._kv_bytes or 0}

    def close(self, grace: float | None = None) -> None:
        """Takes no more requests, waits until those that are there have ended, and ends the thread. After `grace`
        seconds they are cancelled; 0: at once; None: they take what they take."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._closing = True
            self._deadline = None if grace is None else time.monotonic() + (grace and arguments.seconds("grace", grace))
        self._bell.ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        self.close(grace=None if kind is None else 0)

    def __repr__(self) -> str:
        return f"<gomlx.Scheduler of {self._model!r}: {len(self._live)} running, {len(self._waiting)} waiting>"

    # ---- the thread ----
    def _wake(self):
        self._bell.ring()

    def _next_turn(self):
        """A turn, and the seconds that the thread may sleep then, at most; less than none: all is done."""
        try:
            return self._turn()
        except BaseException as error:
            self._fail_all(error if isinstance(error, Exception) else RuntimeError(f"the scheduler ended: {error!r}"))
            raise

    def _turn(self):
        """One forward pass, or a part of it, and what it gives; returns as _next_turn()."""
        self._drop_over()
        if not self._decoder.running:
            while self._left:
                self._left.pop()()
            self._make_room()
            self._admit()
        self._wake_tasks()
        events = self._decoder.events()
        for stream, event in events or ():
            self._give(stream, event)
        if self._decoder.running:
            for request in [one for one in self._live.values() if one._cancelled]:
                self._end(request, later=self._left)
        if events is None:                      # the decoder has none of those that are computed any more
            for request in list(self._live.values()):
                self._end(request, error=ValueError("the model was closed while the scheduler served it"))
        self._wake_tasks()
        with self._lock:
            if self._live:
                return 0
            if not self._waiting and not self._preempted:
                return -1 if self._closing else math.inf
            return WAKE_SECONDS if events is None else 0

    def _wake_tasks(self):
        """All of a loop in one call: each call is a system call, and half of what it costs to give a token."""
        waking, self._waking = self._waking, {}
        for loop, futures in waking.items():
            try:
                loop.call_soon_threadsafe(wake, futures)
            except RuntimeError:
                pass                            # the loop is closed: nobody waits

    def _give(self, stream, event):
        request = self._live.get(stream)
        if request is None:                     # an earlier event of the same pass ended it
            return
        if isinstance(event, BaseException):
            self._end(request, error=contained(event))
            return
        try:
            request._take(event)
        except BaseException as error:          # a probe's or a parser's
            self._end(request, error=contained(error))
            return
        if request._made.result is not None:
            self._end(request)

    def _end(self, request, finish_reason="cancelled", error=None, later=None):
        """Takes it out, counts it, and tells its readers then: who has read a stream finds it counted. later: as of
        Generation.close()."""
        last = request._finish(finish_reason, error, later)
        result = request._made.result
        kind = "failed" if result.error is not None else \
            "cancelled" if result.finish_reason == "cancelled" else "finished"
        with self._lock:
            self._live = {stream: one for stream, one in self._live.items() if one is not request}
            self._counts[kind] += 1
            for name in ("prompt_tokens", "cached_tokens", "generated_tokens"):
                self._counts[name] += getattr(result, name)
        request._tell(last)

    def _drop_over(self):
        """Ends requests that wait and are cancelled or late."""
        late = self._deadline is not None and time.monotonic() >= self._deadline
        with self._lock:
            waiting = [*self._waiting, *self._preempted]
            over = [one for one in waiting if late or one._cancelled or one._is_late()]
            self._waiting = [one for one in self._waiting if one not in over]
            heapq.heapify(self._waiting)
            self._preempted = [one for one in self._preempted if one not in over]
            if late:
                for one in self._live.values():
                    one._cancelled = True
                    one._made.stream.cancel()
        for one in over:
            self._end(one, "timeout" if not one._cancelled and not late else "cancelled")

    # ---- memory ----
    def _bound(self, requests):
        """Bytes of keys and values that these have after the next pass at most, if they share nothing."""
        return sum(self._room_of(len(one.prompt_ids) + len(one._made._ids)) for one in requests)

    def _room_of(self, positions):
        return -(-(positions + 1) // BLOCK) * BLOCK * self._position_bytes

    def _fits(self, more=0):
        if self._kv_bytes is None:
            return True
        bound = self._bound(self._live.values())
        if bound + more <= self._kv_bytes:
            return True
        begun = sum(self._room_of(one._made.session.length - 1) for one in self._live.values())
        return self._decoder.cache_bytes() + max(bound - begun, 0) + more <= self._kv_bytes

    def _make_room(self):
        """Preempts until what runs has room to grow."""
        while len(self._live) > 1 and not self._fits():
            last = max(self._live.values())
            self._decoder.preempt(last._made.stream)
            with self._lock:
                del self._live[last._made.stream]
                self._preempted.append(last)
                self._counts["preempted"] += 1

    # ---- admission ----
    def _admit(self):
        while len(self._live) < self._max_streams and (request := self._next_request()) is not None:
            self._begin(request)

    def _next_request(self):
        """The next request that has room and is not better off waiting for what another one computes; else None."""
        with self._lock:
            if self._preempted:                 # they are older than what waits, or there was no room for them
                first = min(self._preempted)
                if not self._waiting or first < self._waiting[0] or not self._live:
                    if self._live and not self._fits(self._bound([first])):
                        return None
                    self._preempted.remove(first)
                    return first
            for request in sorted(self._waiting):
                if self._live and not self._fits(self._room_of(len(request.prompt_ids))):
                    return None
                if not self._is_computed(request):
                    continue
                self._waiting.remove(request)
                heapq.heapify(self._waiting)
                return request
        return None

    def _leaders(self, request):
        """[(tokens in common, request)] of running ones that begin as this one does, the most first; []: none are worth
        waiting for."""
        found = [(common_length(one._packed, request._packed), one) for one in self._live.values()
                 if one._uses is not None and one._uses == request._uses]
        return sorted((one for one in found if one[0] >= WORTH_WAITING), key=lambda one: -one[0])

    def _is_computed(self, request):
        """Whether what it shares with running ones is there, if it shares something."""
        leaders = self._leaders(request)
        if not leaders:
            return True
        most = leaders[0][0]                    # one that was told to be able to go back there is better than others
        able = [one for shared, one in leaders if shared == one._checkpoint == most] or [leaders[0][1]]
        return any(one._made.session.length >= min(most, len(request.prompt_ids) - 1) for one in able)

    def _beginning(self, request):
        """(a fork of what a running one has of its prompt, or None; how many tokens they have in common)."""
        leaders, fork, left = self._leaders(request), None, 0
        for shared, one in leaders:
            if shared <= left:
                break
            other = self._decoder.fork(one._made.stream)
            length = other.truncate(min(shared, len(request.prompt_ids) - 1))
            if length <= left:                  # layers could not go back
                other.close()
                continue
            if fork is not None:
                fork.close()
            fork, left = other, length
        return fork, leaders[0][0] if leaders else 0

    def _begin(self, request):
        try:
            if not request._opened:
                fork, request._checkpoint = self._beginning(request)
                request._made = request._opener(begin=fork, checkpoint=request._checkpoint)
                request._opened = True
                request._admitted = time.monotonic()
            if request._cancelled:
                request._made.stream.cancel()
            self._decoder.add(request._made.stream)
        except Exception as error:
            self._end(request, error=error)
            return
        with self._lock:
            self._live[request._made.stream] = request

    def _fail_all(self, error):
        with self._lock:
            self._closing = True
            left = [*self._live.values(), *self._waiting, *self._preempted]
            self._live, self._waiting, self._preempted = {}, [], []
        for one in left:
            try:
                one._tell(one._finish(error=error))
            except Exception:                   # what it holds may be what failed
                one._tell([error, None])
        self._wake_tasks()
