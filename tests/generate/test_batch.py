"""One decode loop: a batch gives each prompt the bits of its single run; errors, ends and deadlines stay apart."""
import asyncio
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import gomlx
from gomlx import _gomlx
from gomlx.probes import Probe

RAGGED = ["Once upon a time", "The cat", "A very long day in the forest, where nobody had ever been before, and", "Tom",
          "One"]


@pytest.fixture(scope="module")
def model():
    with gomlx.load() as made:
        yield made


def same(a, b):
    return a.tokens == b.tokens and a.logprobs == b.logprobs and a.text == b.text and a.finish_reason == b.finish_reason


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 1.0, "seed": 7},
                                     {"temperature": 0.7, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 1}])
@pytest.mark.parametrize("batch_size", [1, 2, 16])
def test_a_batch_gives_the_bits_of_single_runs(model, options, batch_size):
    lengths = [30, 3, 17, 1, 9]
    batch = model.generate_batch(RAGGED, options=[{"max_tokens": n} for n in lengths], batch_size=batch_size, **options)
    results = batch.read()
    for prompt, n, result in zip(RAGGED, lengths, results, strict=True):
        assert same(result, model.generate(prompt, max_tokens=n, **options).read())
    assert batch.stats["generated_tokens"] == sum(len(one.tokens) for one in results)


def test_long_prompts_share_passes(model):
    """More rows than a pass takes, cut anywhere."""
    rng = np.random.default_rng(0)
    prompts = [[int(i) for i in rng.integers(10, 400, n)] for n in (700, 3, 513, 1, 511)]
    results = model.generate_batch(prompts, max_tokens=6, temperature=0).read()
    for prompt, result in zip(prompts, results, strict=True):
        assert same(result, model.generate(prompt, max_tokens=6, temperature=0).read())


@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_token_ids_and_both_kinds_of_activations(activations):
    with gomlx.load(activations=activations) as model:
        prompts = [[1, 2, 3], [4], list(range(5, 45)), [7] * 11]
        results = model.generate_batch(prompts, max_tokens=12, temperature=1.0, seed=3).read()
        for prompt, result in zip(prompts, results, strict=True):
            assert same(result, model.generate(prompt, max_tokens=12, temperature=1.0, seed=3).read())


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "gemma2", "gemma3",
                                  "gemma4", "gpt_oss"])
def test_every_architecture(shared, name):
    path = os.path.join(shared, "data", "models", name)
    if not os.path.isdir(path):
        pytest.skip(f"no {path}")
    try:
        model = gomlx.load(path)
    except NotImplementedError as error:
        pytest.skip(str(error))
    with model:
        results = model.generate_batch(RAGGED, max_tokens=8, temperature=1.0, seed=3).read()
        for prompt, result in zip(RAGGED, results, strict=True):
            assert same(result, model.generate(prompt, max_tokens=8, temperature=1.0, seed=3).read())


def test_events_are_tokens_by_index(model):
    texts = [""] * 3
    batch = model.generate_batch(RAGGED[:3], max_tokens=5)
    for index, token in batch:
        assert isinstance(token, gomlx.Token)
        texts[index] += token.text
    assert texts == [one.text for one in batch.results]


def test_a_prompt_that_fails_fails_alone(model):
    def broken(ids, logits):
        if len(ids) > 6:
            raise KeyError("mine")

    prompts = ["Once upon a time", "", [10 ** 6], "x" * 30000, "The cat", 7]
    options = [None, None, None, None, {"logits_processors": [broken]}, None]
    results = model.generate_batch(prompts, options=options, max_tokens=8, temperature=0).read()
    assert model.error in [one.error for one in results[1:]]
    assert [type(one.error) for one in results] == [type(None), ValueError, ValueError, gomlx.ContextLengthExceeded,
                                                   KeyError, TypeError]
    assert [one.finish_reason for one in results] == ["length"] + ["error"] * 5
    assert same(results[0], model.generate(prompts[0], max_tokens=8, temperature=0).read())
    made = results[4].tokens
    assert made and made == model.generate(prompts[4], max_tokens=8, temperature=0).read().tokens[:len(made)]
    model.generate("The", max_tokens=1).read()
    assert model.error is None


