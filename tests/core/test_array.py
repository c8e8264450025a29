"""gomlx.core.array as an object: how it is made, read, indexed and printed, its operators and methods. The values of
MLX's own array beside it where mlx is installed."""
import copy
import math
import operator
import os
import pickle
import re

import numpy as np
import pytest
from arrays import NUMPY_DTYPES, name_of, named
from places import ROOT

import gomlx.core as mx

# ---- creation ----

@pytest.mark.parametrize("value, dtype", [
    (1, "int32"), (-2**31, "int32"), (2**31, "int64"), (2**40, "int64"), (2**63, "uint64"), (True, "bool"),
    (1.5, "float32"),
    (1j, "complex64"), ([1, 2.5], "float32"), ([True, 2], "int32"), ([True, False], "bool"), ([1, 2**40], "int64"),
    ([1, True, 2.5, 1j], "complex64"), ((1, (2)), "int32"), ([], "float32"), ([[], []], "float32"),
    ([[1, 2], (3, 4)], "int32"), (np.float64(2), "float32"), (np.int64(3), "int64"), (np.float16(1), "float16"),
    (np.bool_(True), "bool"), (b"abc", "uint8"), (bytearray(b"abc"), "uint8"),
    ([np.float32(1), np.float32(2)], "float32"),
], ids=repr)
def test_natural_dtypes(value, dtype):
    a = mx.array(value)
    assert name_of(a.dtype) == dtype
    want = np.array(list(value)) if isinstance(value, (bytes, bytearray)) else np.array(value)
    assert a.shape == want.shape
    assert a.tolist() == want.tolist()


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_numpy_round_trip(dtype):
    x = (np.arange(24).reshape(2, 3, 4) % 5).astype(dtype)
    a = mx.array(x)
    assert name_of(a.dtype) == ("float32" if dtype == "float64" else dtype)
    back = np.asarray(a)
    assert back.dtype == (np.float32 if dtype == "float64" else x.dtype)
    np.testing.assert_array_equal(back, x)
    assert a.tolist() == x.tolist()
    wide = mx.array(x, dtype=mx.float64)
    assert wide.dtype == mx.float64 and np.asarray(wide).dtype == np.float64


@pytest.mark.parametrize("make", [lambda x: x.T, lambda x: x[::-1], lambda x: x[:, ::2], lambda x: x[:, ::-1].T,
                                  lambda x: x[1:1],
                                  lambda x: np.broadcast_to(x[:, :1], x.shape), lambda x: x[3:4, 2:3],
                                  np.asfortranarray])
@pytest.mark.parametrize("dtype", ["int32", "float64", "float16", "uint8", "complex64", "complex128"])
def test_any_strides_are_read(make, dtype):
    x = make(np.arange(35).reshape(5, 7).astype(dtype))
    np.testing.assert_array_equal(np.array(mx.array(x)), x)


def test_misaligned_and_foreign_layouts():
    raw = np.zeros(5, dtype=[("a", "u1"), ("b", "f4")])
    raw["b"] = [1, 2, 3, 4, 5]
    assert mx.array(raw["b"]).tolist() == [1, 2, 3, 4, 5]
    for bad in (np.zeros(3, ">f4"), np.array(["a"]), np.zeros(2, "V4"), np.zeros(2, "M8[s]"),
                np.zeros(2, np.longdouble)):
        with pytest.raises((ValueError, TypeError)):
            mx.array(bad)
    assert mx.array(np.zeros((2, 0, 3))).shape == (2, 0, 3)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.array([[1.5, -2.0], [3.0, 0.5]], ml_dtypes.bfloat16)
    for source in (x, x.T):
        a = mx.array(source)
        assert a.dtype == mx.bfloat16 and a.tolist() == source.astype("f4").tolist()


def test_explicit_dtypes():
    assert mx.array(1, mx.uint8).dtype == mx.uint8
    assert mx.array(300, mx.uint8).item() == 44 and mx.array(-1, mx.uint8).item() == 255
    assert mx.array([1.5, -1.5], mx.int32).tolist() == [1, -1]
    assert mx.array([0, 2], mx.bool_).tolist() == [False, True]
    assert mx.array([2**63, 1], mx.uint64).tolist() == [2**63, 1]
    assert mx.array([0.1], mx.float64).item() == 0.1
    assert mx.array(0.1, mx.float64).item() == 0.1
    assert mx.array([1.5], dtype=mx.bfloat16).dtype == mx.bfloat16
    assert mx.array(mx.array([1, 2]), mx.float32).tolist() == [1.0, 2.0]
    for bad in ("float32", float, np.float32):
        with pytest.raises(TypeError):
            mx.array([1], bad)


