"""async_eval: jobs that wait are evaluated together, and what fails is its job's alone."""
import threading

import numpy as np
import pytest

import gomlx.core as mx


def busy():
    """A job that takes a while, so that others wait behind it."""
    x = y = mx.array(np.eye(700, dtype=np.float32))
    for _ in range(10):
        y = y @ x
    mx.async_eval(y)


def test_many_jobs():
    busy()
    made = []
    for i in range(100):
        made.append(mx.arange(50) * i + (made[-1] if i % 3 else 0))
        mx.async_eval(made[-1])
    mx.synchronize()
    want = None
    for i, one in enumerate(made):
        want = np.arange(50) * i + (want if i % 3 else 0)
        assert one.tolist() == want.tolist()


def test_the_first_error_is_said_and_the_others_have_their_values():
    x = mx.arange(10)
    mx.eval(x)
    for _ in range(3):
        busy()
        made = [x + i for i in range(8)]
        for i in (2, 5):
            made[i] = mx.take(x, mx.array([40 + i])) + 1
        after = made[5] * 2
        for one in made:
            mx.async_eval(one)
        with pytest.raises(IndexError, match="^array: index 42 is out of range"):
            mx.synchronize()
        mx.synchronize()
        for i, one in enumerate(made):
            if i in (2, 5):
                with pytest.raises(IndexError, match=f"it has no value, .*index {40 + i} "):
                    one.tolist()
            else:
                assert one.tolist() == list(range(i, 10 + i))
        with pytest.raises(IndexError, match="index 45"):
            mx.eval(after)


def test_jobs_with_large_arrays_are_not_held_together():
    mx.synchronize()
    before = mx.get_active_memory()
    busy()
    mx.reset_peak_memory()
    for i in range(40):
        mx.async_eval(mx.full((1 << 20,), i, dtype=mx.float32) * 2)
    mx.synchronize()
    assert mx.get_peak_memory() - before < 80 << 20     # of 160 MiB: the host decides how many wait
    assert mx.get_active_memory() - before < 8 << 20


def test_threads_hand_in_jobs():
    wrong = []

    def work(number):
        for k in range(30):
            x = mx.arange(100) * number + k
            mx.async_eval(x)
            if x.sum().item() != 4950 * number + 100 * k:
                wrong.append((number, k))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    mx.synchronize()
    assert not wrong
