"""What must hold when things go wrong: signals, cancelling, threads, forks, memory. Handlers of signals run in the main
thread, so pytest's own thread is where the interrupted work is done."""
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings

import pytest
from checkpoints import random_weights, save_safetensors

import gomlx
import gomlx.core as mx
from gomlx import _gomlx

PROMPT = "Once upon a time there was a small boat that wanted to see the whole wide sea. "
PATIENCE = 1.0      # seconds; on an idle machine an interruption takes a few hundredths
BIG = {"model_type": "llama", "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6,
       "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 2000, "max_position_embeddings": 8192,
       "rms_norm_eps": 1e-5, "rope_theta": 1e4, "hidden_act": "silu", "tie_word_embeddings": True}
LONG = [(7 * i * i + 3) % 2000 for i in range(3000)]      # a second or more of prefill


@pytest.fixture(scope="module")
def fable():
    with gomlx.load(threads=2) as model:
        yield model


@pytest.fixture(scope="module")
def big_folder(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("big"))
    weights = random_weights({**BIG, "num_hidden_layers": 1})
    for name in [name for name in weights if ".layers.0." in name]:
        for layer in range(1, BIG["num_hidden_layers"]):
            weights[name.replace(".0.", f".{layer}.")] = weights[name]
    save_safetensors(folder, BIG, weights, dtype="F16")
    return folder


@pytest.fixture(scope="module")
def big(big_folder):
    model = _gomlx.load_model(big_folder, threads=2)
    yield model
    model.close()


class Interrupted(Exception):
    """Stands for KeyboardInterrupt, which would end pytest if it came late."""


def interrupt(signum, frame):
    raise Interrupted


@contextlib.contextmanager
def alarm(delay, handler=interrupt, sent=None):
    """SIGINT to this process `delay` seconds after the block began; adds to `sent` when it was sent."""
    begun, over = threading.Event(), threading.Event()

    def send():
        begun.wait()      # a busy machine may take longer than `delay` to start a thread
        if not over.wait(delay):
            if sent is not None:
                sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    before, thread = signal.signal(signal.SIGINT, handler), threading.Thread(target=send)
    thread.start()
    try:
        begun.set()
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)


def seconds_to_stop(delay, work):
    """How long after the signal the work was left."""
    sent = []
    with pytest.raises(Interrupted), alarm(delay, sent=sent):
        work()
    return time.perf_counter() - sent[0]


def run(model, ids, count, session=None):
    """Greedy tokens with their log probabilities."""
    return [(token.id, token.logprob) for token in
            _gomlx.stream(session or model.new_session(), None, ids, max_tokens=count)]


# ---- Ctrl-C ----

def test_interrupted_load(big_folder, big):
    def load():
        while True:
            _gomlx.load_model(big_folder).close()

    baseline = mx.get_active_memory()
    for delay in (0.005, 0.01, 0.02, 0.04):
        assert seconds_to_stop(delay, load) < PATIENCE
        assert mx.get_active_memory() == baseline
    model = _gomlx.load_model(big_folder, threads=2)
    assert run(model, LONG[:20], 3) == run(big, LONG[:20], 3)
    model.close()


def test_interrupted_prefill(big):
    want = run(big, LONG[:1500], 3)
    session = big.new_session()
    for delay in (0.02, 0.2):
        assert seconds_to_stop(delay, lambda: run(big, LONG, 1, session)) < PATIENCE
        assert session.length % 512 == 0 and session.length < len(LONG)      # whole chunks or nothing
    assert run(big, LONG[:1500], 3, session) == want


def test_interrupted_decode(fable):
    engine, ids = fable._engine, fable.tokenizer.encode_prompt(PROMPT)
    whole = run(engine, ids, 420)     # a stream of 400 may be all but over
    for delay in (0.01, 0.02, 0.05, 0.1):
        session, seen = engine.new_session(), []

        def read(session=session, seen=seen):
            while True:
                for token in _gomlx.stream(session, None, ids, max_tokens=400):
                    seen.append((token.id, token.logprob))
                seen.clear()

        assert seconds_to_stop(delay, read) < PATIENCE
        seen = seen[:-1]          # the last may have come without its step into the cache
        assert seen == whole[:len(seen)]
        assert run(engine, ids + [token for token, _ in seen], 20, session) == whole[len(seen):len(seen) + 20]


