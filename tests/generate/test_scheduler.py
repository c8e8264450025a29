"""gomlx.Scheduler: whatever else is served, preempted or cached, a request gets the tokens that it gets alone."""
import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

import gomlx
from gomlx import _gomlx
from gomlx._generation.scheduler import Request, Scheduler
from gomlx._generation.streams import Generation

STORY = "Once upon a time there was a big dog who lived in a house. "
PROMPTS = [STORY * n + end for n, end in
           [(1, "A"), (3, "One"), (9, "The dog"), (2, ""), (1, "Tom"), (5, "x"), (9, "No")]]
ARCHITECTURES = ["llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma2", "gemma3", "gemma4", "gpt_oss"]


@pytest.fixture(scope="module")
def model():
    with gomlx.load(prompt_cache=False) as made:
        yield made


def same(a, b):
    return a.tokens == b.tokens and a.logprobs == b.logprobs and a.text == b.text and a.finish_reason == b.finish_reason


class Gate(threading.Event):
    """A logits processor that holds the scheduler's thread until set(): what a test submits meanwhile comes at once,
    however busy the machine is."""

    def __call__(self, ids, logits):
        assert self.wait(120)


def options(i):
    return {"max_tokens": 20 + 3 * i, "temperature": 1.0, "seed": i} | ({"repetition_penalty": 1.2} if i % 2 else {})