def test_lists_of_arrays():
    a = mx.array([1, 2])
    assert mx.array([a, a + 1]).tolist() == [[1, 2], [2, 3]]
    assert mx.array([[mx.array(1), 2.5]]).tolist() == [[1.0, 2.5]]
    assert mx.array([np.arange(3), np.arange(3)]).shape == (2, 3)
    assert mx.array([mx.array(1.0, mx.bfloat16), 2]).dtype == mx.bfloat16
    assert mx.array([a, a], mx.float32).dtype == mx.float32
    for bad in ([a, 3], [a, mx.array([1, 2, 3])], [[a], a]):
        with pytest.raises(ValueError):
            mx.array(bad)


def test_lists_that_mix_arrays_and_lists():
    a = mx.array([1, 2])
    assert mx.array([a, [3, 4]]).tolist() == mx.array([[1, 2], mx.array([3, 4])]).tolist() == [[1, 2], [3, 4]]
    assert mx.array([1, mx.array(2.5)]).dtype == mx.float32
    assert mx.array([[[1], mx.array([2])], mx.array([[3], [4]])]).tolist() == [[[1], [2]], [[3], [4]]]
    for ragged in ([a, [3]], [a, 3], [[a], a], [a, []], [a, None], [a, "x"]):
        with pytest.raises(ValueError):
            mx.array(ragged)
    for ragged in ([mx.array([1.0]), 1.0], [1.0, mx.array([1.0])], [[1, 2], [3]], [[1], 2]):
        with pytest.raises(ValueError, match=r"^Initialization encountered non-uniform length\.$"):
            mx.array(ragged)


class MlxArray:
    def __mlx_array__(self):
        return mx.array([1, 2])


def test_objects_that_can_become_arrays():
    a, one = mx.array([10, 20]), MlxArray()
    assert mx.array(one).tolist() == mx.asarray(one).tolist() == mx.abs(one).tolist() == [1, 2]
    assert (a + one).tolist() == (one + a).tolist() == mx.add(a, one).tolist() == [11, 22]
    assert (a == one).tolist() == [False, False] and mx.array(one, mx.float16).dtype == mx.float16
    assert mx.array(mx.ArrayLike(one)).tolist() == [1, 2]

    class Wrong:
        def __mlx_array__(self):
            return 3

    class NumPyArray:
        def __array__(self):
            return np.array([1.5, 2.5])

    with pytest.raises(TypeError):
        mx.array(Wrong())
    assert mx.array(NumPyArray()).tolist() == [1.5, 2.5] and mx.array(NumPyArray(), mx.int8).tolist() == [1, 2]


def test_bitwise_operators_refuse_floats():
    a, b = mx.array([1, 2]), mx.array([1.0, 2.0])
    for call in (lambda: a & b, lambda: b | 1, lambda: a ^ 1.5, lambda: b << 1, lambda: a >> b):
        with pytest.raises(ValueError):
            call()


def test_what_is_no_array():
    for bad in ("abc", {}, {1}, range(3), object(), ["a"], [1, [2]], [[1], [1, 2]], [[1, 2], 3], (x for x in [1]),
                [[1], None]):
        with pytest.raises((ValueError, TypeError)):
            mx.array(bad)
    for call in (lambda: mx.array(), lambda: mx.array(None), lambda: mx.array(1, 2, 3), lambda: mx.array(value=1)):
        with pytest.raises(TypeError):
            call()
    loop = []
    loop.append(loop)
    with pytest.raises(ValueError):
        mx.array(loop)
    with pytest.raises(OverflowError):
        mx.array(2**64)
    with pytest.raises(OverflowError):
        mx.array([-2**63 - 1])


# ---- properties and scalars ----