def test_interrupted_logits_and_eval(big):
    assert seconds_to_stop(0.1, lambda: big.logits([LONG, LONG])) < PATIENCE
    x = mx.broadcast_to(mx.array([[0.5]]), (2000, 2000))
    mx.eval(x)
    y = x
    for _ in range(40):
        y = mx.matmul(y, x) * 1e-3
    total = mx.sum(y)
    assert seconds_to_stop(0.1, lambda: mx.eval(total)) < PATIENCE
    with pytest.raises(RuntimeError, match="interrupted"):
        mx.eval(total)
    assert mx.sum(x[:2]).item() == 2000
    assert len(run(big, LONG[:10], 2)) == 2


def test_ctrl_c_is_keyboard_interrupt(fable):
    engine, ids = fable._engine, fable.tokenizer.encode_prompt(PROMPT)
    with pytest.raises(KeyboardInterrupt), alarm(0.05, signal.default_int_handler):
        while True:
            run(engine, ids, 100)


def test_a_handler_cannot_evaluate_within_an_evaluation(big):
    want, failures = run(big, LONG[:1500], 2), []
    stream = _gomlx.stream(big.new_session(), None, LONG[:1500], max_tokens=2)

    def handler(signum, frame):
        for attempt in (lambda: mx.eval(mx.array([1.0]) + 1), lambda: next(stream), lambda: big.logits([[1, 2]])):
            try:
                attempt()
            except Exception as error:
                failures.append(type(error))

    with alarm(0.1, handler):
        got = [(token.id, token.logprob) for token in stream]
    assert failures == [RuntimeError, ValueError, RuntimeError]
    assert got == want


def test_a_handler_may_close_everything(big_folder):
    model = _gomlx.load_model(big_folder, threads=2)
    stream = _gomlx.stream(model.new_session(), None, LONG, max_tokens=2)
    with alarm(0.1, lambda signum, frame: model.close()):
        assert [token.finish_reason for token in stream] == ["cancelled"]
    with pytest.raises(ValueError, match="closed"):
        model.new_session()


# ---- streams ----

def test_cancel_from_another_thread(big):
    session = big.new_session()
    stream = _gomlx.stream(session, None, LONG, max_tokens=5)
    timer = threading.Timer(0.1, stream.cancel)
    timer.start()
    start = time.perf_counter()
    assert [(token.id, token.finish_reason) for token in stream] == [(-1, "cancelled")]
    assert time.perf_counter() - start < 0.1 + PATIENCE
    assert run(big, LONG[:700], 2, session) == run(big, LONG[:700], 2)


def test_close_from_another_thread(big):
    session = big.new_session()
    stream = _gomlx.stream(session, None, LONG, max_tokens=5)
    timer = threading.Timer(0.1, stream.close)
    timer.start()
    assert [token.id for token in stream] == [-1]
    timer.join()
    assert run(big, LONG[:700], 2, session) == run(big, LONG[:700], 2)


def test_close_during_iteration(fable):
    seen = 0
    stream = fable.generate(PROMPT, max_tokens=50, temperature=0)
    for _ in stream:
        seen += 1
        if seen == 3:
            stream.close()
    assert seen == 3 and stream.result.finish_reason == "cancelled" and len(stream.result.tokens) == 3


def test_a_dropped_stream_gives_everything_back(fable):
    gc.collect()
    baseline = mx.get_active_memory()
    for _ in range(3):
        stream = fable.generate(PROMPT, max_tokens=50)
        next(stream)
        assert mx.get_active_memory() > baseline
        del stream
        gc.collect()
        assert mx.get_active_memory() == baseline


def test_a_session_has_one_stream_at_a_time(fable):
    session = fable.session()
    first = fable.generate(PROMPT, max_tokens=5, session=session)
    next(first)
    with pytest.raises(RuntimeError, match="another stream is using it"):
        fable.generate(PROMPT, session=session)
    with pytest.raises(RuntimeError, match="a stream is using it"):
        session.truncate(0)
    first.close()
    assert len(list(fable.generate(PROMPT, max_tokens=5, session=session))) == 5


# ---- threads ----

