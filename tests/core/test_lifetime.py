"""Who keeps what alive: references, exports and imports, garbage cycles, threads, signals."""
import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import gomlx
import gomlx.core as mx
from gomlx import _gomlx


def active():
    gc.collect()
    mx.eval(mx.array(0) + 1)       # gives back what waits for the GIL
    return mx.get_active_memory()


def exercise():
    """Each kind of object and of failure once."""
    a = mx.array(np.arange(12.0).reshape(3, 4))
    b = (a + 1) * 2 - a.T.T
    b += 1
    b[1:, ::2].tolist(), list(b), repr(b), b.sum(), mx.exp(b), mx.where(b > 0, b, 0), b[mx.array([0, 1])], b[None]
    np.asarray(b), memoryview(b), np.from_dlpack(b), mx.from_dlpack(np.arange(3.0)), mx.asarray(np.arange(3),
                                                                                                copy=False)
    b.__dlpack__(), b.__dlpack__(max_version=(1, 0)), b.__reduce__(), mx.array([a, b]), mx.array([[1, 2], [3, 4]])
    for wrong in (lambda: a + "x", lambda: a[100], lambda: mx.array("x"), lambda: mx.array([[1], [1, 2]]),
                  lambda: a + mx.array([1, 2]), lambda: mx.from_dlpack(1),
                  lambda: np.asarray(mx.array([1.0], mx.bfloat16)),
                  lambda: mx.sum(a, axis="x"), lambda: mx.array([a, 1]), lambda: mx.concatenate([a, 1]),
                  lambda: a.item(),
                  lambda: mx.array(np.zeros(2, ">f4"))):
        with pytest.raises((ValueError, IndexError, TypeError, BufferError)):
            wrong()


def test_nothing_leaks():
    exercise()
    before = active()
    references = sys.gettotalrefcount() if hasattr(sys, "gettotalrefcount") else None
    objects = len(gc.get_objects())
    for _ in range(50):
        exercise()
    assert active() == before
    assert len(gc.get_objects()) < objects + 50
    assert references is None or sys.gettotalrefcount() < references + 200


@pytest.mark.parametrize("make", [mx.array, lambda v: mx.array([v]), mx.exp, mx.from_dlpack, lambda v: mx.array(1) + v])
def test_arguments_keep_their_reference_count(make):
    value = np.arange(4.0)
    count = sys.getrefcount(value)
    for _ in range(10):
        make(value)
    active()
    assert sys.getrefcount(value) == count


def test_singletons_keep_their_reference_count():
    a = mx.array([1.0])
    def counts():
        return [sys.getrefcount(x) for x in (mx.float32, mx.array, a)]
    a.dtype, a + 1
    before = counts()
    for _ in range(100):
        a.dtype, a + 1, mx.exp(a), a.astype(mx.float32), -a, a[0], a.sum(), [*a], a == 1, a.T, mx.add(a, a)
    assert counts() == before


def test_weak_references():
    a = mx.array([1])
    r = weakref.ref(a)
    assert r() is a
    del a
    assert r() is None


def test_export_outlives_the_array():
    a = mx.array(np.arange(1000.0))
    view, pack = np.asarray(a), np.from_dlpack(a + 0)
    del a
    gc.collect()
    others = [mx.array(np.full(1000, float(i))) for i in range(20)]
    mx.eval(others)
    np.testing.assert_array_equal(view, np.arange(1000))
    np.testing.assert_array_equal(pack, np.arange(1000))


def test_export_memory_comes_back():
    before = active()
    a = mx.array(np.zeros(1 << 16, np.float32))
    view = np.asarray(a)
    del a
    assert active() >= before + (1 << 18)
    del view
    assert active() <= before + 64


def test_import_is_held_as_long_as_an_array_needs_it():
    class Watched(np.ndarray):
        pass
    for share in (lambda x: mx.from_dlpack(x, copy=False), lambda x: mx.asarray(x, copy=False)):
        x = np.arange(100, dtype="f4").view(Watched)     # float64 would be converted, and so copied
        gone = weakref.ref(x)
        a = share(x)
        del x
        b = a[50:] + 1             # a node in between
        del a
        gc.collect()
        assert gone() is not None
        assert b[0].item() == 51
        del b
        active()
        assert gone() is None


def test_copy_does_not_hold_its_source():
    class Watched(np.ndarray):
        pass
    for make in (lambda: np.arange(100.0), lambda: np.arange(100.0)[::-2], lambda: np.arange(100, dtype="i4")):
        x = make().view(Watched)
        gone = weakref.ref(x)
        a = mx.array(x)
        first = x[0].item()
        x[0] = -1
        del x
        active()
        assert gone() is None and a[0].item() == first