def test_properties():
    a = mx.array(np.zeros((2, 3, 4), np.float16))
    assert (a.shape, a.ndim, a.size, a.itemsize, a.nbytes, len(a)) == ((2, 3, 4), 3, 24, 2, 48, 2)
    assert a.T.shape == (4, 3, 2)
    z = mx.array([1 + 2j])
    assert z.real.item() == 1 and z.imag.item() == 2 and z.real.dtype == mx.float32
    with pytest.raises(AttributeError):
        a.shape = (1,)
    with pytest.raises(AttributeError):
        a.other = 1


def test_scalars():
    assert mx.array(3).item() == 3 and mx.array([[2.5]]).item() == 2.5
    assert type(mx.array(True).item()) is bool and type(mx.array(1j).item()) is complex
    assert (int(mx.array(2.7)), float(mx.array(3)), bool(mx.array(0)), complex(mx.array(1 + 2j))) == (2, 3.0, False,
                                                                                                      1 + 2j)
    assert operator.index(mx.array(3)) == 3 and [5, 6, 7][mx.array(1)] == 6
    for call in (lambda: operator.index(mx.array([3])), lambda: operator.index(mx.array(3.0)),
                 lambda: float(mx.array(1j)),
                 lambda: len(mx.array(1)), lambda: iter(mx.array(1))):
        with pytest.raises(TypeError):
            call()
    for convert in (int, float, bool, lambda a: a.item()):
        with pytest.raises(ValueError):
            convert(mx.array([1, 2]))
        with pytest.raises(ValueError):
            convert(mx.array([]))


def test_tolist_of_views():
    a = mx.array([[1, 2, 3], [4, 5, 6]])
    assert a.T.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert a[::-1, ::2].tolist() == [[4, 6], [1, 3]]
    assert mx.array([1.5, 2.5], mx.bfloat16)[::-1].tolist() == [2.5, 1.5]
    assert mx.array(np.zeros((2, 0))).tolist() == [[], []]


def test_iteration():
    a = mx.array([[1, 2], [3, 4]])
    assert [r.tolist() for r in a] == [[1, 2], [3, 4]]
    assert [r.tolist() for r in reversed(a)] == [[3, 4], [1, 2]]
    assert [x.item() for x in a.T.flatten()] == [1, 3, 2, 4]
    assert mx.array(2) in mx.array([1, 2]) and 5 not in mx.array([1, 2])
    b, c = a
    assert c.tolist() == [3, 4]


# ---- operators ----

OPERATORS = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow,
             operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge]
INTEGER_OPERATORS = [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift]


@pytest.mark.parametrize("f", OPERATORS, ids=lambda f: f.__name__)
def test_operators(f):
    x, y = np.array([1.5, 2.0, 3.0], np.float32), np.array([2.0, 2.0, 0.5], np.float32)
    a, b = mx.array(x), mx.array(y)
    for got, want in ((f(a, b), f(x, y)), (f(a, 2.0), f(x, 2.0)), (f(2.0, a), f(2.0, x)), (f(a, 2), f(x, 2)),
                      (f(2, a), f(2, x))):
        np.testing.assert_allclose(np.array(got), want, rtol=1e-6)


@pytest.mark.parametrize("f", INTEGER_OPERATORS, ids=lambda f: f.__name__)
def test_integer_operators(f):
    x, y = np.array([1, 6, 12], np.int32), np.array([1, 2, 3], np.int32)
    a, b = mx.array(x), mx.array(y)
    for got, want in ((f(a, b), f(x, y)), (f(a, 2), f(x, 2)), (f(2, b), f(2, y))):
        np.testing.assert_array_equal(np.array(got), want)


def test_unary_operators():
    a = mx.array([1, -2])
    assert ((-a).tolist(), (+a).tolist(), abs(a).tolist(), (~a).tolist()) == ([-1, 2], [1, -2], [1, 2], [-2, 1])
    assert (mx.array([[1.0, 2.0]]) @ mx.array([[3.0], [4.0]])).tolist() == [[11.0]]


WEAK = [(d, s) for d in [*NUMPY_DTYPES, "bfloat16"] for s in (True, 1, 1.5, 1j)]


