"""TokenStream and BatchStream: what a generation gives token by token, and the results that it leaves."""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Self, TypeVar

from gomlx import _gomlx
from gomlx._base import bars, notebook
from gomlx._base.bars import Progress
from gomlx._generation.tool_calls import ToolCall
from gomlx.parsing import Parsed, Part
from gomlx.schema import Place


class Cancelled(Exception):
    """A generation was cancelled. It is left in model.error, never raised."""


@dataclass(frozen=True)
class Result:
    """What a stream leaves when it has ended or was closed."""
    text: str
    tokens: list[int]           # ids of the tokens that came out; the stop token is not among them
    # "stop", "length" (max_tokens), "context" (full), "timeout", "cancelled" (also: closed early) or "error"
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int          # of the prompt, those the session already held
    generated_tokens: int
    prefill_tps: float | None   # prompt tokens per second; None where no time was spent
    decode_tps: float | None    # steps of one token per second; the first token is prefill's
    seed: int
    stop: str | int | None      # what ended it, if something did: the stop text, or the id of the stop token
    logprobs: list[float]       # of each token, in the model's own distribution
    # Of each token: (id, logprob) of the likeliest, if top_logprobs was given.
    top_logprobs: list[tuple[tuple[int, float], ...]]
    # prompt_logprobs: of each token of the prompt, and as many of the likeliest as were asked for; None and () for the
    # first, and for those that were not computed
    prompt_logprobs: list[float | None] | None = None
    prompt_top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    reasoning: str | None = None        # what came between the markers of reasoning; None: there were none
    answer: str = ""                    # the text without reasoning, calls of tools and their markup
    tool_calls: list[ToolCall] = field(default_factory=list)    # one that could not be read has an error and its text
    parsed: Any = None          # with a constraint: the object that a whole answer is, of a schema's type; or its text
    incomplete: str | None = None       # with a constraint: where an answer stands that is not whole
    # enforce="relaxed": what of the schema does not hold; or what the schema's type raised; parsed is None
    violation: str | None = None
    unenforced: list[Place] = field(default_factory=list)   # enforce="relaxed": what was only checked
    error: Exception | None = None      # what ended it, for "error"
    # of the forward passes that it took part in, which a batch shares; the packing of weights before a model's second
    # pass is in neither
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    total_seconds: float = 0.0          # from the call that opened it to its end, the caller's own time included
    peak_memory_bytes: int = 0          # of the whole process while it ran: the engine's arrays, weights and caches
    active_memory_bytes: int = 0        # of the whole process, at its end
    prefill_difference: float | None = None     # prefill="validate": the largest difference from exact logits
    profile: dict[str, Any] | None = None       # profile=True: what the engine did, gomlx.profiling

    @property
    def message(self) -> dict[str, Any]:
        """The turn as a message, to go on with: chat(messages + [result.message, ...])."""
        lost = [one.raw for one in self.tool_calls if one.name is None or one.arguments is None]
        made = {"role": "assistant", "content": "\n".join([self.answer] * bool(self.answer) + lost)}
        if self.reasoning:              # templates of different families look for it under different names
            made |= {"reasoning_content": self.reasoning, "thinking": self.reasoning}
        calls = [{"id": f"call{i:05}", "type": "function",         # nine characters, as Mistral's template wants them
                  "function": {"name": one.name, "arguments": one.arguments}}
                 for i, one in enumerate(self.tool_calls) if one.name is not None and one.arguments is not None]
        return made | {"tool_calls": calls} if calls else made

    def _repr_html_(self) -> str:
        return notebook.result(self)


NO_STATS = {"prompt_tokens": 0, "cached_tokens": 0, "generated_tokens": 0, "decode_steps": 0, "prefill_seconds": 0.0,
            "decode_seconds": 0.0, "stop_text": -1, "stop_id": -1}