def test_options_of_a_batch_are_checked(model):
    with pytest.raises(ValueError, match="options: 1 for 2"):
        model.generate_batch(["a", "b"], options=[{}])
    with pytest.raises(ValueError, match="batch_size"):
        model.generate_batch(["a"], batch_size=0)
    with pytest.raises(ValueError, match="timeout"):
        model.generate("a", timeout=0)
    with pytest.raises(ValueError, match="prefill is 'all'"):
        model.generate("a", prefill="all")
    for prompts in ("Once", b"Once", {"role": "user"}):
        with pytest.raises(TypeError, match="prompts: expected several"):
            model.generate_batch(prompts)
    for n in (0, -1, 10**9):
        with pytest.raises(ValueError, match=f"n is {n}, expected 1 to"):
            model.generate("a", n=n)
    assert model.generate_batch([]).read() == []


@pytest.mark.parametrize(("options", "words"), [
    ({"prompt": {3: 4}}, "prompt: .* dict"), ({"prompt": {3, 4}}, "prompt: .* set"),
    ({"sampling": {"temperature": 1}}, "sampling: expected a gomlx.Sampling, got dict"), ({"stop": 5}, "stop: .* 5"),
    ({"stop": ["a", 5]}, "stop: "), ({"parser": 5}, "parser: .* int")])
def test_arguments_of_other_kinds(model, options, words):
    with pytest.raises(TypeError, match=words):
        model.generate(**{"prompt": "a", **options})


def test_stop_iteration_of_a_processor_is_no_end(model):
    def ended(ids, logits):
        raise StopIteration

    for options in ({"logits_processors": [ended]}, {"probe": lambda event: next(iter(()))},
                    {"probe": Probe(lambda event: next(iter(())), kinds=["token"])}):
        stream = model.generate("Once", max_tokens=4, **options)
        with pytest.raises(RuntimeError, match="StopIteration"):
            stream.read()
        assert stream.result.error is model.error and isinstance(model.error, RuntimeError)
        assert list(stream) == []
        assert isinstance(model.generate_batch(["Once"], max_tokens=4, **options).read()[0].error, RuntimeError)


def test_cancel_and_close(model):
    batch = model.generate_batch(RAGGED, ignore_eos=True)
    for count, _ in enumerate(batch):
        if count == 20:
            batch.cancel()
    assert {one.finish_reason for one in batch.results} == {"cancelled"}
    assert sum(len(one.tokens) for one in batch.results) >= 20
    batch = model.generate_batch(RAGGED, ignore_eos=True)
    next(batch)
    with pytest.raises(RuntimeError, match="not ended"):
        batch.results
    batch.close()
    assert len(batch.results) == 5 and list(batch) == []


def test_cancel_from_another_thread(model):
    batch = model.generate_batch([[300] * 2000] * 8, ignore_eos=True)
    timer = threading.Timer(0.05, batch.cancel)
    timer.start()
    batch.read()
    timer.join()
    assert all(one.finish_reason in ("cancelled", "context") for one in batch.results)


def test_deadlines(model):
    started = time.monotonic()
    result = model.generate("Once", ignore_eos=True, timeout=0.05, seed=1).read()
    assert result.finish_reason == "timeout" and time.monotonic() - started < 5
    again = model.generate("Once", ignore_eos=True, max_tokens=max(len(result.tokens), 1), seed=1).read()
    assert result.tokens == again.tokens[:len(result.tokens)]
    results = model.generate_batch(["Once"] * 40, ignore_eos=True, timeout=0.05, batch_size=4).read()
    assert {one.finish_reason for one in results} == {"timeout"}
    results = model.generate_batch(["Once"] * 2, options=[{"timeout": 1e-9}, {"max_tokens": 4}]).read()
    assert [one.finish_reason for one in results] == ["timeout", "length"] and results[0].tokens == []