@pytest.fixture(scope="module")
def alone(model):
    return [model.generate(prompt, **options(i)).read() for i, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("settings", [{}, {"max_streams": 1}, {"max_streams": 3}, {"gap_ms": 0.01}])
def test_requests_get_what_they_get_alone(model, alone, settings):
    with model.scheduler(**settings) as scheduler:
        streams = [scheduler.generate(prompt, **options(i)) for i, prompt in enumerate(PROMPTS)]
        assert all(same(stream.read(), one) for stream, one in zip(streams, alone, strict=True))
        assert all(0 <= one.queue_seconds <= one.first_token_seconds for one in streams)
        counted = scheduler.stats
    assert counted["finished"] == counted["requests"] == len(PROMPTS) and counted["running"] == counted["waiting"] == 0
    assert counted["generated_tokens"] == sum(one.generated_tokens for one in alone)


def kv_bytes(model, blocks):
    return model.info["kv_bytes_per_token"] * 256 * blocks


def test_what_is_preempted_goes_on_to_the_same_tokens(model):
    """Three that outgrow a block each, in memory for four: the youngest give way."""
    asked = [{"max_tokens": 300, "temperature": 1.0, "seed": i, "ignore_eos": True, "stop": ["never there"]}
             for i in range(3)]
    alone = [model.generate(f"{i} cats", **one).read() for i, one in enumerate(asked)]
    gate = Gate()
    with model.scheduler(kv_bytes=kv_bytes(model, 4)) as scheduler:
        streams = [scheduler.generate(f"{i} cats", **one, logits_processors=[] if i else [gate])
                   for i, one in enumerate(asked)]
        gate.set()
        assert all(same(stream.read(), one) for stream, one in zip(streams, alone, strict=True))
        assert scheduler.stats["preempted"] >= 1
        with pytest.raises(MemoryError, match="a prompt of 1200 tokens needs .*kv_bytes"):
            scheduler.generate([1] * 1200)


def test_one_that_has_what_is_shared_is_enough():
    """Of several that begin alike, one may have got there and another not yet: what comes next need not wait."""
    def running(length):
        return SimpleNamespace(_checkpoint=100, _made=SimpleNamespace(session=SimpleNamespace(length=length)))

    def is_computed(*lengths):
        scheduler = SimpleNamespace(_leaders=lambda _: [(100, running(length)) for length in lengths])
        return Scheduler._is_computed(scheduler, SimpleNamespace(prompt_ids=[1] * 120))

    assert is_computed(40, 100) and is_computed(100, 40) and is_computed() and not is_computed(40, 99)


def test_priorities(model):
    """Of those that wait the highest is begun first; what runs longest is preempted by none."""
    gate = Gate()
    with model.scheduler(max_streams=1) as scheduler:
        first = scheduler.generate("Once", max_tokens=2, ignore_eos=True, logits_processors=[gate], priority=2)
        low, high = (scheduler.generate("Two", max_tokens=2, priority=one) for one in (-1, 1))
        gate.set()
        assert low.read() and high.read() and first.read()
        assert high.queue_seconds < low.queue_seconds


def test_what_prompts_share_is_computed_once(model):
    prompt = model.encode(STORY * 20)
    gate = Gate()
    with model.scheduler() as scheduler:
        streams = [scheduler.generate([*prompt, 100 + i], max_tokens=3, temperature=0,
                                      logits_processors=[] if i else [gate]) for i in range(6)]
        gate.set()
        results = [stream.read() for stream in streams]
    assert sorted(one.cached_tokens for one in results)[:2] == [0, len(prompt)]
    for i, result in enumerate(results):
        assert same(result, model.generate([*prompt, 100 + i], max_tokens=3, temperature=0).read())


@pytest.mark.parametrize("name", ["qwen3_5", "gemma3", "gpt_oss"])
def test_a_beginning_shorter_than_a_block_is_computed_once_or_twice(shared, name):
    """Recurrent layers can go back to where the second request was told that they go apart."""
    with gomlx.load(os.path.join(shared, "data", "models", name), prompt_cache=False) as model:
        prompts = [[*(10 + 7 * i % 200 for i in range(100)), 20 + i, 9] for i in range(6)]
        asked = {"max_tokens": 4, "temperature": 1.0, "seed": 1, "ignore_eos": True}
        gate = Gate()
        with model.scheduler() as scheduler:
            streams = [scheduler.generate(prompt, **asked, logits_processors=[] if i else [gate])
                       for i, prompt in enumerate(prompts)]
            gate.set()
            results = [stream.read() for stream in streams]
        again = 2 if name == "qwen3_5" else 1
        assert [one.cached_tokens for one in results] == [0] * again + [100] * (len(prompts) - again)
        for result, prompt in zip(results, prompts, strict=True):
            assert same(result, model.generate(prompt, **asked).read())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture(shared, name):
    """Seeds, shared beginnings, memory that is short, and clients that leave."""
    rng = random.Random(1)
    with gomlx.load(os.path.join(shared, "data", "models", name), prompt_cache=False) as model:
        begin = [rng.randrange(10, 300) for _ in range(90)]
        prompts = [[*begin[:rng.choice([0, 70, 90])], *(rng.randrange(10, 300) for _ in range(rng.randrange(1, 60)))]
                   for _ in range(16)]
        asked = [{"max_tokens": rng.randrange(1, 24), "temperature": 1.0, "seed": i, "ignore_eos": True}
                 for i in range(len(prompts))]
        alone = [model.generate(prompt, **one).read() for prompt, one in zip(prompts, asked, strict=True)]
        with model.scheduler(max_streams=6, kv_bytes=kv_bytes(model, 5), gap_ms=1) as scheduler:
            streams = [scheduler.generate(prompt, **one) for prompt, one in zip(prompts, asked, strict=True)]
            leave = {3, 7, 11}
            for i in leave:
                streams[i].cancel()
            for i, (stream, one) in enumerate(zip(streams, alone, strict=True)):
                found = stream.read()
                assert same(found, one) or i in leave and found.tokens == one.tokens[:len(found.tokens)], (name, i)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_is_preempted(shared, name):
    """Two that outgrow their block, in memory for three: one gives way, and goes on to the same tokens."""
    rng = random.Random(1)
    with gomlx.load(os.path.join(shared, "data", "models", name), prompt_cache=False) as model:
        prompts = [[rng.randrange(10, 300) for _ in range(250)] for _ in range(2)]
        asked = [{"max_tokens": 12, "temperature": 1.0, "seed": i, "ignore_eos": True} for i in range(2)]
        alone = [model.generate(prompt, **one).read() for prompt, one in zip(prompts, asked, strict=True)]
        gate = Gate()
        with model.scheduler(kv_bytes=kv_bytes(model, 3)) as scheduler:
            streams = [scheduler.generate(prompts[i], **asked[i], logits_processors=[] if i else [gate])
                       for i in range(2)]
            gate.set()
            assert all(same(stream.read(), one) for stream, one in zip(streams, alone, strict=True))
            assert scheduler.stats["preempted"] >= 1


def test_one_that_nobody_has_any_more_goes(model):
    """With its thread, whether it was used or not; what still runs is not kept alive by it alone."""
    for used in (False, True):
        scheduler = model.scheduler()
        if used:
            assert scheduler.generate("Once", max_tokens=2).read()
        thread = scheduler._thread
        del scheduler
        gc.collect()
        thread.join(60)
        assert not thread.is_alive()


def test_a_request_keeps_its_scheduler(model, alone):
    stream = model.scheduler().generate(PROMPTS[1], **options(1))
    gc.collect()
    assert same(stream.read(), alone[1])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_log_probabilities_of_prompts(shared, name):
    """Those of score(), alone and beside others, however the prompt is cut, and nothing else is changed by them."""
    rng = random.Random(2)
    with gomlx.load(os.path.join(shared, "data", "models", name)) as model:
        prompts = [[rng.randrange(10, 300) for _ in range(n)] for n in (1, 2, 40, 300)]
        asked = {"max_tokens": 4, "seed": 1, "temperature": 1.0}
        alone = [model.generate(one, **asked).read() for one in prompts]
        with model.scheduler(gap_ms=0.01) as scheduler:
            gate = Gate()
            beside = scheduler.generate([9] * 50, max_tokens=30, ignore_eos=True, logits_processors=[gate])
            streams = [scheduler.generate(one, **asked, prompt_logprobs=2) for one in prompts]
            gate.set()
            for stream, want, score in zip(streams, alone, model.score(prompts), strict=True):
                found = stream.read()
                assert same(found, want) and found.prompt_logprobs == list(score.logprobs)
                assert stream.prompt_scores == (found.prompt_logprobs, found.prompt_top_logprobs)
                assert found.cached_tokens == 0
            assert beside.read()
        check_tops(model, prompts[2], found=streams[2].result)


def check_tops(model, prompt, found):
    rows = np.asarray(model.logits(prompt))
    assert found.prompt_top_logprobs[0] == ()
    for i, top in enumerate(found.prompt_top_logprobs[1:]):
        assert [one for one, _ in top] == list(np.argsort(-rows[i], kind="stable")[:2])
        assert dict(top).get(prompt[i + 1], found.prompt_logprobs[i + 1]) == found.prompt_logprobs[i + 1]


def test_log_probabilities_of_a_prompt_in_other_ways(model):
    ids = model.encode(PROMPTS[2])
    want = list(model.score(ids).logprobs)
    for more in ({}, {"prefill": "token"}, {"max_tokens": 0}, {"n": 2, "max_tokens": 1}):
        found = model.generate(ids, **{"max_tokens": 2} | more, prompt_logprobs=0).read()
        for one in found if isinstance(found, list) else [found]:
            assert one.prompt_logprobs == want and set(one.prompt_top_logprobs) == {()}
    session = model.session()
    for _ in range(2):                          # nothing of the session is reused, and it goes on
        found = model.generate(ids, max_tokens=1, session=session, reset=True, prompt_logprobs=1).read()
        assert found.prompt_logprobs == want and found.cached_tokens == 0
    assert model.generate(ids, max_tokens=1).read().prompt_logprobs is None
    cut = model.generate(ids, prompt_logprobs=1)
    cut.close()
    assert cut.result.prompt_logprobs == [None] * len(ids)
    with pytest.raises(ValueError, match="prompt_logprobs"):
        model.generate(ids, prompt_logprobs=257)
    with pytest.raises(ValueError, match="prompt_logprobs together with edits or activations"):
        model.generate(ids, prompt_logprobs=1, probe=lambda event: None)


class SlowPass:
    """A decoder whose pass with two streams goes on until it is told to end."""

    def __init__(self, decoder):
        self._decoder, self._added, self.ended = decoder, 0, False

    def __getattr__(self, name):
        return getattr(self._decoder, name)

    def add(self, stream):
        self._decoder.add(stream)
        self._added += 1

    @property
    def running(self):
        return self._added == 2 and not self.ended

    def events(self):
        return [] if self.running else self._decoder.events()


def test_who_leaves_does_not_wait_for_the_pass(model, alone):
    """It ends while a pass that has rows of it and of another goes on; the other one gets its tokens."""
    with model.scheduler() as scheduler:
        slow = scheduler._decoder = SlowPass(scheduler._decoder)
        leaves = scheduler.generate([7] * 60, max_tokens=5)
        stays = scheduler.generate(PROMPTS[2], **options(2))
        try:
            while not slow.running:
                time.sleep(0.001)
            leaves.cancel()
            assert leaves.read().finish_reason == "cancelled" and leaves.result.prompt_tokens == 60
            stats = scheduler.stats
            assert slow.running and stats["cancelled"] == 1 and stats["running"] + stats["waiting"] == 1
        finally:
            slow.ended = True
        assert same(stays.read(), alone[2])


def test_threads(model, alone):
    found = {}
    with model.scheduler(max_streams=3) as scheduler:
        def ask(i):
            found[i] = scheduler.generate(PROMPTS[i], **options(i)).read()
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(PROMPTS))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert all(same(found[i], one) for i, one in enumerate(alone))