@pytest.mark.parametrize("dtype, scalar", WEAK, ids=str)
def test_scalars_are_weak(dtype, scalar):
    a = mx.array(1, named(dtype))
    order = ["b", "i", "f", "c"]
    kind = order[[bool, int, float, complex].index(type(scalar))]
    own = "b" if dtype == "bool" else "i" if "int" in dtype else "c" if dtype == "complex64" else "f"
    want = dtype if order.index(kind) <= order.index(own) else {"i": "int32", "f": "float32", "c": "complex64"}[kind]
    for f in (lambda x, y: x + y, lambda x, y: y + x, lambda x, y: x * y):
        assert name_of(f(a, scalar).dtype) == want
    assert name_of(mx.add(scalar, a).dtype) == want
    assert name_of(mx.where(True, a, scalar).dtype) == want


def test_scalars_that_do_not_fit():
    for dtype, value in ((mx.uint8, 300), (mx.uint8, -1), (mx.int8, 128), (mx.int32, 2**40), (mx.uint32, -1)):
        with pytest.raises(ValueError):
            mx.array([1], dtype) + value
    assert (mx.array([1], mx.int8) + -128).tolist() == [-127]
    assert (mx.array([1.0], mx.float16) + 1e10).tolist() == [math.inf]
    assert (mx.array([1], mx.int64) + 2**40).tolist() == [2**40 + 1]


def test_numpy_operands():
    a = mx.array([1, 2, 3])
    assert (a + np.float64(1.5)).tolist() == [2.5, 3.5, 4.5]
    assert (a + np.int64(1)).dtype == mx.int32
    assert type(np.arange(3) + a) is np.ndarray
    assert type(a + np.arange(3)) is mx.array and (a + np.arange(3)).tolist() == [1, 3, 5]


def test_strange_operands():
    a = mx.array([1, 2])
    for other in ([1, 2], (1, 2), "x", {}):
        for f in (operator.add, operator.mul, operator.iadd):
            with pytest.raises(ValueError):
                f(a, other)
        assert (a == other) is False and (a != other) is True
    for f in (operator.add, operator.lshift, operator.lt, operator.ipow):
        with pytest.raises(TypeError):
            f(a, None)
        with pytest.raises(ValueError):
            f(a, object())
    for other in (None, object()):
        assert (a == other) is False and (a != other) is True
    with pytest.raises(TypeError):
        a @ 2
    with pytest.raises(TypeError):
        pow(a, 2, 3)

    class Polite:
        def __radd__(self, other):
            return "polite"
    assert a + Polite() == "polite"


def test_inplace_keeps_identity():
    a = mx.array([4.0, 8.0])
    alias, old, key = a, a + 0, id(a)
    a += 1
    a *= 2.0
    a -= mx.array([1.0, 1.0])
    a /= 3
    a **= 2
    assert id(a) == key and alias is a
    assert alias.tolist() == [9.0, pytest.approx(289 / 9)]
    assert old.tolist() == [4.0, 8.0]
    i = mx.array([7, 9])
    i //= 2
    i %= 3
    i <<= 2
    i |= 1
    i &= 5
    i ^= 1
    i >>= 1
    assert i.tolist() == [0, 2]
    i += 1.5
    assert i.dtype == mx.float32 and i.tolist() == [1.5, 3.5]
    with pytest.raises(ValueError):
        j = mx.array([1])
        j /= 2
    m = mx.array([[1.0, 2.0], [3.0, 4.0]])
    m @= m
    assert m.tolist() == [[7.0, 10.0], [15.0, 22.0]]


def test_failed_inplace_leaves_the_array():
    a = mx.array([1, 2, 3])
    with pytest.raises(ValueError):
        a += mx.array([1, 2])
    assert a.tolist() == [1, 2, 3]


def test_hash_is_identity():
    a, b = mx.array([1, 2]), mx.array([1, 2])
    assert {a: 1, b: 2}[a] == 1 and len({a, b, a}) == 2
    key = hash(a)
    a += 1
    assert hash(a) == key


# ---- indexing ----

KEYS = [0, -1, 2, (0, 1), (slice(None), 1), (slice(None, None, -1),), slice(1, 3), slice(-2, None), slice(2, -10, -1),
        slice(5, 1), slice(-1, -4, -2), (Ellipsis, 0), (0, Ellipsis), (1, Ellipsis, 2), None, (None, 0),
        (0, None, 1), (Ellipsis, None), (),
        Ellipsis, (slice(None), None, slice(1, None)), (slice(None, None, 2), slice(None, None, -2), slice(0, 1)),
        (2, slice(None), slice(None, None, -1)), (1, 2, 3), np.int64(1), (slice(None), slice(None), -1)]


