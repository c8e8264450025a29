"""Reading arrays out, giving their memory back, and evaluation that only tells of errors."""
import gc
import logging
import math

import numpy as np
import pytest

import gomlx
import gomlx.core as mx

VIEWS = {"row-major": lambda a: a, "transposed": lambda a: a.T, "reversed": lambda a: a[::-1, ::2],
         "broadcast": lambda a: mx.broadcast_to(a[:1], (3, a.shape[1]))}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["bool_", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32",
                                   "float64"])
def test_flat_lists(dtype, view):
    a = VIEWS[view](mx.array(np.arange(12).reshape(3, 4) - 2 * (dtype[0] != "u"), getattr(mx, dtype)))
    flat = [x for row in a.tolist() for x in row]
    assert a.floats() == flat and {type(x) for x in a.floats()} == {float}
    if dtype in ("bool_", "uint8", "int32", "int64", "uint64"):
        assert a.ints() == a.int32s() == flat and {type(x) for x in a.ints()} == {int}
    else:
        for read in (a.ints, a.int32s):
            with pytest.raises(TypeError, match="astype"):
                read()
        assert a.astype(mx.int32).ints() == flat


def test_flat_lists_of_the_odd():
    assert mx.array(3).ints() == [3] and mx.zeros((0, 3)).floats() == [] and mx.array(True).int32s() == [1]
    assert math.isnan(mx.array([math.nan]).floats()[0])
    assert mx.array([2**40, 2**63], mx.uint64).ints() == [2**40, 2**63]
    for beyond in (2**31, -2**31 - 1):
        with pytest.raises(OverflowError, match=str(beyond)):
            mx.array([1, beyond]).int32s()
    with pytest.raises(TypeError, match="complex64"):
        mx.array([1j]).floats()


def test_one_size_and_the_strides():
    a = mx.zeros((2, 3, 4), mx.float16)
    assert [a.dim(i) for i in (0, 1, 2, -1, -3)] == [2, 3, 4, 4, 2] and a.dim(axis=1) == 3
    for axis in (3, -4):
        with pytest.raises(gomlx.AxisError, match=f"{axis} is out of range for 3"):
            a.dim(axis)
    with pytest.raises(TypeError):
        a.dim("x")
    x = np.zeros((2, 3, 4), np.float16)
    assert a.strides == x.strides and a.T.strides == x.T.strides and a[:, ::2].strides == x[:, ::2].strides
    assert (a + 1).strides == memoryview(a + 1).strides and mx.array(1).strides == ()


def test_free_gives_memory_back_at_once():
    gc.collect()
    before = mx.get_active_memory()
    a = mx.zeros((1 << 18,)) + 1
    mx.eval(a)
    assert mx.get_active_memory() >= before + (1 << 20)
    a.free()
    assert mx.get_active_memory() <= before + (1 << 10)
    a.free()
    assert a.shape == (1 << 18,) and a.dtype == mx.float32
    for use in (a.tolist, a.floats, lambda: np.asarray(a), lambda: memoryview(a), lambda: mx.eval(a + 1),
                lambda: a.sum().item(), lambda: a[0].item(), lambda: a.strides, lambda: np.from_dlpack(a),
                lambda: bytes(a)):
        with pytest.raises(RuntimeError, match="freed"):
            use()
    a[:1] = 2
    with pytest.raises(RuntimeError, match="freed"):
        mx.eval(a)


def test_free_leaves_others_what_they_have():
    a = mx.arange(6) * 2
    view, later, exported, alias = a[1:], a + 1, np.asarray(a), mx.array(a)
    a.free()
    assert view.tolist() == [2, 4, 6, 8, 10] and later.tolist() == [1, 3, 5, 7, 9, 11]
    assert exported.tolist() == alias.tolist() == [0, 2, 4, 6, 8, 10]
    lazy = mx.ones(3) + 1
    lazy.free()                       # was never computed, and will not be
    with pytest.raises(RuntimeError, match="freed"):
        lazy.tolist()


def test_an_array_in_a_with_statement():
    with mx.ones(3) * 2 as a:
        assert a.tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match="freed"):
        a.tolist()
    with pytest.raises(KeyError), mx.ones(3) as b:
        raise KeyError
    with pytest.raises(RuntimeError, match="freed"):
        mx.eval(b)


def test_materialize_tells_of_errors_and_returns(caplog):
    a, b = mx.ones(3) + 1, mx.arange(2) * 3
    with caplog.at_level(logging.ERROR, "gomlx"):
        assert mx.materialize(a, [{"b": b}]) is True and not caplog.records
        assert mx.materialize(mx.arange(3)[mx.array([7])]) is False
    record, = caplog.records
    assert "index 7 is out of range" in record.getMessage() and record.levelno == logging.ERROR
    assert a.tolist() == [2, 2, 2] and b.tolist() == [0, 3]


def test_arguments_by_name():
    old = mx.set_cache_limit(limit=1 << 20)
    try:
        assert mx.set_cache_limit(limit=old) == 1 << 20
        assert mx.set_memory_limit(limit=mx.get_memory_limit()) == mx.get_memory_limit()
        assert mx.set_wired_limit(limit=5) == 0 and mx.set_wired_limit(5) == 0
        for name in ("cache", "memory", "wired"):
            with pytest.warns(DeprecationWarning):
                getattr(mx.metal, f"set_{name}_limit")(limit=old if name == "cache" else mx.get_memory_limit())
            with pytest.raises(TypeError):
                getattr(mx, f"set_{name}_limit")()
    finally:
        mx.set_cache_limit(old)
    x = mx.array([6.0, 3.0])
    for name, want in (("add", 8), ("subtract", 4), ("multiply", 12), ("divide", 3), ("maximum", 6), ("minimum", 2)):
        assert getattr(x.at[0], name)(value=2).tolist() == getattr(x.at[0], name)(2).tolist() == [want, 3]
    assert x.astype(mx.int32, mx.cpu).dtype == x.astype(dtype=mx.int32, stream=mx.cpu).dtype == mx.int32
    with pytest.raises(TypeError):
        x.astype(mx.int32, "x")
    rotary = {"traditional": False, "base": 10000.0, "scale": 1.0, "offset": 0}
    y = mx.ones((1, 1, 3, 8))
    assert mx.fast.rope(a=y, dims=8, **rotary).tolist() == mx.fast.rope(y, 8, **rotary).tolist()


def test_buffer_sizes_of_what_is_evaluated():
    a = mx.ones((1 << 10,)) + 1
    with pytest.raises(ValueError, match="must be evaluated"):
        mx.get_array_buffer_size(a)
    mx.eval(a)
    assert mx.get_array_buffer_size(a) == mx.get_array_buffer_size(a, [a]) >= 4096
    with pytest.raises(ValueError, match="must be evaluated"):
        mx.get_array_buffer_size(a, [a + 1])