class Generation:
    """One stream of the engine and what came out of it so far. stream: None when it could not be opened. keep: takes
    the session at the end, with the ids of the output; None: it is closed."""

    def __init__(self, stream, seed, session, stop_texts, reader=None, keep=None, prober=None,
                 prefill_difference=None, follower=None):
        self._follower = follower               # holds the stream to a constraint; or None
        self._prober = prober                   # is told of each token; or None
        self.stream = stream
        self.reader = reader                    # of reasoning and calls; None: all text is the answer
        self.parts = []                         # those of the last token
        self.result = None
        self._seed = seed
        self._prefill_difference = prefill_difference
        self._stop_texts = stop_texts
        self.session = session                  # the stream's own, or None
        self._keep = keep
        self._texts = []
        self._ids = []
        self._logprobs = []
        self._top_logprobs = []
        self.prompt_scores = None               # (log probabilities, likeliest) of the prompt, from the first token on
        self._started = time.monotonic()

    def take(self, token):
        if self._prober is not None:
            self._prober.take(token)
        if not self._texts:
            self.prompt_scores = self.stream.prompt_logprobs()
        self._texts.append(token.text)
        self.parts = self.reader.feed(token.id, token.text) if self.reader else [Part("answer", token.text)]
        if token.id >= 0:
            self._ids.append(token.id)
            self._logprobs.append(token.logprob)
            self._top_logprobs += [token.top_logprobs] if token.top_logprobs else []
        if token.finish_reason is not None:
            self.close(token.finish_reason)
        elif self._follower is not None and token.id >= 0:
            self._follower.took(token.id)

    def close(self, finish_reason="cancelled", error=None, later=None):
        """Ends the generation and makes its result. later: a list for what gives its memory back, where a forward pass
        with rows of it goes on meanwhile; None: that is done now."""
        if self.result is not None:
            return
        stats = NO_STATS
        if self.stream is not None:
            if later is None:
                self.stream.close()
            stats = self.stream.stats()
            self.prompt_scores = self.prompt_scores or self.stream.prompt_logprobs()
        text = "".join(self._texts)
        parsed = Parsed(None, text, [])
        if self.reader is not None:
            self.parts += self.reader.parser.finish()
            parsed = self.reader.parser.parsed
        outcome = self._outcome(finish_reason, error, bool(parsed.tool_calls))
        if later is None:                       # all that may fail comes before
            self._release(keeps=error is None)
        else:
            later.append(partial(self._release, keeps=False))
        self.result = Result(
            text=text, tokens=self._ids, finish_reason="error" if error is not None else finish_reason,
            prompt_tokens=stats["prompt_tokens"], cached_tokens=stats["cached_tokens"],
            generated_tokens=stats["generated_tokens"],
            prefill_tps=rate(stats["prompt_tokens"] - stats["cached_tokens"], stats["prefill_seconds"]),
            decode_tps=rate(stats["decode_steps"], stats["decode_seconds"]), seed=self._seed, stop=self._stop(stats),
            logprobs=self._logprobs, top_logprobs=self._top_logprobs, error=error,
            prefill_seconds=stats["prefill_seconds"], decode_seconds=stats["decode_seconds"],
            total_seconds=time.monotonic() - self._started, peak_memory_bytes=stats.get("peak_memory_bytes", 0),
            active_memory_bytes=_gomlx._processor_memory()[0],
            prefill_difference=self._prefill_difference,
            **dict(zip(("prompt_logprobs", "prompt_top_logprobs"), self.prompt_scores or (), strict=False)),
            profile=self.stream.profile() if self.stream is not None else None,
            **vars(parsed), **outcome)

    def _release(self, keeps):
        if self.stream is not None:
            self.stream.close()
        if self.session is not None and self._keep is not None and keeps:
            self._keep(self.session, self._ids)
        elif self.session is not None:
            self.session.close()

    def _outcome(self, finish_reason, error, has_calls):
        """What the answer is under its constraint, as fields of Result."""
        if self._follower is None or error is not None:
            return {}
        return self._follower.outcome(self._ids, finish_reason == "stop", has_calls)

    def _stop(self, stats):
        if stats["stop_text"] >= 0:
            return self._stop_texts[stats["stop_text"]]
        return stats["stop_id"] if stats["stop_id"] >= 0 else None