def test_capsule_nobody_takes():
    before = active()
    for version in (None, (1, 0)):
        capsule = mx.array(np.zeros(1 << 16, np.float32)).__dlpack__(max_version=version)
        del capsule
    assert active() <= before + 64


def test_cycles_through_a_subclass_are_collected():
    class Node(mx.array):
        pass
    a = Node([1])
    a.me = a
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


def test_iterator_in_a_cycle_is_collected():
    class Node(mx.array):
        pass
    a = Node([1, 2])
    a.iterator = iter(a)
    gone = weakref.ref(a)
    del a
    gc.collect()
    assert gone() is None


def test_long_chain_dies_without_recursion():
    a = mx.array([0.0])
    for _ in range(300000):
        a = a + 1
    del a
    assert mx.array(1).item() == 1


def run_threads(n, work):
    errors = []

    def guarded(i):
        try:
            work(i)
        except BaseException as e:      # noqa: BLE001 - whatever it is, the test reports it
            errors.append(e)
    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors, errors


def test_threads_evaluate_a_shared_lazy_array():
    for _ in range(20):
        a = mx.array(np.arange(1000.0))
        for _ in range(20):
            a = a * 0.5 + 1
        results = [None] * 8

        def work(i, a=a, results=results):
            results[i] = (a + i).sum().item()
        run_threads(8, work)
        assert [r - results[0] for r in results] == pytest.approx([1000 * i for i in range(8)], rel=1e-4, abs=0.5)


def test_threads_change_a_handle_that_others_read():
    a = mx.array(np.zeros(100))
    stop = time.monotonic() + 1

    def work(i):
        nonlocal a
        while time.monotonic() < stop:
            if i == 0:
                a += 1
            else:
                values = {1: lambda: np.array(a), 2: lambda: np.array(a.tolist()),
                          3: lambda: np.array(a[::-1] * 1)}[i]()
                assert (values == values[0]).all()
    run_threads(4, work)


def test_threads_export_and_import():
    x = np.arange(1000.0)

    def work(i):
        for _ in range(200):
            a = mx.from_dlpack(x, copy=False).astype(mx.float32) + i
            view = np.asarray(a)
            assert view[-1] == 999 + i
            b = mx.from_dlpack(view, copy=False)
            del view
            assert b[0].item() == i
    run_threads(4, work)


def test_evaluation_releases_the_gil():
    """Another thread counts while a large product is computed."""
    n = 1200
    a = mx.array(np.random.default_rng(0).standard_normal((n, n)).astype(np.float32))

    def products(count):
        b = a
        for _ in range(count):
            b = (b @ a) * (1 / 40)
        return b
    mx.eval(products(8))
    started = time.perf_counter()
    mx.eval(products(8))
    b = products(8 * min(200, 1 + int(0.1 / (time.perf_counter() - started))))    # a GPU has eight within a millisecond
    ticks, done = [0], threading.Event()

    def count():
        while not done.is_set():
            ticks[0] += 1
            time.sleep(0.0001)
    t = threading.Thread(target=count)
    t.start()
    mx.eval(b)
    done.set()
    t.join()
    assert ticks[0] > 10


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers")
def test_signals_interrupt_evaluation():
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop
    n = 1500
    a = mx.array(np.random.default_rng(0).standard_normal((n, n)).astype(np.float32))
    b = a
    for _ in range(400):
        b = (b @ a) * (1 / 40)
    mx.eval(a)
    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    start = time.monotonic()
    try:
        with pytest.raises(Stop):
            mx.eval(b)
        assert time.monotonic() - start < 5       # all of it takes much longer
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert (a[0, 0] + 0).item() == a[0, 0].item()       # the engine is usable
    with pytest.raises(RuntimeError):
        mx.eval(b)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers")
def test_an_interrupted_step_ends_first():
    """What takes less than half a second more is not lost: the arrays of a training step have no others behind them."""
    def handler(*_):
        raise KeyboardInterrupt
    a = mx.array(np.random.default_rng(0).standard_normal((400, 400)).astype(np.float32))
    mx.eval(a)
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for seconds in (0.005, 0.02, 0.06, 0.1):
            b = a
            for _ in range(20):
                b = (b @ a) * (1 / 20)
            raised = False
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                mx.eval(b)
                while True:
                    pass
            except KeyboardInterrupt:
                raised = True
            assert raised and np.isfinite(np.array(b)).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers")