@pytest.mark.parametrize("key", KEYS, ids=repr)
def test_basic_indexing(key):
    x = np.arange(60).reshape(3, 4, 5)
    got = mx.array(x)[key]
    assert got.shape == x[key].shape
    np.testing.assert_array_equal(np.array(got), x[key])


I = [2, 0, -1]
J = [[0, 1], [-1, 2]]
ARRAY_KEYS = [lambda i: i, lambda i: (slice(None), i), lambda i: (Ellipsis, i), lambda i: (0, i), lambda i: (i, 0),
              lambda i: (i, slice(1, 3)), lambda i: (slice(1, None), i, slice(None, None, -1)), lambda i: (None, i),
              lambda i: (i, None), lambda i: (0, slice(None), i), lambda i: (i, slice(None), 0), lambda i: (0, None, i),
              lambda i: (0, Ellipsis, i), lambda i: (slice(None), 1, i)]


@pytest.mark.parametrize("index", [I, J, [], 1], ids=repr)
@pytest.mark.parametrize("key", range(len(ARRAY_KEYS)))
def test_indexing_with_one_array(key, index):
    x = np.arange(60).reshape(3, 4, 5)
    key, index = ARRAY_KEYS[key], np.array(index, np.int64)
    want = x[key(index)]
    got = mx.array(x)[key(mx.array(index))]
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.array(got), want)


def test_list_index():
    x = np.arange(12).reshape(3, 4)
    np.testing.assert_array_equal(np.array(mx.array(x)[[0, -1]]), x[[0, -1]])
    np.testing.assert_array_equal(np.array(mx.array(x)[:, [[0, 1], [2, 3]]]), x[:, [[0, 1], [2, 3]]])


def test_index_errors():
    a, s = mx.array([[1, 2], [3, 4]]), mx.array(1)
    for key in (2, -3, (0, 2), (slice(None), -3), 2**70):
        with pytest.raises(IndexError):
            a[key]
    for bad, key in ((a, 1.5), (a, "a"), (a, True), (a, (0, 0, 0)), (a, (Ellipsis, Ellipsis)), (s, 0),
                     (a, slice(None, None, 0)),
                     (a, mx.array([True, False])), (a, mx.array([0.5])), (a, [0.5]), (a, {}), (a, b"a")):
        with pytest.raises(ValueError):
            bad[key]
    with pytest.raises(ValueError):
        a[1.5:]
    assert s[()].item() == 1 and s[None].tolist() == [1] and s[...].item() == 1


def test_reading_does_not_alias():
    a = mx.array([1, 2, 3])
    view, whole = a[1:], a[...]
    a += 10
    assert view.tolist() == [2, 3] and whole.tolist() == [1, 2, 3]
    whole += 5
    assert a.tolist() == [11, 12, 13]


# ---- printing ----