def test_tasks_without_threads(model, alone):
    async def ask(scheduler, i):
        stream = scheduler.generate(PROMPTS[i], **options(i))
        text = "".join([token.text async for token in stream])
        return text, stream.result

    async def all_of_them():
        with model.scheduler() as scheduler:
            before = threading.active_count()
            tasks = [asyncio.create_task(ask(scheduler, i)) for i in range(len(PROMPTS))]
            await asyncio.sleep(0)
            assert threading.active_count() == before
            return await asyncio.gather(*tasks)

    for (text, result), one in zip(asyncio.run(all_of_them()), alone, strict=True):
        assert same(result, one) and text == one.text


def test_tasks_that_a_pass_has_tokens_for_are_woken_together(model):
    async def program():
        loop, calls = asyncio.get_running_loop(), []
        call = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *what: (calls.append(what), call(*what))[1]

        async def read(stream):
            return len([token async for token in stream])
        with model.scheduler() as scheduler:
            gate = Gate()
            streams = [scheduler.generate([5, 6, i + 7], max_tokens=40, ignore_eos=True, logits_processors=[gate])
                       for i in range(8)]
            tasks = [asyncio.create_task(read(one)) for one in streams]
            await asyncio.sleep(0)
            gate.set()
            return sum(await asyncio.gather(*tasks)), len(calls)
    tokens, calls = asyncio.run(program())
    assert tokens >= 8 * 40 and 0 < calls <= 3 * 40     # passes, and those in which the prompts come


