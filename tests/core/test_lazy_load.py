"""Arrays of files that are read when they are evaluated: what they cost, and what becomes of them when the file
changes."""
import gc
import os
import signal
import threading
import time

import numpy as np
import pytest

import gomlx.core as mx

N = 1 << 20                                   # more than one piece of reading


@pytest.fixture(params=["safetensors", "npy"])
def stored(tmp_path, request):
    """(path, a function that loads the array x of it, its values)"""
    values = np.random.default_rng(0).standard_normal(N + 7).astype(np.float32)
    path = tmp_path / f"x.{request.param}"
    if request.param == "npy":
        np.save(path, values)
        return path, lambda: mx.load(path), values
    mx.save_safetensors(str(path), {"x": mx.array(values), "y": mx.arange(3), "none": mx.zeros((0, 2))}, {"k": "v"})
    return path, lambda: mx.load(path)["x"], values


def open_files():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_memory_is_taken_when_values_are_read(stored):
    path, load, values = stored
    gc.collect()
    mx.clear_cache()                          # a block of another test may be somewhat larger
    before, files = mx.get_active_memory(), open_files()
    a = load()
    assert mx.get_active_memory() == before and (a.shape, a.dtype) == ((N + 7,), mx.float32)
    mx.eval(a)
    assert before + 4 * N <= mx.get_active_memory() < before + 4.3 * N
    gc.collect()
    assert open_files() == files              # what was read needs no file
    np.testing.assert_array_equal(np.asarray(a), values)
    b = load()
    del b                                     # nor what is never read
    gc.collect()
    assert open_files() == files


def test_what_is_computed_first_works_in_the_memory_of_the_load(stored):
    _, load, values = stored
    mx.eval(load() * 2)                       # whatever the engine keeps for itself is there
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    a = load() * 2
    mx.eval(a)
    assert mx.get_peak_memory() - before < 5 * N
    np.testing.assert_array_equal(np.asarray(a), values * 2)


def test_a_file_that_is_deleted_or_replaced_gives_its_own_values(stored, tmp_path):
    path, load, values = stored
    a, b = load(), load()
    mx.save(str(tmp_path / "other.npy"), mx.zeros(3))
    os.replace(tmp_path / "other.npy", path)
    np.testing.assert_array_equal(np.asarray(a), values)
    path.unlink()
    np.testing.assert_array_equal(np.asarray(b), values)


def test_a_file_may_be_saved_over_itself(stored):
    path, load, values = stored
    a = load()
    if path.suffix == ".npy":
        mx.save(str(path), a + 1)
    else:
        mx.save_safetensors(str(path), {"x": a + 1})
    np.testing.assert_array_equal(np.asarray(load()), values + 1)
    np.testing.assert_array_equal(np.asarray(a), values)


@pytest.mark.parametrize("left", [0, 100, 4 * N])
def test_a_file_cut_short_is_an_error_of_the_evaluation(stored, left):
    path, load, _ = stored
    a, other = load(), mx.ones(3) + 1
    os.truncate(path, left)
    with pytest.raises(RuntimeError, match=rf"{path.name} was cut short after it was opened: it has {left} bytes"):
        mx.eval(other, a * 2)
    assert other.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="cut short"):
        a.tolist()