def in_threads(*works):
    """Runs them side by side; their results, or the first exception."""
    results = [None] * len(works)

    def call(i):
        try:
            results[i] = works[i]()
        except BaseException as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def test_two_threads_on_one_model(fable):
    prompts = [fable.tokenizer.encode_prompt(text) for text in (PROMPT, "The dog sat in the sun and")]
    want = [run(fable._engine, ids, 60) for ids in prompts]
    for _ in range(3):
        assert in_threads(*(lambda ids=ids: run(fable._engine, ids, 60) for ids in prompts)) == want


def test_threads_take_turns(fable):
    """A thread that never pauses does not keep another from its tokens."""
    ids, order, begun = fable.tokenizer.encode_prompt(PROMPT), [], threading.Barrier(2)

    def read(name):
        stream = iter(_gomlx.stream(fable._engine.new_session(), None, ids, max_tokens=300))
        next(stream)
        begun.wait(60)
        for _ in stream:
            order.append(name)

    in_threads(lambda: read("a"), lambda: read("b"))
    both = order[order.index("b" if order[0] == "a" else "a"):]
    both = both[:min(len(both) - both[::-1].index(name) for name in "ab")]
    longest = run_length = 1
    for one, other in zip(both, both[1:], strict=False):
        run_length = run_length + 1 if one == other else 1
        longest = max(longest, run_length)
    assert len(both) > 200 and longest < 100


def test_a_stream_belongs_to_one_thread_at_a_time(big):
    stream = _gomlx.stream(big.new_session(), None, LONG[:1500], max_tokens=2)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    try:
        with pytest.raises(ValueError, match="in use by another thread"):
            while thread.is_alive():      # it may not have begun
                stream.stats()
                time.sleep(0.001)
                if stream.stats()["generated_tokens"]:
                    break
    finally:
        thread.join()


def test_eight_threads_evaluate_one_array():
    for _ in range(20):
        x = mx.arange(20000, dtype=mx.float32)
        y = mx.sum(mx.exp(-x * 1e-4) * 2)
        z = y + 1
        values = in_threads(*[lambda y=y, z=z, i=i: (z if i % 2 else y).item() - i % 2 for i in range(8)])
        assert len({round(value, 2) for value in values}) == 1


# ---- forks ----

def fork(child, patience=60):
    """What child() returns in a forked process: its exit status; 255 for an exception, a signal's number below zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)      # 3.12: there are other threads; that is what is tested
        pid = os.fork()
    if pid == 0:
        status = 255
        try:
            status = child()
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(status)
    return wait(pid, patience)


def wait(pid, patience=60):
    end = time.monotonic() + patience
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail("the forked process hangs")


def generates_the_same(model, ids, want):
    same = run(model, ids, len(want)) == want
    x = mx.sum(mx.arange(100000) * 1.0).item()
    return 0 if same and abs(x / 4999950000.0 - 1) < 1e-6 else 1


def test_fork_after_generating(fable):
    ids = fable.tokenizer.encode_prompt(PROMPT)
    want = run(fable._engine, ids, 20)
    assert fork(lambda: generates_the_same(fable._engine, ids, want)) == 0
    assert fork(lambda: fork(lambda: generates_the_same(fable._engine, ids, want))) == 0
    assert run(fable._engine, ids, 20) == want


def test_fork_in_the_middle_of_a_stream(fable):
    """Both go on with it."""
    ids = fable.tokenizer.encode_prompt(PROMPT)
    want = run(fable._engine, ids, 20)
    stream = _gomlx.stream(fable._engine.new_session(), None, ids, max_tokens=20)
    begun = [next(stream) for _ in range(5)]

    def rest():
        return [(token.id, token.logprob) for token in [*begun, *stream]]

    assert fork(lambda: 0 if rest() == want else 1) == 0
    assert rest() == want


@pytest.mark.parametrize("what", ["generating", "evaluating", "loading", "adapting"])
def test_fork_while_another_thread_is(what, fable, big_folder):
    ids, over = fable.tokenizer.encode_prompt(PROMPT), threading.Event()
    want = run(fable._engine, ids, 10)
    adapter = fable.apply_lora()
    x = mx.broadcast_to(mx.array([[1.0]]), (300, 300)) * 0.01
    mx.eval(x)

    def work():
        while not over.is_set():
            if what == "generating":
                run(fable._engine, ids, 50)
            elif what == "loading":
                _gomlx.load_model(big_folder, threads=2).close()
            elif what == "adapting":                    # in which a lock of the lists of adapters is held
                fable.load_adapter(adapter, "other")
                for _ in range(100):
                    assert "other" in fable.adapters
                fable.unload_adapter("other")
            else:
                y = x
                for _ in range(50):
                    y = mx.exp(mx.matmul(y, x) * 1e-3)
                mx.eval(y)

    def child():
        lazy = mx.sum(x * 2 + 1)
        fable.load_adapter(adapter, "its own")
        list(fable.generate(ids, max_tokens=2, adapter="its own"))
        fable.unload_adapter("its own")
        return generates_the_same(fable._engine, ids, want) if abs(lazy.item() / 91800 - 1) < 1e-4 else 2

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(12):
            time.sleep(0.003 * i)
            assert fork(child) == 0
    finally:
        over.set()
        thread.join()


def test_fork_within_an_evaluation(big):
    """A handler forks: the child has not the threads that helped, so its evaluation fails and it goes on without."""
    want, children, parent = run(big, LONG[:1500], 2), [], os.getpid()
    stream = _gomlx.stream(big.new_session(), None, LONG[:1500], max_tokens=2)

    def handler(signum, frame):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            children.append(os.fork())

    status = 255
    with alarm(0.1, handler):
        try:
            got = [(token.id, token.logprob) for token in stream]
        except RuntimeError as error:
            status = 0 if "forked" in str(error) and len(run(big, LONG[:5], 2)) == 2 else 1
        finally:
            if os.getpid() != parent:
                os._exit(status)
    assert wait(children[0]) == 0
    assert got == want


def generate_in_a_process(queue):
    with gomlx.load() as model:
        queue.put("".join(token.text for token in model.generate(PROMPT, max_tokens=20, temperature=0)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing(method, fable):
    want = "".join(token.text for token in fable.generate(PROMPT, max_tokens=20, temperature=0))
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        processes = [context.Process(target=generate_in_a_process, args=(queue,)) for _ in range(2)]
        for process in processes:
            process.start()
    assert [queue.get(timeout=60) for _ in processes] == [want, want]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


# ---- memory ----

def resident():
    """Bytes, from the kernel; what malloc keeps is counted too."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="resident memory is read from /proc")