def test_random_numbers_are_drawn_after_an_interruption():
    class Stop(Exception):
        pass

    def handler(*_):
        raise Stop
    old = signal.signal(signal.SIGALRM, handler)
    try:
        b = mx.random.normal((1500, 1500))
        for _ in range(10):                             # keys that nobody evaluates follow the one that is lost
            mx.random.normal((2,))
        for _ in range(4000):                           # a GPU takes half a second too
            b = (b @ b) * (1 / 40)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Stop):
            mx.eval(b)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert np.isfinite(np.array(mx.random.normal((3,)))).all()
    mx.eval(mx.random.state)


def test_fork_child_evaluates():
    a = mx.array(np.arange(100000.0))
    assert (a + 1).sum().item() > 0
    pid = os.fork()
    if pid == 0:
        ok = abs((a * 2).sum().item() / (100000 * 99999) - 1) < 1e-5
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0


# ---- models, sessions, streams ----

@pytest.fixture(scope="module")
def fable():
    path = os.path.join(os.path.dirname(gomlx.__file__), "models", "fable-Q8_0.gguf")
    return path, _gomlx.Tokenizer.from_gguf(path)


def test_close_frees_at_once(fable):
    path, tokenizer = fable
    model = _gomlx.load_model(path)
    session = model.new_session()
    stream = _gomlx.stream(session, tokenizer, tokenizer.encode("Once upon a time"))
    next(stream)
    model.close()
    model.close()
    assert model.closed and list(stream) == []
    assert stream.stats()["prompt_tokens"] == 4
    for use in (model.info, model.new_session, lambda: model.vocab_size, lambda: model.logits([[1]]),
                lambda: session.length,
                lambda: session.truncate(0), lambda: _gomlx.stream(session, tokenizer, [1])):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_sessions_close_one_by_one(fable):
    path, tokenizer = fable
    model = _gomlx.load_model(path)
    sessions = [model.new_session() for _ in range(4)]
    sessions[2].close()
    del sessions[0]
    gc.collect()
    ids = tokenizer.encode("Once")
    for s in sessions[:1] + sessions[2:]:
        assert len(list(_gomlx.stream(s, tokenizer, ids, max_tokens=2))) == 2
    sessions[0].close()
    sessions[0].close()
    model.close()


def test_a_model_dies_with_its_last_user(fable):
    path, tokenizer = fable
    stream = _gomlx.stream(_gomlx.load_model(path).new_session(), tokenizer, tokenizer.encode("Once"), max_tokens=3)
    gc.collect()
    assert [t.finish_reason for t in stream] == [None, None, "length"]


def test_one_stream_per_session(fable):
    path, tokenizer = fable
    session = _gomlx.load_model(path).new_session()
    first = _gomlx.stream(session, tokenizer, [1, 2])
    next(first)
    with pytest.raises(RuntimeError):
        _gomlx.stream(session, tokenizer, [1])
    first.close()
    assert list(first) == []
    with _gomlx.stream(session, None, [1, 2, 3], max_tokens=1) as second:
        assert next(second).text == ""
    assert session.length == 3


def test_a_stream_in_two_threads(fable):
    """Every token comes once, the other thread is told that the stream is busy, cancel and close end it from
    anywhere."""
    path, tokenizer = fable
    model = _gomlx.load_model(path)
    ids = tokenizer.encode("Once upon a time")
    alone = [t.id for t in _gomlx.stream(model.new_session(), tokenizer, ids, max_tokens=200)]
    for end in ("cancel", "close", None):
        stream = _gomlx.stream(model.new_session(), tokenizer, ids, max_tokens=200)
        got = []

        def work(i, stream=stream, got=got, end=end):
            while True:
                try:
                    token = next(stream, None)
                except ValueError as e:
                    assert "in use by another thread" in str(e)
                    continue
                if token is None:
                    return
                got.append(token.id)
                if end and len(got) > 20:
                    getattr(stream, end)()
        run_threads(3, work)
        got = [i for i in got if i >= 0]
        assert sorted(got) == sorted(alone[:len(got)])
        assert len(got) == len(alone) if end is None else 20 < len(got) < 60
        assert stream.stats()["generated_tokens"] >= len(got)


def test_model_closed_while_streams_run(fable):
    path, tokenizer = fable
    model = _gomlx.load_model(path)
    ids = tokenizer.encode("Once upon a time")

    def work(i):
        if i == 0:
            time.sleep(0.05)
            model.close()
            return
        try:
            while True:
                for _ in _gomlx.stream(model.new_session(), tokenizer, ids, max_tokens=50):
                    pass
        except ValueError as e:
            assert "closed" in str(e)
    run_threads(4, work)