@pytest.mark.parametrize("prefill", ["auto", "batched", "token", "validate"])
def test_prefill_modes_give_the_same_bits(model, prefill):
    prompt = list(range(20, 60))
    result = model.generate(prompt, max_tokens=5, temperature=0, prefill=prefill).read()
    assert same(result, model.generate(prompt, max_tokens=5, temperature=0).read())
    assert (result.prefill_difference is None) == (prefill != "validate")


def test_validated_prefill_on_a_session(model):
    session = model.session()
    model.generate(list(range(20, 40)), max_tokens=3, temperature=0, session=session).read()
    result = model.generate(list(range(20, 60)), max_tokens=3, session=session, reset=True,
                            prefill="validate").read()
    assert 0 < result.prefill_difference < 1 and result.cached_tokens == 20


def test_metrics(model):
    result = model.generate("Once upon a time", max_tokens=8, ignore_eos=True).read()
    assert result.generated_tokens == 8 and result.prompt_tokens == 4
    assert result.prefill_seconds > 0 and result.decode_seconds > 0
    assert result.prefill_seconds + result.decode_seconds <= result.total_seconds
    assert result.decode_tps == pytest.approx(7 / result.decode_seconds)
    assert result.peak_memory_bytes >= result.active_memory_bytes > 0


def test_async_iteration(model):
    async def run():
        one = [token.id async for token in model.generate("The cat", max_tokens=5, temperature=0)]
        batch = model.generate_batch(["The cat", "Tom"], max_tokens=5, temperature=0)
        async with batch:
            two = [token.id async for index, token in batch if index == 0]
        return one, two, batch.results

    one, two, results = asyncio.run(run())
    assert one == two == model.generate("The cat", max_tokens=5, temperature=0).read().tokens and len(results) == 2


def test_a_cancelled_task_ends_its_stream(model):
    stream = model.generate("Once", ignore_eos=True)

    async def run():
        async def consume():
            async for _ in stream:
                pass
        task = asyncio.create_task(consume())
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert stream.result.finish_reason in ("cancelled", "context")


def test_parallel_slots():
    with gomlx.load(parallel=1) as model:
        first = model.generate("Once", max_tokens=50, ignore_eos=True, temperature=0)
        next(first)
        late = model.generate("The cat", timeout=0.05).read()            # the slot is taken
        assert late.finish_reason == "timeout" and late.tokens == []
        others = [threading.Thread(target=lambda: model.generate("The", max_tokens=3).read()) for _ in range(3)]
        for one in others:
            one.start()
        assert len(first.read().tokens) == 50
        for one in others:
            one.join()
        forgotten = model.generate("Once", ignore_eos=True)
        next(forgotten)
        del forgotten                                                    # gives its slot back
        assert len(model.generate_batch(["a", "b"], max_tokens=2, ignore_eos=True).read()) == 2
    with pytest.raises(ValueError, match="parallel"):
        gomlx.load(parallel=0)


def test_a_stream_of_a_batch_is_the_batchs(model):
    engine = model._engine
    decoder = engine.new_decoder()
    stream = gomlx._gomlx.stream(engine.new_session(), None, [1, 2, 3], max_tokens=2)
    decoder.add(stream)
    with pytest.raises(RuntimeError, match="member of a Decoder"):
        next(stream)
    stream = gomlx._gomlx.stream(engine.new_session(), None, [1, 2, 3], max_tokens=2)
    decoder.add(stream)
    with pytest.raises(RuntimeError, match="already"):
        decoder.add(stream)
    got = []
    while (event := decoder.step()) is not None:
        got.append(event)
    assert [token.finish_reason for _, token in got] == [None, None, "length", "length"]
    with pytest.raises(TypeError):
        decoder.add(3)
    with pytest.raises(ValueError, match="ended"):
        decoder.add(stream)
    with gomlx.load() as other:
        foreign = gomlx._gomlx.stream(other._engine.new_session(), None, [1])
        with pytest.raises(ValueError, match="another model"):
            decoder.add(foreign)
    assert decoder.step() is None