def test_a_task_that_is_cancelled_frees_its_place(model):
    async def program():
        with model.scheduler(max_streams=1) as scheduler:
            async def read(stream):
                return [token async for token in stream]
            gate = Gate()
            stream = scheduler.generate("Once", max_tokens=None, ignore_eos=True, logits_processors=[gate])
            task = asyncio.create_task(read(stream))
            await asyncio.sleep(0.05)           # whether it waits by then or not
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task                      # though the pass goes on until the gate is open
            gate.set()
            await asyncio.to_thread(stream.close)
            assert stream.result.finish_reason == "cancelled"
            assert (await read(scheduler.generate("Two", max_tokens=3)))[-1].finish_reason is not None
            return scheduler.stats
    assert asyncio.run(program())["cancelled"] == 1


def test_chat_and_parts(model):
    want = model.chat("A frog.", max_tokens=12, temperature=0).read()
    with model.scheduler() as scheduler:
        stream = scheduler.chat("A frog.", max_tokens=12, temperature=0)
        assert "".join(part.text for part in stream.parts()) == want.text and same(stream.result, want)


def test_a_full_queue_and_the_end(model):
    scheduler = model.scheduler(max_streams=1, queue=1)
    gate = Gate()
    running = scheduler.generate("Once", max_tokens=None, ignore_eos=True, logits_processors=[gate])
    while running.queue_seconds is None:
        time.sleep(0.001)
    waiting = scheduler.generate("Two", max_tokens=2)
    with pytest.raises(gomlx.QueueFull, match="1 requests wait and 1 are computed; the queue has room for 1"):
        scheduler.generate("Three")
    assert scheduler.stats["refused"] == 1
    gate.set()
    scheduler.close(grace=0.05)
    assert running.result.finish_reason == waiting.result.finish_reason == "cancelled"
    with pytest.raises(RuntimeError, match="the scheduler is closed"):
        scheduler.generate("Four")
    scheduler.close()