def test_a_stream_goes_while_another_thread_closes_its_model(fable):
    """close() frees the C stream without the GIL: the thread that has the stream may drop it, and its session,
    meanwhile. Many stop texts make that long enough to happen every time."""
    path, tokenizer = fable
    texts = [f"no such text {i}" for i in range(20000)]
    for _ in range(3):
        model = _gomlx.load_model(path)
        session = model.new_session()
        stream = _gomlx.stream(session, tokenizer, [1, 2], stop_texts=texts)
        closer = threading.Thread(target=model.close)
        closer.start()
        with pytest.raises(ValueError, match="closed"):
            while True:
                session.length
        del stream, session
        closer.join()
        assert model.closed


class Collected:
    """Within it the n-th garbage collection does something; there is one at nearly every allocation of a container,
    as in any program from time to time, where finalizers or threads that get their turn may do the same."""

    def __init__(self, n, action):
        self.left, self.action = n, action

    def __call__(self, phase, _):
        if phase == "start":
            self.left -= 1
            if self.left == -1:
                self.action()

    def __enter__(self):
        self.lists = [[] for _ in range(200)]       # else the interpreter takes lists that it keeps for that
        self.threshold = gc.get_threshold()
        gc.callbacks.append(self)
        gc.set_threshold(1)

    def __exit__(self, *_):
        gc.set_threshold(*self.threshold)
        gc.callbacks.remove(self)


@pytest.mark.parametrize("use", ["stream", "next", "activations", "new_session", "fork", "restore_session", "info",
                                 "weight_names", "model activations", "step", "inspect", "logits"])
def test_a_model_is_closed_by_what_runs_within_a_call(fable, use):
    path, tokenizer = fable
    closed = 0
    for n in range(12):
        model = _gomlx.load_model(path)
        seen = [a[0] for a in model.activations()][:2]
        session = model.new_session()
        stream = _gomlx.stream(session, tokenizer, [1, 2], max_tokens=4, top_logprobs=5, activations=seen)
        saved = b""
        if use in ("fork", "restore_session", "stream"):
            next(stream)
            stream.close()
            saved = session.save()
        elif use in ("activations", "next"):
            next(stream)
        decoder = model.new_decoder()
        if use == "step":
            decoder.add(stream)
        call = {"stream": lambda: next(_gomlx.stream(session, tokenizer, [1, 2], profile=True)),
                "next": lambda: next(stream), "activations": stream.activations, "new_session": model.new_session,
                "fork": session.fork, "restore_session": lambda: model.restore_session(saved),
                "info": model.info, "weight_names": model.weight_names, "model activations": model.activations,
                "step": decoder.step, "inspect": lambda: model.inspect([1, 2], seen),
                "logits": lambda: model.logits([[1], [2]])}[use]
        with Collected(n, model.close):
            try:
                result = call()
            except (ValueError, StopIteration, gomlx.Error) as e:
                assert isinstance(e, StopIteration) or "closed" in str(e) or "ended" in str(e)
            else:
                if isinstance(result, _gomlx.Session) and model.closed:
                    with pytest.raises(ValueError, match="closed"):
                        result.length
        closed += model.closed
        model.close()
    assert closed > 0 or sys.version_info >= (3, 12)       # where only the interpreter's loop collects


def test_a_model_is_closed_by_its_arguments(fable):
    path, _ = fable
    model = _gomlx.load_model(path)
    session = model.new_session()
    saved = session.save()

    class Closes:
        def __init__(self, *closes):
            self.closes = closes

        def __index__(self):
            for x in self.closes:
                x.close()
            return 0

        def __iter__(self):
            self.__index__()
            return iter(saved)
    with pytest.raises(ValueError, match="closed"):
        session.truncate(Closes(session))
    with pytest.raises(ValueError, match="closed"):
        model.restore_session(Closes(model))


def test_interrupted_stream_leaves_its_session(fable):
    class Stop(Exception):
        pass

    def handler(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop
    path, tokenizer = fable
    model = _gomlx.load_model(path)
    session = model.new_session()
    ids = tokenizer.encode("Once upon a time there was a fox. " * 60)
    old = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.03, 0.03)
    try:
        with pytest.raises(Stop):
            while True:
                session.truncate(0)
                next(_gomlx.stream(session, tokenizer, ids))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert 0 <= session.length <= len(ids)
    again = [t.id for t in _gomlx.stream(session, tokenizer, ids, max_tokens=5)]
    assert again == [t.id for t in _gomlx.stream(model.new_session(), tokenizer, ids, max_tokens=5)]