class Slots:
    """At most n generations of a model at a time; None: any number."""

    def __init__(self, n=None):
        if n is not None and n < 1:
            raise ValueError(f"parallel is {n}, expected 1 or more, or None for any number")
        self._free = threading.Semaphore(n) if n is not None else None

    def enter(self, gives_up: Callable[[], bool]):
        """Waits for a slot, which is held until leave() or its deletion; if gives_up() is true first, an empty one."""
        while self._free is not None and not self._free.acquire(timeout=0.02):
            if gives_up():
                return Slot(None)
        return Slot(self._free)


class Slot:
    def __init__(self, free):
        self._free = free

    def leave(self):
        free, self._free = self._free, None
        if free is not None:
            free.release()

    __del__ = leave


Item = TypeVar("Item")


class Stepper(Generic[Item]):
    """What both kinds of streams share: with, async for, the model's slots and its error. deadline: a time of
    time.monotonic(), or None."""

    def __init__(self, slots: Slots, deadline: float | None, on_error: Callable[[BaseException | None],
                                                                                object]) -> None:
        self._slots = slots
        self._slot = None
        self._deadline = deadline
        self._on_error = on_error               # is called with what ended the generation: an exception or None
        self._cancelled = False
        self._lock = threading.Lock()           # held while a step runs: close() of another thread leaves the end to it

    def _enter(self):
        """Waits for a slot of the model. A stream that is cancelled or out of time continues without one, to end."""
        if self._slot is None:
            self._slot = self._slots.enter(lambda: self._cancelled or self._is_late())
            self._on_error(None)

    def _is_late(self):
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _cut_short(self, results):
        """What ended generations before their time, as an exception for model.error: a timeout or cancel(), not
        close(), nor an error, which it has already; else None."""
        reasons = {one.finish_reason for one in results}
        if self._cancelled and "cancelled" in reasons:
            return Cancelled("the generation was cancelled")
        return TimeoutError("the generation was ended by its timeout") if "timeout" in reasons else None

    def _leave(self, error=None):
        if self._slot is not None:
            self._slot.leave()
        if error is not None:
            self._on_error(error)

    def _begin_step(self):
        if not self._lock.acquire(blocking=False):
            raise ValueError("the stream is in use by another thread")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __aiter__(self) -> AsyncIterator[Item]:
        return self

    async def __anext__(self) -> Item:
        """The next one, computed in a thread; a task that is cancelled meanwhile ends the stream."""
        import asyncio
        try:
            got = await asyncio.to_thread(next, self, None)
        except asyncio.CancelledError:
            self.close()
            raise
        if got is None:
            raise StopAsyncIteration
        return got