def test_what_is_wrong_is_said_at_the_call(model):
    with model.scheduler() as scheduler:
        for prompt, asked, error in (("a " * 5000, {}, gomlx.ContextLengthExceeded), ("", {}, ValueError),
                                     ("a", {"temperature": -1}, ValueError), ("a", {"sedd": 1}, TypeError),
                                     ("a", {"session": model.session()}, ValueError)):
            with pytest.raises(error):
                scheduler.generate(prompt, **asked)
        assert scheduler.stats["requests"] == 0
    for settings in ({"max_streams": 0}, {"queue": -1}, {"kv_bytes": 0}, {"gap_ms": -1}):
        with pytest.raises(ValueError, match=next(iter(settings))):
            model.scheduler(**settings)


def test_a_failure_is_that_request_s_alone(model, alone):
    def fails(ids, logits):
        raise ZeroDivisionError("a processor's")
    with model.scheduler() as scheduler:
        broken = scheduler.generate("Once", logits_processors=[fails])
        fine = scheduler.generate(PROMPTS[0], **options(0))
        with pytest.raises(ZeroDivisionError):
            broken.read()
        assert isinstance(broken.result.error, ZeroDivisionError) and same(fine.read(), alone[0])
        assert scheduler.stats["failed"] == 1


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_an_exit_in_a_callback_is_that_request_s_alone(model, alone, monkeypatch, kind):
    """In a processor, and while the result is made."""
    def leaves(*given, **named):
        raise kind(3)
    with model.scheduler() as scheduler:
        broken = scheduler.generate("Once", logits_processors=[leaves])
        with pytest.raises(RuntimeError, match=f"a callback of the request raised {kind.__name__}"):
            broken.read()
        with monkeypatch.context() as changed:
            changed.setattr(Generation, "_outcome", lambda self, reason, error, calls, outcome=Generation._outcome:
                            leaves() if self._ids and error is None else outcome(self, reason, error, calls))
            with pytest.raises(RuntimeError, match=kind.__name__):
                scheduler.generate("Once", max_tokens=2).read()
        assert same(scheduler.generate(PROMPTS[0], **options(0)).read(), alone[0])
        assert scheduler.stats["failed"] == 2


