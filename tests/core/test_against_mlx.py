"""The rows of ops.def that have a class (UNARY, BINARY, REDUCE) side by side with the installed MLX: the same inputs of
every dtype give the same values, shape and dtype, or an error of the same class.

What MLX computes in another precision or order agrees within a few units of the last place of the dtype. Known
differences are listed in DIFFERS, each with its reason.
"""

import numpy as np
import pytest
from catalogue import BINARY, REDUCE, UNARY

import gomlx.core as gm
from gomlx import AxisError

mx = pytest.importorskip("mlx.core")

DTYPES = ["bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
          "float32", "float64", "complex64"]
RTOL = {"float16": 4e-3, "bfloat16": 3e-2, "float32": 1e-5, "float64": 1e-5, "complex64": 1e-4}
MLX_BUG = "MLX reduces integers without converting them where it has no kernel for the axes"
DIFFERS = {
    **{("logsumexp", dtype): MLX_BUG for dtype in ("bool_", "uint8", "uint16", "uint32", "uint64")},
}


def values_for(dtype, seed):
    r = np.random.default_rng(seed)
    if dtype == "bool_":
        return r.integers(0, 2, 24).astype(bool)
    if dtype.startswith("uint"):
        return np.concatenate([[0, 1, 2, 3, 255, 7], r.integers(0, 9, 18)])
    if dtype.startswith("int"):
        return np.concatenate([[0, 1, -1, 2, -2, 127, -128], r.integers(-9, 9, 17)])
    special = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -2.5, np.inf, -np.inf, np.nan]
    if dtype == "complex64":
        return (np.concatenate([[0, 1, -1, 0.5], r.uniform(-3, 3, 20)])
                + 1j * np.concatenate([[0, 0, 1], r.uniform(-3, 3, 21)])).astype(np.complex64)
    return np.concatenate([special, r.uniform(-3, 3, 14)])


def array_of(module, values, dtype):
    if values.dtype.kind in "iu":
        values = values.astype(np.int64)
    elif values.dtype.kind == "f":
        values = values.astype(np.float32)
    return module.array(values).astype(getattr(module, dtype))


def numbers(module, a):
    if a.dtype in (module.bfloat16, module.float16):
        a = a.astype(module.float32)
    return np.array(a.tolist(), dtype=complex if a.dtype == module.complex64 else None) if a.size else np.zeros(a.shape)


def outcome(module, function):
    """(dtype, shape, values), or the class of the error."""
    try:
        result = function(module)
        if isinstance(result, (list, tuple)):
            return tuple(outcome(module, lambda _, r=r: r) for r in result)
        return str(result.dtype).rpartition(".")[2], tuple(result.shape), numbers(module, result)
    except Exception as error:                      # of whatever class: it is what is compared
        return IndexError if isinstance(error, AxisError) else type(error)      # ours is a ValueError besides


def same(function, context=""):
    got, want = outcome(gm, function), outcome(mx, function)
    compare(got, want, context)


def compare(got, want, context):
    if isinstance(want, type) or isinstance(got, type):
        assert got is want, f"{context}: {got} instead of {want}"
    elif isinstance(want[0], tuple):
        assert len(got) == len(want)
        for g, w in zip(got, want):
            compare(g, w, context)
    else:
        assert got[:2] == want[:2], f"{context}: {got[:2]} instead of {want[:2]}"
        rtol = RTOL.get(want[0], 0)
        np.testing.assert_allclose(got[2], want[2], rtol=rtol, atol=rtol / 10, err_msg=context)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", [n for n in UNARY if hasattr(mx, n)])
def test_unary(name, dtype):
    if (name, dtype) in DIFFERS:
        pytest.skip(DIFFERS[name, dtype])
    values = values_for(dtype, 1)
    same(lambda m: getattr(m, name)(array_of(m, values, dtype)))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name, dtype):
    if (name, dtype) in DIFFERS:
        pytest.skip(DIFFERS[name, dtype])
    a, b = values_for(dtype, 2), values_for(dtype, 3)[::-1].copy()
    if name.endswith("_shift"):                     # by the width or more: undefined in MLX
        b = b.astype(np.int64) % 8 if b.dtype.kind in "iu" else b
    if (name, dtype) == ("power", "complex64"):     # of zero: NaN in MLX
        a = np.where(a == 0, 1, a).astype(np.complex64)
    same(lambda m: getattr(m, name)(array_of(m, a, dtype), array_of(m, b, dtype)))