@linux
def test_a_thousand_tokens_need_no_more_than_a_hundred(fable):
    """But for the KV cache, which grows by 256 positions at a time, and the plan, made anew when it has no room for the
    partial results of so many keys."""
    ids = fable.tokenizer.encode_prompt(PROMPT)
    cache = 256 * fable.info["kv_bytes_per_token"]
    mx.reset_peak_memory()
    for count, _ in enumerate(_gomlx.stream(fable._engine.new_session(), None, ids, max_tokens=1000), 1):
        if count == 100:
            peak, active, rss = mx.get_peak_memory(), mx.get_active_memory(), resident()
        if count == 999:
            grown = mx.get_active_memory() - active
    assert count == 1000
    blocks = -(-(len(ids) + 999) // 256) - -(-(len(ids) + 99) // 256)
    assert abs(grown - blocks * cache) < 64 << 10 and mx.get_peak_memory() - peak < grown + (64 << 10)
    assert resident() - rss < blocks * cache + (2 << 20)


@linux
def test_many_generations_need_no_more_than_a_few(fable):
    ids = fable.tokenizer.encode_prompt(PROMPT)
    for i in range(25):
        run(fable._engine, ids, 30)
        if i == 4:
            mx.reset_peak_memory()
            run(fable._engine, ids, 30)
            peak, active, rss = mx.get_peak_memory(), mx.get_active_memory(), resident()
    assert mx.get_peak_memory() == peak and mx.get_active_memory() == active
    assert resident() - rss < 2 << 20


@linux
def test_close_gives_the_memory_back_at_once(big_folder):
    gc.collect()
    mx.clear_cache()
    active, rss = mx.get_active_memory(), resident()
    model = _gomlx.load_model(big_folder)
    session = model.new_session()
    stream = _gomlx.stream(session, None, LONG[:600], max_tokens=10)
    next(stream)
    assert mx.get_active_memory() - active > 30 << 20 and resident() - rss > 30 << 20
    model.close()
    model.close()
    assert mx.get_active_memory() == active
    assert resident() - rss < 10 << 20
    with pytest.raises(ValueError, match="closed"):
        model.info()
    assert list(stream) == []
