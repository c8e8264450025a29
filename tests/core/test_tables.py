"""Arrays in other libraries' tables: pandas takes them as NumPy does, polars through Arrow's C data interface."""
import gc
import os
import sys
import threading
import time

import numpy as np
import pytest

import gomlx.core as mx

DTYPES = [mx.bool_, mx.int8, mx.int16, mx.int32, mx.int64, mx.uint8, mx.uint16, mx.uint32, mx.uint64, mx.float32,
          mx.float64]


@pytest.fixture(scope="module")
def pandas():
    return pytest.importorskip("pandas", reason="pandas is not installed")


@pytest.fixture(scope="module")
def polars():
    return pytest.importorskip("polars", reason="polars is not installed")


def values(shape, dtype):
    found = np.random.default_rng(0).integers(0, 100, shape)
    return mx.array(found % 2 == 0 if dtype == mx.bool_ else found).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 63, 64, 65, 1000])
def test_a_column(pandas, polars, n, dtype):
    a = values(n, dtype)
    want = np.asarray(a)
    theirs = (pandas.Series(a), pandas.DataFrame({"a": a})["a"]) if n else ()       # pandas forgets types of nothing
    for made in (polars.Series(a), polars.DataFrame({"a": a})["a"], *theirs):
        found = made.to_numpy()
        assert found.dtype == want.dtype and np.array_equal(found, want) and len(made) == n
    assert polars.Series(a).null_count() == 0


@pytest.mark.parametrize("dtype", [mx.bool_, mx.int16, mx.float32], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (5, 2), (9, 70), (300, 3)])
def test_a_table(pandas, polars, shape, dtype):
    a = values(shape, dtype)
    ours = polars.DataFrame(a)
    assert ours.shape == shape
    assert ours.columns == [f"column_{i}" for i in range(shape[1])] == polars.DataFrame(np.asarray(a)).columns
    assert np.array_equal(ours.to_numpy(), np.asarray(a))
    assert not shape[0] or np.array_equal(pandas.DataFrame(a).to_numpy(), np.asarray(a))
    names = [f"c{i}" for i in range(shape[1])]
    assert polars.DataFrame(a, schema=names).columns == names


def test_views_and_what_is_not_evaluated_yet(polars):
    a = mx.arange(60).reshape(6, 10)
    for made in (a.T, a[::2, 1::3], a[:, ::-1], mx.broadcast_to(mx.array([1, 2]), (4, 2)), a + 1, a[3], a[:, 4],
                 a[::-1, 2], mx.broadcast_to(mx.array(True), (17,)), mx.array(5).reshape(1, 1)):
        frame = polars.DataFrame(made) if made.ndim == 2 else polars.Series(made)
        assert np.array_equal(frame.to_numpy(), np.asarray(made))
    odd = mx.array([float("nan"), float("-inf"), -0.0])
    assert np.array_equal(polars.Series(odd).to_numpy(), np.asarray(odd), equal_nan=True)


@pytest.mark.parametrize("dtype", [mx.bool_, mx.uint8, mx.float16, mx.int32, mx.float64], ids=str)
def test_large_ones_in_every_layout(polars, dtype):
    """Several of the pieces that tables are copied in, and the last a part of one."""
    a = values((3000, 301), dtype)
    for made in (a, a.T, a[::-1, ::2], a[::3], mx.broadcast_to(a[:1], (5000, 301)), a[:, :1], a.reshape(-1)[5:],
                 a[:, 7], mx.broadcast_to(a[0, 0], (100_000,))):
        frame = polars.DataFrame(made) if made.ndim == 2 else polars.Series(made)
        assert np.array_equal(frame.to_numpy(), np.asarray(made))


def test_others_run_while_a_large_one_is_copied():
    a = mx.zeros((1 << 20, 16))[:, ::-1]
    mx.eval(a)
    turns, done = [0], threading.Event()

    def run():
        while not done.is_set():
            turns[0] += 1
            time.sleep(0)                                   # the others' turn

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)                             # nobody is made to give way
    other = threading.Thread(target=run)
    other.start()
    try:
        seen = set()
        for _ in range(50):
            before = turns[0]
            a.__arrow_c_array__()
            seen.add(turns[0] > before)
            if True in seen:
                break
        assert True in seen
    finally:
        done.set()
        sys.setswitchinterval(interval)
        other.join()


def test_a_table_is_a_copy(polars):
    a = mx.array([1, 2, 3])
    made = polars.Series(a)
    a[0] = 7
    assert made.to_list() == [1, 2, 3]
    column = polars.DataFrame(mx.arange(6).reshape(3, 2))["column_1"]       # it outlives its table
    gc.collect()
    assert column.to_list() == [1, 3, 5]


def test_what_arrow_has_not(polars):
    for a, error, words in ((mx.ones(3, mx.bfloat16), BufferError, "no bfloat16: astype"),
                            (mx.array([1 + 2j]), BufferError, "complex64"),
                            (mx.array(3), ValueError, "0 axes"), (mx.ones((2, 2, 2)), ValueError, "3 axes")):
        with pytest.raises(error, match=words):
            a.__arrow_c_array__()
    for arguments in ((1, 2), (None, None, None)):
        with pytest.raises(TypeError):
            mx.array([1]).__arrow_c_array__(*arguments)


def test_capsules_that_nobody_takes_are_freed():
    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    if not os.path.exists("/proc/self/statm"):
        pytest.skip("this system does not say how much memory is in use")
    a = mx.zeros((1000, 64))
    mx.eval(a)
    a.__arrow_c_array__(None)
    before = resident()
    for _ in range(400):                                    # 100 MB, if it were kept
        a.__arrow_c_array__(requested_schema=None)
    assert resident() - before < 20_000_000


def test_tables_become_arrays(pandas, polars):
    for made in (polars.Series([1, 2, 3]), pandas.Series([1, 2, 3])):
        assert mx.array(made).tolist() == [1, 2, 3]
    for library in (polars, pandas):
        assert mx.array(library.DataFrame({"a": [1.5, 2.0], "b": [3.0, 4.0]})).tolist() == [[1.5, 3], [2, 4]]