class TokenStream(Stepper[_gomlx.Token]):
    """An iterator of Token(id, text, logprob, finish_reason, top_logprobs), with `for` or `async for`. The last one has
    the finish_reason and the text that was held back; its id is -1 when it carries nothing else. Close it (or use
    `with`) to stop early; cancel() may be called from another thread.

    logprob and top_logprobs are of the model's own distribution, the softmax of its logits, before any bias, penalty,
    processor or sampler.

    parts()     iterates Part(channel, text) instead: the text as reasoning, answer and calls of tools, without markup
    channel     where the last token's text went: "reasoning", "answer" or "tool"
    read()      reads to the end; returns the result
    """

    def __init__(self, made: Generation, *, slots: Slots | None = None, deadline: float | None = None,
                 on_error: Callable[[BaseException | None], object] = lambda error: None) -> None:
        super().__init__(slots or Slots(), deadline, on_error)
        self._made = made
        self._closing = self._ended = False

    def __iter__(self) -> Iterator[_gomlx.Token]:
        return self

    def __next__(self) -> _gomlx.Token:
        if self._made.result is not None:
            raise StopIteration
        self._begin_step()
        token = error = None
        try:
            self._enter()
            token = next(self._made.stream, None)
            if token is not None:
                self._made.take(token)
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._lock.release()
            if error is not None or token is None or self._made.result is not None or self._closing:
                self._end(error)
        if token is None:
            raise StopIteration
        return token

    def cancel(self) -> None:
        """Ends the stream at its next token, from any thread."""
        self._cancelled = True
        self._made.stream.cancel()

    def close(self) -> None:
        """Ends the stream now; what it has so far is in `result`."""
        self._closing = True
        self._made.stream.close()
        self._end()

    def _end(self, error=None):
        if not self._lock.acquire(blocking=False):      # another thread runs the last step and calls this after it
            return
        try:
            self._made.close(error=error if isinstance(error, Exception) else None)
            if not self._ended and error is None:
                error = self._cut_short([self._made.result])
            self._ended = True
            self._leave(error)
        finally:
            self._lock.release()

    def read(self) -> Result:
        """Reads to the end; returns the result."""
        for _ in self:
            pass
        return self.result

    def parts(self) -> Iterator[Part]:
        """Iterates over Part(channel, text): the text as "reasoning", "answer" and "tool", without markup."""
        for _ in self:
            yield from self._made.parts
            self._made.parts = []

    @property
    def channel(self) -> str:
        """Where the last token's text went: "reasoning", "answer" or "tool"."""
        made = self._made
        if made.reader is None:
            return "answer"
        return made.parts[-1].channel if made.parts else made.reader.parser.channel

    @property
    def result(self) -> Result:
        """What the stream left; RuntimeError before it has ended."""
        if self._made.result is None:
            raise RuntimeError("the stream has not ended: read it to its end or close it first")
        return self._made.result

    def __repr__(self) -> str:
        result = self._made.result
        said = f"ended by {result.finish_reason} after" if result else "not ended, iterate over it or read() it:"
        return f"<gomlx.TokenStream {said} {len(self._made._ids)} tokens>"

    def _repr_html_(self) -> str:
        return notebook.token_stream(self._made._texts, self._made._logprobs, self._made.result)