@pytest.mark.parametrize("axis", [None, 0, (0, 1), (), -3], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", REDUCE)
def test_reduce(name, dtype, axis):
    if (name, dtype) in DIFFERS:
        pytest.skip(DIFFERS[name, dtype])
    values = values_for(dtype, 4)[-12:].reshape(3, 4)
    if name == "prod":
        values = values % 3 if values.dtype.kind in "iu" else values
    for keepdims in (False, True):
        same(lambda m: getattr(m, name)(array_of(m, values, dtype), axis=axis, keepdims=keepdims),
             f"keepdims={keepdims}")


# ---- functions with arguments of their own ----

INF, NAN = float("inf"), float("nan")
SPECIAL = [1.25, -1.35, 2.5, 3.5, NAN, INF, -INF, 0.0]


def grid(m, dtype):
    return array_of(m, np.array([[1, 2, 4], [3, 7, 5]]), dtype)


CASES = {
    "round": lambda m: [m.round(m.array(SPECIAL), d) for d in (0, 1, 2, -1)],
    "round of integers": lambda m: [m.round(m.array([15, 25, -15, 135]), d) for d in (0, 1, -1, -2)],
    "round of bool": lambda m: m.round(m.array([True, False]), 1),
    "round of complex": lambda m: m.round(m.array(np.array([1.26 + 2.54j], np.complex64)), 1),
    "nan_to_num": lambda m: [m.nan_to_num(m.array(SPECIAL).astype(t)) for t in (m.float32, m.float16, m.bfloat16)],
    "nan_to_num with values": lambda m: m.nan_to_num(m.array(SPECIAL), nan=3, posinf=7, neginf=-8),
    "nan_to_num of a scalar": lambda m: m.nan_to_num(NAN),
    "nan_to_num of integers": lambda m: m.nan_to_num(m.array([1, 2])),
    "nan_to_num of complex": lambda m: m.nan_to_num(m.array(np.array([1j], np.complex64))),
    "clip": lambda m: [m.clip(m.array([1, 5, 9]), 2, 6), m.clip(m.array([1, 5, 9]), 2.5, 6),
                       m.clip(m.array([1, 5, 9]), None, 6), m.clip(m.array([1.0, NAN]), 2, None)],
    "clip by arrays": lambda m: m.clip(m.array([1, 5, 9]), m.array([[1.0], [2.0]]), m.array(5)),
    "clip with the greater bound first": lambda m: m.clip(m.array([1, 5, 9]), 6, 2),
    "clip without bounds": lambda m: m.clip(m.array([1]), None, None),
    "clip of a scalar": lambda m: m.clip(1, 2, 3),
    "clip beyond the dtype": lambda m: m.clip(m.array([1], m.uint8), -1, 3),
    "clip of another integer type": lambda m: m.clip(m.array([1, 5], m.int8), m.array(3, m.int32), None),
    "divmod": lambda m: m.divmod(m.array([5.0, -5.0]), 3) + m.divmod(m.array([[5], [-7]]),
                                                                     m.array([2, 3])) + m.divmod(7, 2),
    "divmod of complex": lambda m: m.divmod(m.array(np.array([1j], np.complex64)), 2),
    "isclose": lambda m: [m.isclose(m.array([INF, -INF, INF, NAN, 1.0, 1.0]),
                                    m.array([INF, -INF, -INF, NAN, 1.000001, 1.1]),
                                    equal_nan=equal_nan) for equal_nan in (False, True)],
    "isclose of integers": lambda m: m.isclose(m.array([1, 2]), m.array([[1], [3]])),
    "isclose with tolerances": lambda m: m.isclose(m.array([1.0]), m.array([1.1]), 0.2, 0.0),
    "isclose of a scalar": lambda m: m.isclose(m.array([1.0]), 1.0),
    "allclose": lambda m: [m.allclose(m.array([1.0, 2.0]), m.array([1.0, x])) for x in (2.0, 2.1, NAN)],
    "array_equal": lambda m: [m.array_equal(m.array([1, 2]), m.array(x))
                              for x in ([1, 2], [1, 3], [[1, 2]], [1.0, 2.0])],
    "array_equal of nan": lambda m: [m.array_equal(m.array([NAN]), m.array([NAN]), equal_nan=e) for e in (False, True)],
    "array_equal of scalars": lambda m: m.array_equal(1, m.array(1)),
    "var": lambda m: [m.var(grid(m, t), axis=a, keepdims=k, ddof=d) for t in ("float32", "int32", "uint8", "float64")
                      for a, k, d in ((None, False, 0), (0, True, 1), ((0, 1), True, 0), (-1, False, 2))],
    "std": lambda m: [m.std(grid(m, t), axis=a, keepdims=k, ddof=d) for t in ("float32", "int32", "float16")
                      for a, k, d in ((None, False, 0), (0, True, 1), ((0, 1), True, 0))],
    "var of complex": lambda m: m.var(m.array(np.array([1 + 1j, 2 - 1j], np.complex64))),
    "var beyond the count": lambda m: m.var(grid(m, "float32"), axis=0, ddof=5),
    "count_nonzero": lambda m: [m.count_nonzero(grid(m, "int32") - 2, axis=a, keepdims=k) for a, k in
                                ((None, False), (0, False), ((0, 1), True))],
    "logical functions of numbers": lambda m: [m.logical_and(m.array([0, 2, 3]), 1),
                                               m.logical_or(m.array([0.0, 2.0]), 0),
                                               m.logical_xor(True, m.array([1, 0]))],
    "power of weak scalars": lambda m: [m.array([1, 2]) ** 2, 2.0 ** m.array([1, 2]), m.array([2.0], m.float16) ** 2],
    "an axis beyond": lambda m: m.sum(grid(m, "int32"), axis=2),
    "an axis twice": lambda m: m.sum(grid(m, "int32"), axis=(0, 0)),
    "an axis of a scalar": lambda m: m.max(m.array(1.0), axis=0),
    "argmax of a scalar": lambda m: m.argmax(m.array(1.0), axis=0),
    "softmax of a scalar": lambda m: [m.softmax(m.array(1.0)), m.softmax(m.array([1.0, 2.0]), axis=())],
    "softmax of a scalar's axis": lambda m: m.softmax(m.array(1.0), axis=0),
    "logsumexp of a scalar's axis": lambda m: m.logsumexp(m.array(1.0), axis=0),
    "softmax of axes": lambda m: [m.softmax(grid(m, "float32"), axis=a) for a in (None, 0, 1, -1, (0, 1))],
    "softmax of halves": lambda m: [m.softmax(grid(m, "float16"), axis=-1, precise=p) for p in (False, True)],
    "softmax of complex": lambda m: m.softmax(grid(m, "complex64"), axis=-1),
    "argmax": lambda m: [m.argmax(grid(m, t), axis=a, keepdims=k)
                         for t in ("float32", "int8", "uint64", "bool_", "float64")
                         for a, k in ((None, False), (0, True), (-1, False), (None, True))],
    "extremes of nothing": lambda m: m.max(m.array([])),
    "argmax of nothing": lambda m: m.argmax(m.array([])),
    "sums of nothing": lambda m: [m.sum(m.array([])), m.prod(m.array([])), m.all(m.array([])), m.any(m.array([]))],
    "negative of bool": lambda m: m.negative(m.array(True)),
    "bitwise_invert of floats": lambda m: m.bitwise_invert(m.array(1.0)),
    "unary functions of scalars": lambda m: [m.abs(-5), m.exp(1), m.bitwise_invert(5), m.sqrt(True)],
    "shifts of bool": lambda m: [m.left_shift(m.array([True]), m.array([True])), m.right_shift(m.array([True]), 1)],
}


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    same(CASES[name], name)