def test_a_file_that_is_cut_while_it_is_read_never_kills(stored):
    path, load, values = stored
    whole = path.read_bytes()
    stop = threading.Event()

    def cut():
        while not stop.is_set():
            os.truncate(path, len(whole) // 3)
            with open(path, "r+b") as file:
                file.write(whole)
    lazy = [load() for _ in range(40)]
    thread = threading.Thread(target=cut)
    thread.start()
    try:
        for a in lazy:
            try:
                mx.eval(a)
            except RuntimeError as error:
                assert path.name in str(error)          # noqa: PT017 - either outcome is right
    finally:
        stop.set()
        thread.join()


def test_an_evaluation_that_fails_leaves_what_it_did_not_need(stored):
    _, load, values = stored
    gc.collect()
    files = open_files()
    a, b = load(), load() + 1
    lost = mx.take(a[:5], mx.array([5])) * 2
    beside = mx.array([1.0, 2.0]) * 3
    with pytest.raises(IndexError, match="index 5 is out of range"):
        mx.eval(a, b, lost, beside)
    assert beside.tolist() == [3, 6] and b[-1].item() == values[-1] + 1
    np.testing.assert_array_equal(np.asarray(a), values)
    with pytest.raises(IndexError, match="it has no value, for an evaluation failed: .*index 5"):
        mx.eval(lost)
    with pytest.raises(IndexError, match="it has no value"):
        (lost + 1).tolist()
    gc.collect()
    assert open_files() == files


def test_what_could_not_be_read_may_be_read_later(stored):
    path, load, values = stored
    whole = path.read_bytes()
    files = open_files()
    a = load()
    b = a * 2
    os.truncate(path, len(whole) // 2)
    with pytest.raises(RuntimeError, match="cut short"):
        mx.eval(a)
    path.write_bytes(whole)
    np.testing.assert_array_equal(np.asarray(b), values * 2)
    np.testing.assert_array_equal(np.asarray(a), values)
    del a, b
    gc.collect()
    assert open_files() == files


def products_of(x, seconds):
    """How many products with x take so long, at least: a GPU does two hundred in ten milliseconds. What the first ones
    take besides, in which kernels are loaded, does not count."""
    mx.eval(x @ x @ x)
    count, took = 1, 0.0
    while took < seconds / 30:
        count *= 2
        y = x
        for _ in range(count):
            y = y @ x
        started = time.perf_counter()
        mx.eval(y)
        took = time.perf_counter() - started
    return int(count * seconds / took) + 1


def test_arrays_of_an_interrupted_evaluation_may_be_read_later(stored):
    """The evaluation of what is loaded, of numbers, and of products that take long ends in the middle of these."""
    _, load, values = stored
    gc.collect()
    files = open_files()
    x = mx.random.normal((1000, 1000)) * 0.03
    first, slow, last, numbers = load(), x, load(), mx.arange(5)
    early = first[:3] * 2
    for _ in range(products_of(x, 5.0)):
        slow = slow @ x

    def stop(*_):
        raise TimeoutError
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError):
            mx.eval(early, first, slow, last + slow[0, 0], numbers + slow.astype(mx.int32)[0, 0], last)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(RuntimeError, match="interrupted"):
        mx.eval(slow)
    np.testing.assert_array_equal(np.asarray(early), values[:3] * 2)
    np.testing.assert_array_equal(np.asarray(first), values)
    np.testing.assert_array_equal(np.asarray(last), values)
    assert numbers.tolist() == [0, 1, 2, 3, 4]
    gc.collect()
    assert open_files() == files


def test_what_is_changed_in_place_is_read_as_it_is_then(stored):
    path, load, values = stored
    a, b = load(), load()
    mx.eval(a)
    last = path.read_bytes().rfind(values[-2:].tobytes()) + 4
    with open(path, "r+b") as file:
        file.seek(last)
        file.write(np.float32(5).tobytes())
    assert a[-1].item() == values[-1] and b[-1].item() == 5


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", ">i2", "<i2", ">u4", ">i8", ">f2", ">f4", "<f4", ">f8", "<f8",
                                   ">c8", "<c8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_of_every_kind(tmp_path, dtype, order):
    values = (np.arange(300 * 700).reshape(300, 700) % 251).astype(dtype)
    if dtype.endswith("c8"):
        values = values * (1 + 2j)
    np.save(tmp_path / "a.npy", np.asarray(values.astype(dtype), order=order))
    got = mx.load(tmp_path / "a.npy")
    assert got.shape == (300, 700) and np.array_equal(np.asarray(got), values)
    np.save(tmp_path / "b.npy", np.asarray(values[:3, :5].astype(dtype), order=order))
    assert np.array_equal(np.asarray(mx.load(tmp_path / "b.npy")), values[:3, :5])


def test_truths_of_a_file_are_truths(tmp_path):
    mx.save_safetensors(str(tmp_path / "b.safetensors"), {"b": mx.array([True, False, True])})
    data = (tmp_path / "b.safetensors").read_bytes()
    (tmp_path / "b.safetensors").write_bytes(data[:-3] + b"\x02\x00\xff")
    assert mx.load(tmp_path / "b.safetensors")["b"].astype(mx.int32).tolist() == [1, 0, 1]


def test_headers_are_checked_at_once(tmp_path, stored):
    path, load, _ = stored
    for size in (len(path.read_bytes()) - 1, 60, 7, 0):
        os.truncate(path, size)
        with pytest.raises(RuntimeError):
            load()
    with pytest.raises(RuntimeError):
        mx.load(tmp_path / f"absent{path.suffix}")


def test_thousands_of_small_files_may_be_loaded(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    files = open_files()
    arrays = [mx.load(tmp_path / "a.npy") for _ in range(3000)]
    assert open_files() == files and arrays[-1].tolist() == [0, 1, 2, 3, 4]


def test_lazy_arrays_in_transforms(stored, tmp_path):
    _, load, values = stored
    x = mx.array([1.0, 2.0])
    a = load()
    np.testing.assert_array_equal(np.asarray(mx.compile(lambda x: x * a[:2])(x)), values[:2] * [1, 2])
    b = load()[:2]
    assert mx.grad(lambda x: (x * b).sum())(x).tolist() == values[:2].tolist()
    c = load()[:2]
    assert mx.vmap(lambda x: x * c[0])(x).tolist() == (values[0] * np.float32([1, 2])).tolist()
    d = load()[:2]
    mx.export_function(str(tmp_path / "f.mlxfn"), lambda x: x + d, x)
    assert mx.import_function(str(tmp_path / "f.mlxfn"))(x)[0].tolist() == (values[:2] + np.float32([1, 2])).tolist()
    mx.async_eval(e := load() + 1)
    assert e[0].item() == values[0] + 1