class BatchStream(Stepper[tuple[int, _gomlx.Token]]):
    """An iterator of (index, Token): tokens of several prompts as they come, with `for` or `async for`. Each prompt
    gets the tokens that generate() would give it alone, bit for bit.

    results     a Result for each prompt, in their order; one that failed has the exception in `error`
    ended(i)    the Result of prompt i, or None while it goes on
    stats       prompts, prompt_tokens, cached_tokens, generated_tokens, seconds, tokens_per_second: of all together
    profile     profile=True: what the engine did for all together (a result's own counts shared passes whole)
    read()      reads to the end; returns the results. progress=True shows a bar on a terminal or in a notebook, False
                none; a callable is called with numbers from 0 to 1
    """

    def __init__(self, decoder: _gomlx.Decoder, openers: Sequence[Callable[[], Generation]], size: int, *,
                 lead: Callable[[], Generation] | None = None, slots: Slots | None = None,
                 deadline: float | None = None, on_error: Callable[[BaseException | None], object] = lambda error: None,
                 on_close: Callable[[], object] = lambda: None) -> None:
        super().__init__(slots or Slots(), deadline, on_error)
        self._on_close = on_close               # is called when all prompts have ended
        self._decoder = decoder
        self._openers = openers                 # functions that give the Generation of each prompt
        self._waiting = deque(range(len(openers)))
        self._size = size                       # prompts that are decoded at a time
        self._lead = lead                       # gives a Generation that must end before the others are opened
        self._live = {}                         # the engine's stream -> (index, Generation)
        self._made = [None] * len(openers)
        self._started = None
        self._stats = {}
        self._profile = None
        self._results = None

    def __iter__(self) -> Iterator[tuple[int, _gomlx.Token]]:
        return self

    def __next__(self) -> tuple[int, _gomlx.Token]:
        if self._results is not None:
            raise StopIteration
        self._begin_step()
        try:
            self._started = self._started or time.monotonic()
            self._enter()
            event = self._step()
        finally:
            self._lock.release()
        if event is None or self._cancelled:
            self.close()
        if event is None:
            raise StopIteration
        return event

    def _step(self):
        """The next (index, Token); None after the last."""
        while True:
            self._admit()
            event = self._decoder.step()
            if event is None:
                if self._waiting and not self._cancelled:
                    continue                    # those before them failed at once
                return None
            stream, token = event
            index, made = self._live[stream]
            error = token if isinstance(token, Exception) else None
            if error is None:
                try:
                    made.take(token)
                except Exception as raised:     # a probe's: the prompt's own failure too
                    error = raised
            if error is not None or token.finish_reason is not None:
                del self._live[stream]
            if error is not None:
                self._fail(index, made, error)
            elif index is not None:
                return index, token

    def _admit(self):
        if self._lead is not None:
            lead, self._lead = self._lead, None
            self._add(None, lead)
        leads = any(index is None for index, _ in self._live.values())
        while self._waiting and len(self._live) < self._size and not leads:
            index = self._waiting.popleft()
            if self._cancelled or self._is_late():
                self._made[index] = Generation(None, 0, None, [])
                self._made[index].close("cancelled" if self._cancelled else "timeout")
            else:
                self._add(index, self._openers[index])

    def _add(self, index, opener):
        made = None
        try:
            made = opener()
            self._decoder.add(made.stream)
        except Exception as error:
            self._fail(index, made, error)
            return
        self._live[made.stream] = index, made
        if index is not None:
            self._made[index] = made

    def _fail(self, index, made, error):
        """A prompt that fails ends alone; if the first generation fails, all of them end."""
        made = made or Generation(None, 0, None, [])
        made.close(error=error)
        failed = [index] if index is not None else list(self._waiting)
        for one in failed:
            self._made[one] = made
        if index is None:
            self._waiting.clear()
        self._on_error(error)

    def cancel(self) -> None:
        """Ends all prompts at the next token; may be called from any thread."""
        self._cancelled = True
        for stream in list(self._live):
            stream.cancel()

    def close(self) -> None:
        """Ends all prompts now; what they have so far is in `results`."""
        if self._results is not None:
            return
        asked = self._cancelled
        self.cancel()
        if not self._lock.acquire(blocking=False):      # another thread runs the last step and calls this after it
            return
        try:
            for _, made in list(self._live.values()):
                made.close()
            for index, made in enumerate(self._made):
                if made is None:
                    self._made[index] = made = Generation(None, 0, None, [])
                    made.close()
            self._on_close()
            self._results = [made.result for made in self._made]
            seconds = time.monotonic() - self._started if self._started else 0.0
            counted = {name: sum(getattr(one, name) for one in self._results)
                       for name in ("prompt_tokens", "cached_tokens", "generated_tokens")}
            self._stats = {"prompts": len(self._results), **counted, "seconds": seconds,
                           "tokens_per_second": rate(counted["generated_tokens"], seconds)}
            if any(one.profile for one in self._results):
                self._profile = self._decoder.profile()
        finally:
            self._lock.release()
        self._cancelled = asked
        self._leave(self._cut_short(self._results) if all(one.error is None for one in self._results) else None)

    def ended(self, index: int) -> Result | None:
        """The Result of a prompt, or None while it is generating."""
        made = self._made[index]
        return made.result if made is not None else None

    def read(self, progress: Progress = True) -> list[Result]:
        """Reads to the end; returns the results. progress: True shows a bar on a terminal or in a notebook, False
        none; a callable is called with numbers from 0 to 1."""
        count, ended = len(self._openers), 0
        with bars.reporting(bars.check(progress), "generating", count) as report:
            for _, token in self:
                if report is not None and token.finish_reason is not None:
                    ended += 1
                    report(ended / count)
        return self.results

    @property
    def results(self) -> list[Result]:
        """A Result for each prompt, in their order; RuntimeError before all have ended."""
        if self._results is None:
            raise RuntimeError("the batch has not ended: read it to its end or close it first")
        return self._results

    @property
    def stats(self) -> dict[str, Any]:
        """prompts, prompt_tokens, cached_tokens, generated_tokens, seconds, tokens_per_second: of all together."""
        self.results
        return self._stats

    @property
    def profile(self) -> dict[str, Any] | None:
        """profile=True: what the engine did for all together."""
        self.results
        return self._profile

    def __repr__(self) -> str:
        results = self._results
        said = "ended" if results is not None else "not ended, iterate over it or read() it"
        return f"<gomlx.BatchStream of {len(self._openers)}, {said}>"


def rate(count, seconds):
    return count / seconds if seconds > 0 else None