PRINTED = [1, 1.5, True, 1j, [1, 2, 3], [1.0, 2.5, -0.1], [True, False], list(range(6)), list(range(7)),
           [[1, 2], [3, 4]],
           [[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [], [[], []], [1e10, 1e-10, 123456789.0, 100000.0, 1234567.0],
           [float("inf"), float("nan"), -float("inf")], [1 + 2j, -1 - 2j], [[i] for i in range(8)],
           [[[0.5] * 8] * 8] * 8, 3.14159265, -0.0]


@pytest.mark.parametrize("value", PRINTED, ids=lambda v: repr(v)[:30])
def test_repr_is_mlx(value):
    oracle = pytest.importorskip("mlx.core")
    assert repr(mx.array(value)) == repr(oracle.array(value))
    assert str(mx.array(value)) == str(oracle.array(value))


def test_repr():
    assert repr(mx.array([1, 2, 3])) == "array([1, 2, 3], dtype=int32)"
    assert repr(mx.array([1.5, 2, 1 / 3], mx.bfloat16)) == "array([1.5, 2, 0.333984], dtype=bfloat16)"
    assert repr(mx.arange(10)) == "array([0, 1, 2, ..., 7, 8, 9], dtype=int32)"
    assert repr(mx.array([[1, 2], [3, 4]]).T) == "array([[1, 3],\n       [2, 4]], dtype=int32)"
    assert repr(mx.float32) == "mlx.core.float32" and repr(mx.bool_) == "mlx.core.bool"


def test_print_options():
    x = mx.array([1.23456789, 1e10, 0.5 - 1e-9])
    plain = repr(x)
    assert mx.get_printoptions().precision == mx.PrintOptions().precision == -1
    with mx.printoptions(precision=2) as inside:
        assert type(inside).__name__ == "_PrintOptionsContext" and mx.get_printoptions().precision == 2
        assert repr(x) == "array([1.23, 10000000000.00, 0.50], dtype=float32)"
        assert str(mx.array(1.5 - 2.25j)) == "array(1.50-2.25j, dtype=complex64)"
        assert str(mx.array(3)) == "array(3, dtype=int32)"
        mx.set_printoptions(precision=0)
        assert repr(x) == "array([1, 10000000000, 0], dtype=float32)"
    assert repr(x) == plain
    for bad in ("2", None, 1.5):
        with pytest.raises(TypeError):
            mx.set_printoptions(bad)


def test_complex_numbers_and_nothing_in_print():
    assert str(mx.array([1 + 2j, complex(1, -0.0), complex(float("nan"), float("inf"))])) == (
        "array([1+2j, 1+-0j, nan+infj], dtype=complex64)")
    assert str(mx.array([])) == str(mx.full((0, 3), 1.0)) == "array([], dtype=float32)"
    assert str(mx.full((2, 0), 1.0)) == "array([[],\n       []], dtype=float32)"


def test_format():
    assert f"{mx.array(1.5):.2f}" == "1.50" and f"{mx.array(3):03d}" == "003" and f"{mx.array(3)}" == "3"
    assert f"{mx.array([1])}" == "array([1], dtype=int32)"
    with pytest.raises(TypeError):
        f"{mx.array([1.5, 2.5]):.2f}"


def test_dtypes():
    assert mx.float32 is mx.array([1.0]).dtype and mx.float32 != mx.float16 and mx.float32 != np.float32
    assert mx.float32.size == 4 and mx.bool_.size == 1 and mx.complex64.size == 8
    assert copy.deepcopy(mx.bool_) is mx.bool_ and pickle.loads(pickle.dumps(mx.bfloat16)) is mx.bfloat16
    with pytest.raises(TypeError):
        mx.Dtype()
    with pytest.raises(TypeError):
        mx.array([1]).astype(None)


# ---- evaluation ----

def test_eval_trees():
    a = mx.array([1, 2])
    tree = {"a": [a + 1, (a * 2, None, "text", 3)], "b": {"c": a - 1}}
    assert mx.eval(tree, a, 1, None) is None
    assert tree["a"][1][0].tolist() == [2, 4]
    assert mx.eval() is None
    deep = [a + 1]
    for _ in range(100000):
        deep = [deep]
    with pytest.raises(RecursionError):
        mx.eval(deep)
    while isinstance(deep, list):       # Python's own deallocator would recurse
        deep = deep.pop()


def test_a_long_chain_evaluates_without_recursion():
    a = mx.array([0.0])
    for _ in range(50000):
        a = a + 1
    assert a.item() == 50000


# ---- methods are the functions ----

def methods():
    """Name, function and signature of each method that is a function of the catalogue."""
    path = os.path.join(ROOT, "csrc", "py", "methods.def")
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^(?:LIST_)?METHOD\((\w+), +(\w+), +"(.*)"\)$', file.read(), re.M)


ARGUMENTS = {"astype": (mx.float16,), "view": (mx.int8,), "moveaxis": (0, 1), "swapaxes": (0, 1), "split": (2,),
             "reshape": ((4,),),
             "round": (1,), "transpose": ((1, 0),), "diagonal": (1,), "diag": (1,)}


@pytest.mark.parametrize("name, function, signature", methods())
def test_methods_are_the_functions(name, function, signature):
    a = mx.array([[1.0, 2.0], [3.0, 0.5]])
    args = ARGUMENTS.get(name, ())
    got, want = getattr(a, name)(*args), getattr(mx, function)(a, *args)
    for g, w in zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]:
        assert g.dtype == w.dtype and mx.array_equal(g, w)
    keywords = {"axis": 1} if "axis=None" in signature and name != "squeeze" else {}
    keywords |= {"keepdims": True} if "keepdims" in signature else {}
    if keywords:
        assert mx.array_equal(getattr(a, name)(**keywords), getattr(mx, function)(a, **keywords))
    assert "stream" in signature
    with pytest.raises(TypeError):
        getattr(a, name)(nonsense=1)


def test_reshape_spellings():
    a = mx.arange(6)
    assert a.reshape(2, 3).shape == a.reshape((2, 3)).shape == a.reshape([2, -1]).shape == (2, 3)
    assert a.reshape(6).shape == (6,) and a.reshape(1, 6).squeeze().shape == (6,) and a[:1].reshape().shape == ()
    b = a.reshape(1, 2, 3, 1)
    assert b.squeeze(0).shape == (2, 3, 1) and b.squeeze((0, -1)).shape == (2, 3) and b.flatten(1, 2).shape == (1, 6, 1)
    assert b.transpose(3, 2, 1, 0).shape == b.transpose((3, 2, 1, 0)).shape == b.transpose().shape == (1, 3, 2, 1)
    for call in (lambda: b.squeeze(1), lambda: b.flatten(2, 1), lambda: b.transpose(0, 1), lambda: a.reshape(4, 4)):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(OverflowError):
        a.reshape(2**31)


def test_memory_functions():
    before = mx.get_active_memory()
    a = mx.array(np.zeros(1 << 18, np.float32))
    mx.eval(a)
    assert mx.get_active_memory() >= before + (1 << 20)
    mx.reset_peak_memory()
    assert mx.get_peak_memory() == 0
    mx.eval(mx.zeros(1000) + 1)
    assert mx.get_peak_memory() >= mx.get_active_memory() >= before + (1 << 20)
    del a
    assert mx.get_active_memory() < before + (1 << 20)
    mx.clear_cache()
    assert mx.get_cache_memory() == 0
    limit = mx.set_cache_limit(1 << 20)
    assert mx.set_cache_limit(limit) == 1 << 20
    for bad in (1.5, None, "1"):
        with pytest.raises(TypeError):
            mx.set_memory_limit(bad)


def test_out_of_memory_is_memory_error():
    limit = mx.set_memory_limit(mx.get_active_memory() + (1 << 20))
    try:
        with pytest.raises(MemoryError):
            mx.eval(mx.broadcast_to(mx.array(1.0), (1 << 22,)) + 1)
    finally:
        mx.set_memory_limit(limit)
    assert (mx.array(1) + 1).item() == 2


LARGE = ["m.zeros(2**31)", "m.ones((2**31, 0))", "m.zeros(-2**31 - 1)", "m.full((2**32,), 1)",
         "m.arange(4).reshape(2**33)", "m.broadcast_to(m.array(1), (2**31,))", "m.random.uniform(shape=(2**40,))",
         "m.unflatten(m.zeros(4), 0, (2**31, 1))"]
COMPUTED = {
    "m.repeat(m.zeros((2**30,)), 4)": 2**32, "m.tile(m.zeros((2**20,)), 2**12)": 2**32,
    "m.pad(m.zeros((2**30,)), 2**30)": 3 * 2**30, "m.zeros((2**16, 2**16)).reshape(-1)": 2**32,
    "m.zeros((2**16, 2**16)).flatten()": 2**32, "m.concatenate([m.zeros(2**29)] * 6)": 3 * 2**30,
    "m.kron(m.zeros(2**18), m.zeros(2**15))": 2**33, "m.outer(m.zeros(2**16), m.zeros(2**16)).flatten()": 2**32}


@pytest.mark.parametrize("text", LARGE + list(COMPUTED))
def test_sizes_beyond_int32(text):
    """Also of arrays that nobody has evaluated; the error holds the number."""
    number = COMPUTED.get(text) or eval(re.search(r"-?2\*\*\d+( - 1)?", text)[0])
    with pytest.raises(OverflowError, match=str(number)):
        eval(text, {"m": mx})
    assert mx.zeros((2**16, 2**16)).shape == (2**16, 2**16) and mx.broadcast_to(mx.array(1),
                                                                                (2**31 - 1,)).size == 2**31 - 1