def test_who_has_read_a_stream_finds_it_counted(model, monkeypatch):
    seen = []

    def put(self, *items, put=Request._put):
        if None in items:
            seen.append(self._scheduler.stats)
        put(self, *items)
    monkeypatch.setattr(Request, "_put", put)
    with model.scheduler() as scheduler:
        scheduler.generate("Once", max_tokens=3, ignore_eos=True).read()
    assert [(one["running"], one["finished"], one["generated_tokens"]) for one in seen] == [(0, 1, 3)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_is_told_that_the_thread_is_not_there():
    """In a process of its own, as forks of one with threads may not be trusted to end."""
    done = subprocess.run([sys.executable, "-P", "-c", FORKS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["RuntimeError"] * 6 + ["closed", "parent"]


FORKS = """
import asyncio, os, gomlx
model = gomlx.load()
scheduler = model.scheduler()
stream = scheduler.generate("Once", max_tokens=2)
scheduler._lock.acquire()
child = os.fork()
if child == 0:
    for call in (lambda: scheduler.generate("Once"), lambda: scheduler.stats, stream.read, stream.cancel, stream.close,
                 lambda: asyncio.run(anext(stream))):
        try:
            call()
        except RuntimeError as error:
            print("RuntimeError" if "was forked from it" in str(error) else error, flush=True)
    scheduler.close()
    print("closed", flush=True)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
scheduler._lock.release()
assert len(stream.read().tokens) <= 2
scheduler.close()
print("parent")
"""


def test_a_result_that_cannot_be_made_is_that_request_s_alone(model, alone, monkeypatch):
    """A parser, a type's constructor: what they raise ends their request, and not the scheduler."""
    def fails(self, finish_reason, error, has_calls, outcome=Generation._outcome):
        if self._seed == 77 and self._ids and error is None:
            raise ZeroDivisionError("a type's")
        return outcome(self, finish_reason, error, has_calls)
    monkeypatch.setattr(Generation, "_outcome", fails)
    with model.scheduler() as scheduler:
        broken = scheduler.generate("Once", max_tokens=2, seed=77)
        with pytest.raises(ZeroDivisionError):
            broken.read()
        assert isinstance(broken.result.error, ZeroDivisionError)
        assert same(scheduler.generate(PROMPTS[0], **options(0)).read(), alone[0])


def test_a_model_that_is_closed_ends_what_is_computed():
    with gomlx.load() as model:
        scheduler = model.scheduler(max_streams=1)
        streams = [scheduler.generate("Once", max_tokens=None, ignore_eos=True) for _ in range(2)]
        next(streams[0])
    for stream in streams:
        with contextlib.suppress(ValueError):   # or it was cancelled, where a pass was under way
            stream.read()
        assert stream.result.finish_reason in ("error", "cancelled")
    scheduler.close()


def test_prompts_get_on_however_many_decode(model):
    """A pass has rows of prompts even where those that decode fill it."""
    decoder = model._engine.new_decoder()
    decoder.limit(rows=2, gap_ms=0)
    streams = [_gomlx.stream(model._engine.new_session(), None, ids, max_tokens=n, temperature=0)
               for ids, n in (([5], 100), ([6], 100), ([7] * 9, 1))]
    for stream in streams:
        decoder.add(stream)
    passes = 0
    while not any(stream is streams[2] for stream, _ in decoder.events()):
        passes += not decoder.running
        assert passes < 50


def test_a_prompt_is_scored_whatever_the_bound(model):
    """A pass of one row would have no logits of its own: it has two."""
    ids = model.encode(PROMPTS[2])
    with model.scheduler() as scheduler:
        scheduler._decoder.limit(rows=1, gap_ms=0)
        found = scheduler.generate(ids, max_tokens=1, prompt_logprobs=0).read()
    assert found.prompt_logprobs == list(model.score(ids).logprobs)


def test_a_processor_may_close_its_stream(model):
    streams, ready = [], threading.Event()

    def closes(ids, logits):
        ready.wait()
        streams[0].close()
    with model.scheduler() as scheduler:
        streams.append(scheduler.generate("Once", max_tokens=None, ignore_eos=True, logits_processors=[closes]))
        ready.set()
        assert streams[0].read().finish_reason == "cancelled"


def test_several_readers_of_one_stream(model, alone):
    """Threads share its tokens, and each of them ends; of tasks one may wait at a time."""
    found = []
    with model.scheduler() as scheduler:
        stream = scheduler.generate(PROMPTS[6], **options(6))
        threads = [threading.Thread(target=lambda: found.extend(stream)) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert sorted(one.id for one in found if one.id >= 0) == sorted(alone[6].tokens)

        async def two():
            held = threading.Event()
            stream = scheduler.generate("Once", max_tokens=1, logits_processors=[lambda *_: held.wait() and None])
            first = asyncio.create_task(anext(stream))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="another task waits"):
                await anext(stream)
            held.set()
            await first
        asyncio.run(two())


def test_timeouts_of_what_waits(model):
    with model.scheduler(max_streams=1) as scheduler:
        gate = Gate()
        running = scheduler.generate("Once", max_tokens=None, ignore_eos=True, logits_processors=[gate])
        while running.queue_seconds is None:
            time.sleep(0.001)
        waiting = scheduler.generate("Two", timeout=0.01)
        gate.set()
        assert waiting.read().finish_reason == "timeout" and waiting.result.tokens == []
        running.close()


def test_a_short_prompt_does_not_wait_for_a_long_one(model):
    """Both come at once; with few rows a pass the shortest remainder goes first."""
    with model.scheduler(gap_ms=0.01) as scheduler:
        gate = Gate()
        decoding = scheduler.generate("Once", max_tokens=None, ignore_eos=True, logits_processors=[gate])
        long = scheduler.generate([5] * 1900, max_tokens=1)
        short = scheduler.generate([7] * 20, max_tokens=1)
        gate.set()
        assert all(len(stream.read().tokens) == 1 for stream in (long, short))
        assert short._first < long._first
        decoding.close()