def test_progress_and_its_errors(fable):
    path, _ = fable
    seen = []
    _gomlx.load_model(path, progress=seen.append).close()
    assert seen == sorted(seen) and seen[-1] == 1.0

    def fail(_):
        raise KeyError("stop")
    with pytest.raises(KeyError):
        _gomlx.load_model(path, progress=fail)


def test_load_arguments(fable, tmp_path):
    path, _ = fable
    for arguments, error in (({"dtype": "float7"}, ValueError), ({"activations": "int4"}, ValueError),
                             ({"threads": "two"}, TypeError),
                             ({"kv_dtype": 3}, TypeError), ({"context_length": "x"}, TypeError),
                             ({"nonsense": 1}, TypeError)):
        with pytest.raises(error):
            _gomlx.load_model(path, **arguments)
    with pytest.raises(FileNotFoundError):
        _gomlx.load_model(tmp_path / "none.gguf")
    with pytest.raises(TypeError):
        _gomlx.load_model(None)
    with _gomlx.stream(_gomlx.load_model(path, kv_dtype="float32", context_length=64).new_session(), None,
                       [1]) as stream:
        assert next(stream).id >= 0


def test_tokenizer_object(fable):
    path, tokenizer = fable

    class Mine(_gomlx.Tokenizer):
        pass
    mine = Mine.from_gguf(path)
    assert type(mine) is Mine and mine.vocab_size == tokenizer.vocab_size
    text = "Once upon a time, a naïve 🦊."
    ids = mine.encode(text)
    assert mine.decode(ids) == text and mine.decode(iter(ids)) == text and mine.decode(np.array(ids)) == text
    stream = mine.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == text
    assert mine.encode("a\ud800b") == mine.encode("a\ufffdb")
    assert mine.token_to_id(mine.id_to_token(ids[0])) == ids[0] and mine.token_to_id("no such token at all") is None
    assert mine.id_to_token(10**6) is None and mine.id_to_token(-1) is None and not mine.is_special(ids[0])
    with pytest.raises(TypeError):
        _gomlx.Tokenizer()
    assert mine.encode(text.encode()) == ids
    for wrong in (None, bytearray(b"text"), 1):
        with pytest.raises(TypeError):
            mine.encode(wrong)
    for wrong in ("text", [1.5], None, ["a"]):
        with pytest.raises(TypeError):
            mine.decode(wrong)
    with pytest.raises(OverflowError):
        mine.decode([2**40])


def test_steps_of_one_evaluation_work_in_the_memory_of_one_array():
    def peak(f):
        gc.collect()
        mx.clear_cache()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        mx.eval(f())
        return mx.get_peak_memory() - before

    def chain():
        x = mx.arange(1 << 20).astype(mx.float32)
        for _ in range(5):
            x = mx.sin(x).reshape(1024, 1024).reshape(-1) + 1
        return x

    def filled():
        x = mx.zeros((16, 1 << 16))
        for i in range(16):
            x[i] = i
        return x
    size = 4 << 20
    assert size <= peak(chain) < 2.5 * size and size <= peak(filled) < 1.5 * size


def test_memory_that_is_kept_is_what_was_in_use_at_once():
    mx.clear_cache()
    before = mx.get_active_memory()
    _gomlx.keep_memory(True)
    try:
        mx.reset_peak_memory()
        for i in range(1, 9):                                   # sizes of which none fits the others
            mx.eval(mx.zeros((i << 20,), mx.float32) + 1)
        taken = mx.get_peak_memory() - before
        assert taken >= 32 << 20 and mx.get_cache_memory() <= taken * 17 // 16
    finally:
        _gomlx.keep_memory(False)


def test_memory_that_is_taken_again_is_kept_as_long_as_it_is_asked_for():
    before = mx.set_cache_limit(1 << 20)

    def step():
        mx.eval(mx.zeros((5 << 20,), mx.float32) + 1)           # twenty megabytes, and what they are made of
    try:
        step()
        assert mx.get_cache_memory() <= 1 << 20
        _gomlx.keep_memory(True)
        _gomlx.keep_memory(True)
        step()
        kept = mx.get_cache_memory()
        step()
        assert 20 << 20 <= mx.get_cache_memory() <= kept + (4 << 20)
        _gomlx.keep_memory(False)
        assert mx.get_cache_memory() >= 20 << 20                # another still asks for it
        _gomlx.keep_memory(False)
        assert mx.get_cache_memory() <= 1 << 20
    finally:
        mx.set_cache_limit(before)