def test_members_enter_and_leave_between_steps(model):
    """The bits of each stream, whoever comes, goes or is closed meanwhile."""
    engine = model._engine
    alone = {k: [t.id for t in gomlx._gomlx.stream(engine.new_session(), None, [k, k + 1], max_tokens=10)]
             for k in range(20, 28)}
    decoder, names, got = engine.new_decoder(), {}, {}
    for k in alone:
        stream = gomlx._gomlx.stream(engine.new_session(), None, [k, k + 1], max_tokens=10)
        names[stream], got[k] = k, []
        decoder.add(stream)
        for _ in range(3):
            member, token = decoder.step()
            got[names[member]].append(token.id)
        if k == 23:
            stream.close()
    while (event := decoder.step()) is not None:
        got[names[event[0]]].append(event[1].id)
    for k in alone:
        assert got[k] == alone[k] if k != 23 else got[k] == alone[k][:len(got[k])]


def test_samples_share_one_prefill(model):
    prompt = "Once upon a time there was"
    batch = model.generate(prompt, n=3, max_tokens=12, temperature=1.0, seed=5)
    assert isinstance(batch, gomlx.BatchStream)
    results = batch.read()
    for i, result in enumerate(results):
        assert same(result, model.generate(prompt, max_tokens=12, temperature=1.0, seed=5 + i).read())
        assert result.seed == 5 + i and result.cached_tokens == result.prompt_tokens - 1
    assert len({tuple(one.tokens) for one in results}) == 3
    with pytest.raises(ValueError, match="n is 0"):
        model.generate(prompt, n=0)
    failed = model.generate([10 ** 6, 1], n=2).read()
    assert [type(one.error) for one in failed] == [ValueError, ValueError]
    assert len(model.generate([5], n=2, max_tokens=2).read()) == 2


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="there are no interval timers here")
def test_an_interrupted_step_gives_back_what_was_closed_meanwhile():
    """The handler closes a member while the step runs, as another thread may, and interrupts the step."""
    with gomlx.load(prompt_cache=False) as model:
        rng = np.random.default_rng(0)
        sessions = [model.session() for _ in range(2)]
        streams = [_gomlx.stream(session, None, rng.integers(10, 400, 2000).tolist(), max_tokens=1)
                   for session in sessions]
        decoder = model._engine.new_decoder()
        for stream in streams:
            decoder.add(stream)

        def interrupt(*_):
            streams[0].close()
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.03)
            with pytest.raises(KeyboardInterrupt):
                decoder.step()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        sessions[0].fork().close()                                     # nothing uses it any more
        with pytest.raises(RuntimeError, match="a stream is using it"):
            sessions[1].fork()
        assert decoder.step()[0] is streams[1]


def open_sessions(model):
    def is_open(session):
        try:
            return session.length >= 0
        except ValueError:
            return False
    return sum(type(one) is _gomlx.Session and one.model is model._engine and is_open(one) for one in gc.get_objects())


def test_samples_leave_no_sessions_behind():
    """Whether they end, are closed early, fail to open or never begin: at once, not when garbage is collected."""
    gc.disable()
    try:
        with gomlx.load(prompt_cache=False) as model:
            batch = model.generate("Once upon a time", n=3, max_tokens=4)
            batch.read()
            assert open_sessions(model) == 0
            batch = model.generate("Once upon a time", n=3, max_tokens=40)
            for _ in zip(range(5), batch, strict=False):
                pass
            assert open_sessions(model) > 1
            batch.close()
            assert open_sessions(model) == 0
            batch = model.generate("Once upon a time", n=3, stop_ids=[model.vocab_size])
            assert all("outside" in str(result.error) for result in batch.read())
            assert open_sessions(model) == 0
            batch = model.generate([5, model.vocab_size, 7], n=2)
            assert all("outside" in str(result.error) for result in batch.read())
            assert open_sessions(model) == 0
            own = model.session()
            model.generate("Once upon a time", n=2, max_tokens=2, session=own).read()
            assert open_sessions(model) == 1 and own.length > 0
    finally:
        gc.enable()
