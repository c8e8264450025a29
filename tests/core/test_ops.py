"""Every UNARY, BINARY and REDUCE row of ops.def against NumPy in float64: dtypes, sizes around the vector width, views
and broadcasting. A new row fails here until it has a definition below.

Tolerances are relative: a few units in the last place of the result's dtype, for the engine computes in float32 and
rounds once (float32 itself: 4 ulp of the function's own error).
"""
import math
import re
import statistics

import numpy as np
import pytest
from catalogue import BINARY, REDUCE, ROWS, UNARY
from operations import ALL_DTYPES, FLOATS, INTS, SIZES, check, dtype_of, make, name_of, values_of

import gomlx.core as mx

pytestmark = [pytest.mark.isa, pytest.mark.filterwarnings("ignore::RuntimeWarning")]       # NumPy's, about infinities


def random_values(name, n, dtype, seed=0):
    r = np.random.default_rng(seed + n)
    low, high = DOMAIN.get(name, (-4, 4))
    if dtype == "bool":
        return r.integers(0, 2, n).astype(bool)
    if dtype in INTS:
        low, high = (max(math.ceil(low), 0) if dtype[0] == "u" else math.ceil(low)), math.floor(high)
        return r.integers(low, high + 1, n)
    return r.uniform(low, high, n)


# ---- unary ----

def erfinv(x):
    inverse = statistics.NormalDist().inv_cdf
    return np.array([inverse((v + 1) / 2) / math.sqrt(2) if abs(v) < 1 else math.copysign(np.inf, v) for v in x])


KEEPS, FLOAT, BOOL, REAL = "keeps the dtype", "floating point", "bool", "the real part's dtype"
UNARY_DEFINITION = {
    "abs": (np.abs, REAL), "negative": (np.negative, KEEPS), "sign": (np.sign, KEEPS), "square": (np.square, KEEPS),
    "sqrt": (np.sqrt, FLOAT), "rsqrt": (lambda x: 1 / np.sqrt(x), FLOAT), "reciprocal": (lambda x: 1 / x, FLOAT),
    "exp": (np.exp, FLOAT), "expm1": (np.expm1, FLOAT), "log": (np.log, FLOAT), "log2": (np.log2, FLOAT),
    "log10": (np.log10, FLOAT), "log1p": (np.log1p, FLOAT), "sin": (np.sin, FLOAT), "cos": (np.cos, FLOAT),
    "tan": (np.tan, FLOAT), "arcsin": (np.arcsin, FLOAT), "arccos": (np.arccos, FLOAT), "arctan": (np.arctan, FLOAT),
    "sinh": (np.sinh, FLOAT), "cosh": (np.cosh, FLOAT), "tanh": (np.tanh, FLOAT), "arcsinh": (np.arcsinh, FLOAT),
    "arccosh": (np.arccosh, FLOAT), "arctanh": (np.arctanh, FLOAT), "erf": (np.vectorize(math.erf, otypes="d"), FLOAT),
    "erfinv": (erfinv, FLOAT), "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), FLOAT), "floor": (np.floor, KEEPS),
    "ceil": (np.ceil, KEEPS), "trunc": (np.trunc, KEEPS), "logical_not": (np.logical_not, BOOL),
    "bitwise_invert": (np.invert, KEEPS), "isnan": (np.isnan, BOOL), "isinf": (np.isinf, BOOL),
    "isfinite": (np.isfinite, BOOL), "isposinf": (lambda x: x == np.inf, BOOL),
    "isneginf": (lambda x: x == -np.inf, BOOL),
    "positive": (lambda x: x, KEEPS), "degrees": (np.degrees, FLOAT), "radians": (np.radians, FLOAT),
    "conj": (np.conjugate, KEEPS), "stop_gradient": (lambda x: x, KEEPS), "real": (np.real, REAL),
    "imag": (np.imag, REAL), "conjugate": (np.conjugate, KEEPS), "sinc": (np.sinc, FLOAT),
}
DOMAIN = {
    "sqrt": (0, 9), "rsqrt": (0.5, 9), "reciprocal": (0.5, 9), "log": (0.5, 9), "log2": (0.5, 9), "log10": (0.5, 9),
    "log1p": (0, 9), "arcsin": (-0.99, 0.99), "arccos": (-0.99, 0.99), "arctanh": (-0.9, 0.9), "arccosh": (1.01, 9),
    "erfinv": (-0.9, 0.9), "tan": (-1.2, 1.2), "left_shift": (0, 4), "right_shift": (0, 4), "logaddexp": (-4, 4),
}
INTEGERS_ONLY = {"bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}


def expected_dtype(kind, dtype):
    if kind == BOOL:
        return "bool"
    if kind == FLOAT:
        return dtype if dtype in FLOATS + ["float64", "complex64"] else "float32"
    if kind == REAL and dtype == "complex64":
        return "float32"
    return dtype


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [n for n in UNARY if n not in INTEGERS_ONLY])
def test_unary_floats(name, dtype):
    function, kind = UNARY_DEFINITION[name]
    for n in SIZES:
        a, x = make(random_values(name, n, dtype), dtype)
        check(getattr(mx, name)(a), function(x), expected_dtype(kind, dtype))


@pytest.mark.parametrize("dtype", [*INTS, "bool"])
@pytest.mark.parametrize("name", UNARY)
def test_unary_integers(name, dtype):
    function, kind = UNARY_DEFINITION[name]
    if dtype == "bool" and name in ("negative", "sign", "abs", "square", "floor", "ceil", "trunc", "reciprocal"):
        pytest.skip("not arithmetic of bool in NumPy")
    a, x = make(random_values(name, 33, dtype), dtype)
    if kind == FLOAT or name in ("floor", "ceil", "trunc"):
        x = x.astype(np.float64)
    check(getattr(mx, name)(a), function(x), expected_dtype(kind, dtype))


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite", "isposinf", "isneginf", "exp", "tanh", "sigmoid", "erf",
                                  "floor",
                                  "abs", "sign", "sqrt", "log", "logical_not"])
def test_unary_special_values(name):
    x = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e30, -1e30, 1e-30])
    got = values_of(getattr(mx, name)(mx.array(x)))
    want = UNARY_DEFINITION[name][0](x.astype(np.float32).astype(np.float64))
    if name == "sign":
        want = np.nan_to_num(want)                    # MLX's sign of NaN is 0
    np.testing.assert_allclose(got, np.asarray(want).astype(np.float32), rtol=1e-5)


@pytest.mark.parametrize("name", ["negative", "square", "abs", "real", "imag", "conjugate", "exp", "sinc"])
def test_unary_complex(name):
    function, kind = UNARY_DEFINITION[name]
    x = (np.arange(9) - 4 + 1j * np.linspace(-2, 2, 9)).astype(np.complex64)
    check(getattr(mx, name)(mx.array(x)), function(x.astype(np.complex128)), expected_dtype(kind, "complex64"))


VIEWS = {
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1],
    "stepped": lambda a: a[1::3, ::2],
    "reversed inner": lambda a: a[:, ::-1],
    "inner part": lambda a: a[2:20, 3:11],
    "one column": lambda a: a[:, 5:6],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["exp", "negative", "floor", "logical_not", "astype"])
def test_unary_of_views(name, view):
    x = np.random.default_rng(1).uniform(-3, 3, (33, 17)).astype(np.float32)
    a, x = VIEWS[view](mx.array(x)), VIEWS[view](x)
    np.testing.assert_array_equal(np.array(a), x)
    got = mx.astype(a, mx.int32) if name == "astype" else getattr(mx, name)(a)
    want = x.astype(np.int32) if name == "astype" else UNARY_DEFINITION[name][0](x.astype(np.float64))
    check(got, want, "int32" if name == "astype" else expected_dtype(UNARY_DEFINITION[name][1], "float32"))


# ---- binary ----

BINARY_DEFINITION = {
    "add": (np.add, KEEPS), "subtract": (np.subtract, KEEPS), "multiply": (np.multiply, KEEPS),
    "divide": (np.divide, FLOAT),
    "floor_divide": (np.floor_divide, KEEPS), "remainder": (np.remainder, KEEPS), "power": (np.power, KEEPS),
    "maximum": (np.maximum, KEEPS), "minimum": (np.minimum, KEEPS), "logaddexp": (np.logaddexp, FLOAT),
    "arctan2": (np.arctan2, FLOAT), "equal": (np.equal, BOOL), "not_equal": (np.not_equal, BOOL),
    "less": (np.less, BOOL),
    "less_equal": (np.less_equal, BOOL), "greater": (np.greater, BOOL), "greater_equal": (np.greater_equal, BOOL),
    "logical_and": (np.logical_and, BOOL), "logical_or": (np.logical_or, BOOL), "logical_xor": (np.logical_xor, BOOL),
    "bitwise_and": (np.bitwise_and, KEEPS), "bitwise_or": (np.bitwise_or, KEEPS),
    "bitwise_xor": (np.bitwise_xor, KEEPS),
    "left_shift": (np.left_shift, KEEPS), "right_shift": (np.right_shift, KEEPS),
}


def operands(name, n, dtype):
    x, y = random_values(name, n, dtype, 3), random_values(name, n, dtype, 4)
    if name in ("divide", "floor_divide", "remainder"):
        y = np.where(np.abs(y) < 0.5, 2, y)
    if name == "power":
        x, y = np.abs(x) + 1, np.abs(y) if dtype in INTS else y
    if name == "subtract" and dtype[0] == "u":
        x = x + y
    return x, y


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", [n for n in BINARY if n not in INTEGERS_ONLY])
def test_binary_floats(name, dtype):
    function, kind = BINARY_DEFINITION[name]
    for n in SIZES:
        (a, x), (b, y) = (make(v, dtype) for v in operands(name, n, dtype))
        got = getattr(mx, name)(a, b)
        if name in ("floor_divide", "remainder"):       # the quotient is taken in float32: compare where that is sure
            sure = np.abs(x / y - np.round(x / y)) > 1e-2
            check(mx.where(mx.array(sure), got, 0), np.where(sure, function(x, y), 0), dtype)
        else:
            check(got, function(x, y), expected_dtype(kind, dtype))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", BINARY)
def test_binary_integers(name, dtype):
    function, kind = BINARY_DEFINITION[name]
    (a, x), (b, y) = (make(v, dtype) for v in operands(name, 33, dtype))
    if kind == FLOAT:
        x, y = x.astype(np.float64), y.astype(np.float64)
    check(getattr(mx, name)(a, b), function(x, y), expected_dtype(kind, dtype))


BROADCASTS = [((33,), (1,)), ((4, 17), (17,)), ((4, 1), (1, 9)), ((2, 1, 5), (3, 1)), ((), (7,)),
              ((5, 1, 1), (1, 1, 33)),
              ((0, 3), (3,))]


@pytest.mark.parametrize("shapes", BROADCASTS, ids=str)
@pytest.mark.parametrize("name", ["add", "subtract", "less", "maximum", "logical_and"])
def test_broadcasting(name, shapes):
    r = np.random.default_rng(2)
    x, y = (r.integers(-3, 4, s).astype(np.float32) for s in shapes)
    want = BINARY_DEFINITION[name][0](x, y)
    for p, q, w in ((x, y, want), (y, x, BINARY_DEFINITION[name][0](y, x))):
        got = getattr(mx, name)(mx.array(p), mx.array(q))
        assert got.shape == w.shape
        np.testing.assert_array_equal(np.array(got), w)


@pytest.mark.parametrize("view", VIEWS)
def test_binary_of_views(view):
    r = np.random.default_rng(5)
    x, y = r.standard_normal((2, 33, 17)).astype(np.float32)
    got = VIEWS[view](mx.array(x)) + VIEWS[view](mx.array(y))
    np.testing.assert_array_equal(np.array(got), VIEWS[view](x) + VIEWS[view](y))
    if VIEWS[view](x).shape[0] != 33:
        return
    np.testing.assert_array_equal(np.array(VIEWS[view](mx.array(x)) * mx.array(y)[:, :1]), VIEWS[view](x) * y[:, :1])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "divide", "maximum", "less", "power"])
def test_rows_that_meet_one_value(name, dtype):
    """A column or a single number beside whole rows gives the bits that it gives written out."""
    op = getattr(mx, name)
    for columns in (2, 15, 16, 33, 300):
        rows = mx.array(np.random.default_rng(columns).uniform(-3, 3, (70, columns))).astype(getattr(mx, dtype))
        rows[3, 1] = float("nan")
        for one in (rows[:, 1:2], rows[5:6, :1], mx.array(-0.0, dtype=rows.dtype)):
            out = mx.contiguous(mx.broadcast_to(one, rows.shape))
            for got, want in ((op(rows, one), op(rows, out)), (op(one, rows), op(out, rows)),
                              (op(rows[3], one.reshape(-1)[-1:]), op(rows[3], out[-1]))):
                np.testing.assert_array_equal(np.array(got.astype(mx.float32)), np.array(want.astype(mx.float32)))


def test_shapes_that_do_not_broadcast():
    with pytest.raises(ValueError, match=r"3,4.*\(?3"):
        mx.array(np.zeros((3, 4))) + mx.array([1.0, 2.0, 3.0])




@pytest.mark.parametrize("b", ALL_DTYPES)
@pytest.mark.parametrize("a", ALL_DTYPES)
def test_promotion_is_mlx(a, b):
    oracle = pytest.importorskip("mlx.core")
    got, want = ((m.array(1, dtype_of(a, m)) + m.array(1, dtype_of(b, m))).dtype for m in (mx, oracle))
    assert name_of(got) == name_of(want)


# ---- reductions ----

REDUCE_DEFINITION = {
    "sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "all": np.all, "any": np.any, "mean": np.mean,
    "logsumexp": lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims)),
}


def reduced_dtype(name, dtype):
    if name in ("all", "any"):
        return "bool"
    if name in ("mean", "logsumexp"):
        return expected_dtype(FLOAT, dtype)
    if name in ("sum", "prod") and dtype in ("bool", "int8", "int16"):
        return "int32"
    if name in ("sum", "prod") and dtype in ("uint8", "uint16"):
        return "uint32"
    return dtype


AXES = [None, 0, 1, -1, (0, 1), (0, 2), (1, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", AXES, ids=str)
@pytest.mark.parametrize("name", REDUCE)
def test_reduce_axes(name, axis, keepdims):
    x = np.random.default_rng(7).uniform(0.5, 1.5, (5, 17, 9)).astype(np.float32)
    if name in ("all", "any"):
        x = x > 0.6 if name == "all" else x > 1.45
    got = getattr(mx, name)(mx.array(x), axis=axis, keepdims=keepdims)
    want = REDUCE_DEFINITION[name](x if x.dtype == bool else x.astype(np.float64), axis=axis, keepdims=keepdims)
    assert got.shape == want.shape
    np.testing.assert_allclose(np.array(got), want, rtol=1e-4 if name == "prod"
                               else 3e-6)     # a product of 765 roundings


@pytest.mark.parametrize("dtype", [*FLOATS, *INTS, "bool"])
@pytest.mark.parametrize("name", REDUCE)
def test_reduce_dtypes(name, dtype):
    for n in SIZES:
        values = random_values(name, n, dtype) if name != "prod" else 1 + (np.arange(n) % 9 == 0) * (n < 40)
        a, x = make(values, dtype)
        out = reduced_dtype(name, dtype)
        if name in ("mean", "logsumexp"):
            x = x.astype(np.float64)
        check(getattr(mx, name)(a), np.asarray(REDUCE_DEFINITION[name](x, axis=None, keepdims=False)), out)


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["sum", "max", "argmax"])
def test_reduce_of_views(name, view):
    x = np.random.default_rng(8).integers(-50, 50, (33, 17)).astype(np.float32)
    a, x = VIEWS[view](mx.array(x)), VIEWS[view](x)
    for axis in (None, 0, 1):
        np.testing.assert_array_equal(np.array(getattr(mx, name)(a, axis=axis)), getattr(np, name)(x, axis=axis))


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint32", "int64", "uint64", "bool"])
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "all", "any", "argmax", "argmin"])
def test_reduced_columns(name, dtype):
    """Along an axis that is not the last one, of whole rows of 1 to more than 1,024 columns: ties, NaN, the greatest
    and the least values."""
    rng = np.random.default_rng(10)
    for rows, columns in ((1, 5), (2, 1), (7, 2), (40, 33), (3, 1500)):
        x = rng.integers(-3, 4, (2, rows, columns))
        if dtype == "bool":
            x = x > 0
        elif dtype.startswith("float"):
            x = np.sign(x).astype(dtype) if name == "prod" else x.astype(dtype)      # NumPy's float16 overflows
            if name not in ("sum", "prod"):
                x[rng.random(x.shape) < 0.02] = np.nan
        else:
            x = x.astype(dtype)
            x[rng.random(x.shape) < 0.1] = np.iinfo(dtype).max
            x[rng.random(x.shape) < 0.1] = np.iinfo(dtype).min
        got = np.array(getattr(mx, name)(mx.array(x), axis=1))
        exact = x.astype(got.dtype) if name in ("sum", "prod") else x
        with np.errstate(all="ignore"):
            want = getattr(np, name)(exact, axis=1)
        np.testing.assert_array_equal(got, want.astype(got.dtype))


def test_sum_of_many_does_not_drift():
    n = 1 << 22
    total = mx.sum(mx.broadcast_to(mx.array(0.1), (n,))).item()
    assert abs(total / (n * float(np.float32(0.1))) - 1) < 1e-6


def test_nan_wins():
    a = mx.array([1.0, float("nan"), 3.0])
    assert math.isnan(mx.max(a).item()) and math.isnan(mx.min(a).item())
    assert math.isnan(mx.maximum(a, 2.0)[1].item()) and math.isnan(mx.minimum(2.0, a)[1].item())


def test_empty_reductions():
    empty = mx.array([])
    assert mx.sum(empty).item() == 0 and mx.prod(empty).item() == 1
    assert mx.all(empty).item() is True and mx.any(empty).item() is False
    for op in (mx.max, mx.min, mx.argmax, mx.logsumexp):
        with pytest.raises(ValueError):
            op(empty)
    for axis in (0, 1, None):
        assert mx.softmax(mx.zeros((0, 3)), axis).shape == (0, 3)


def test_axis_errors():
    a = mx.array(np.zeros((2, 3)))
    for call in (lambda: mx.sum(a, axis=2), lambda: mx.argmax(a, axis=-3), lambda: mx.softmax(a, 5),
                 lambda: a.squeeze(3),
                 lambda: mx.take(a, 0, axis=2), lambda: mx.transpose(a, (0, 5)),
                 lambda: mx.concatenate([a, a], axis=2)):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(ValueError):
        mx.sum(a, axis=(0, 0))
    with pytest.raises(TypeError):
        mx.sum(a, axis="x")


# ---- the catalogue itself ----

UNSTREAMED = ("random_key", "broadcast_shapes", "depends", "metal_kernel", "cuda_kernel")


def test_every_row_has_a_function_with_a_signature():
    for _, name, namespace in ROWS:
        if namespace == "engine":
            assert not hasattr(mx, name) and not hasattr(mx.fast, name)
            continue
        namespace = namespace or "core"
        space = mx if namespace == "core" else getattr(mx, namespace)
        function = getattr(space, name.removeprefix("random_") if namespace == "random" else name)
        assert function.__doc__ and function.__text_signature__.startswith("(")
        assert function.__text_signature__.endswith("stream=None)") or name in UNSTREAMED
        assert function.__module__ == ("gomlx.core" if namespace == "core" else f"gomlx.core.{namespace}")
        assert namespace != "core" or name in mx.__all__


def test_every_argument_has_a_word_in_the_docstring():
    for _, name, namespace in ROWS:
        if namespace == "engine":
            continue
        space = mx if namespace in (None, "", "core") else getattr(mx, namespace)
        function = getattr(space, name.removeprefix("random_") if namespace == "random" else name)
        first, _, rest = function.__doc__.partition("\n\n")
        arguments = set(re.findall(r"(?:^|\(|, )\*?([A-Za-z]\w*)", function.__text_signature__)) - {"stream"}
        described = set(re.findall(r"\w+", " ".join(re.findall(r"^(\S.*?) {3,}\S", rest, re.M))))
        assert arguments <= described and first, (name, arguments - described)


def test_argument_errors():
    a = mx.array([1.0])
    for call in (lambda: mx.exp(), lambda: mx.exp(a, a), lambda: mx.exp(a=a), lambda: mx.exp(a, streem=None),
                 lambda: mx.add(a),
                 lambda: mx.add(a, b=a, c=1), lambda: mx.add(a, a, a=a), lambda: mx.exp(a, stream="x"),
                 lambda: mx.exp(None)):
        with pytest.raises(TypeError):
            call()
    for call in (lambda: mx.exp("x"), lambda: mx.add([1], a)):
        with pytest.raises(ValueError):
            call()


# ---- long reductions, which are cut into blocks ----

LONG = [((300_001,), None), ((3, 150_001), 1), ((150_001, 3), 0), ((70_000, 9), 0), ((2, 70_003, 5), 1),
        ((2049, 1030), 0), ((70_003, 4), None)]


@pytest.mark.parametrize("shape, axis", LONG, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int8", "int64", "uint64", "bool", "complex64"])
def test_long_reductions(shape, axis, dtype):
    r = np.random.default_rng(3)
    a = mx.array(r.integers(0, 3, shape).astype(np.float32) - (0 if dtype[0] in "ub" else 1)).astype(dtype_of(dtype))
    x = values_of(a)
    for name in ("sum", "max", "min", "all", "any"):
        if dtype == "complex64" and name in ("max", "min"):
            continue
        want = getattr(np, name)(x, axis=axis)
        got = values_of(getattr(mx, name)(a, axis=axis))
        np.testing.assert_allclose(got, want, rtol=1e-2 if dtype == "bfloat16" else 1e-5, err_msg=name)
    if dtype in ("float32", "float64"):
        want = np.log(np.exp(x).sum(axis=axis))
        np.testing.assert_allclose(values_of(mx.logsumexp(a, axis=axis)), want, rtol=1e-5)


def test_threads_do_not_change_the_bits_of_long_reductions():
    from gomlx import _gomlx
    a = mx.array(np.random.default_rng(4).standard_normal((2500, 300)).astype(np.float32))
    results = []
    for n in (1, 2, 3):
        _gomlx.set_threads(n)
        results.append([np.array(f).tobytes() for f in (mx.sum(a), mx.sum(a, axis=0), mx.sum(a, axis=1),
                                                        mx.logsumexp(a))])
    _gomlx.set_threads(2)
    assert results[0] == results[1] == results[2]


def test_correction_is_ddof():
    x = mx.array([1.0, 2, 4])
    for f, g in ((mx.var, x.var), (mx.std, x.std)):
        assert f(x, correction=1).item() == f(x, ddof=1).item() == g(correction=1).item() != f(x).item()


def test_empty_arrays_have_no_extremes():
    for f in (mx.argmax, mx.argmin, mx.logsumexp):
        for shape, axis in (((0,), 0), ((3, 0), 0), ((0, 3), 1), ((0,), None)):
            with pytest.raises(ValueError):
                f(mx.zeros(shape), axis=axis)
    with pytest.raises(ValueError):
        mx.pad(mx.zeros((0, 0)), 1, "edge")


def test_floor_division_of_complex_numbers_is_division():
    a, b = mx.array([1 + 2j, -3.5 + 1j]), mx.array([2, 1 + 1j])
    assert mx.array_equal(a // b, a / b).item()


# ---- what is easily lost: ties, scalars, out of range ----

COMPLEX_ROWS = [[1, 1 + 1j, 1 - 1j], [1 + 5j, 2 + 1j, 3j], [2, 2, 2], [0j, complex(-0.0, -0.0), 0j],
                [-1, -1 - 1j, -1 + 1j]]


@pytest.mark.parametrize("name", ["max", "min"])
def test_places_of_complex_extremes(name):
    """The order of complex numbers is that of max, min and sort: by real, then by imaginary part."""
    for row in COMPLEX_ROWS:
        for n in (3, 1500):
            z = np.array((row * n)[:n], np.complex64)
            place = getattr(mx, "arg" + name)(mx.array(z)).item()
            assert z[place] == getattr(mx, name)(mx.array(z)).item() and place == np.flatnonzero(z == z[place])[0]
    nan = float("nan")
    for row, place in (([1 + 1j, complex(1, nan), complex(nan, 1)], 1), ([nan, 1], 0), ([1, 2, complex(0, nan)], 2)):
        assert getattr(mx, "arg" + name)(mx.array(np.array(row, np.complex64))).item() == place


def test_count_over_no_axes():
    a = mx.array([[1, 0], [2, 3]])
    got = mx.count_nonzero(a, axis=())
    assert got.dtype == mx.int32 and got.tolist() == [[1, 0], [1, 1]]


def test_bool_rounded_to_tens():
    for decimals, want in ((0, [True, False]), (1, [True, False]), (-1, [False, False]), (-2, [False, False])):
        got = mx.round(mx.array([True, False]), decimals)
        assert got.dtype == mx.bool_ and got.tolist() == want


@pytest.mark.parametrize("dtype", ["uint8", "uint32", "uint64", "int8"])
def test_the_truth_of_a_scalar_has_no_dtype(dtype):
    a = mx.array([0, 3], dtype_of(dtype))
    for scalar in (-1, 300, 2**40, 0.5, True):
        for x, y in ((a, scalar), (scalar, a)):
            assert mx.logical_and(x, y).tolist() == [False, True]
            assert mx.logical_or(x, y).tolist() == [True, True]
            assert mx.logical_xor(x, y).tolist() == [True, False]
    with pytest.raises(ValueError, match="fit"):
        mx.array([1], mx.uint8) + 300


@pytest.mark.parametrize("dtype", INTS)
def test_shifts_count_round_the_width(dtype):
    """Counts go round at 64 bits, or 32 for all narrower integers, as on x86."""
    bits, width = 8 * np.dtype(dtype).itemsize, 64 if dtype.endswith("64") else 32
    values = np.array([1, 3, 100, 5] if dtype[0] == "u" else [1, -3, 100, -7], dtype)
    counts = [c for c in (0, 1, 7, 9, 31, 32, 33, 40, 63, 64, 65, 100, -1, -33) if dtype[0] == "i" or c >= 0]
    for count in counts:
        a, by = mx.array(values), mx.array(np.full(4, count, dtype))
        left = [(int(v) << count % width) % 2**bits for v in values]
        np.testing.assert_array_equal(np.array(mx.left_shift(a, by)), np.array(left, np.uint64).astype(dtype))
        np.testing.assert_array_equal(np.array(mx.right_shift(a, by)), [int(v) >> count % width for v in values])
        np.testing.assert_array_equal(np.array(mx.compile(lambda x, y: (x << y) + 0)(a, by)),
                                      np.array(mx.left_shift(a, by)))


def test_complex_powers_of_zero():
    inf, nan = float("inf"), float("nan")
    zero = mx.array([0j])
    for exponent, want in ((-1, (inf, nan)), (-1 + 1j, (inf, nan)), (1j, (nan, nan)), (nan, (nan, nan)),
                           (complex(nan, 1), (nan, nan)), (0, (1, 0)), (2, (0, 0)), (1 + 1j, (0, 0)), (0.5, (0, 0))):
        got = (zero ** mx.array(np.array([exponent], np.complex64))).item()
        np.testing.assert_array_equal([got.real, got.imag], want)


@pytest.mark.parametrize("name", BINARY)
def test_shape_errors_name_the_op(name):
    a, b = mx.zeros((2, 3), mx.int32), mx.zeros((4,), mx.int32)
    with pytest.raises(ValueError, match=rf"^{name}: shapes \(2,3\) and \(4\) cannot be broadcast together$"):
        getattr(mx, name)(a, b)


def test_shape_errors_of_what_is_made_of_others():
    a, b = mx.zeros((2, 3)), mx.zeros((4,))
    calls = {"isclose": lambda: mx.isclose(a, b), "allclose": lambda: mx.allclose(a, b),
             "divmod": lambda: mx.divmod(a, b),
             "clip": lambda: mx.clip(a, b, None), "vecdot": lambda: mx.vecdot(a, mx.zeros((3, 3))),
             "bitwise_and": lambda: mx.bitwise_and(a, b), "add": lambda: a + b}
    for name, call in calls.items():
        with pytest.raises((ValueError, RuntimeError), match=f"^{name}: "):
            call()


# ---- sums and products that leave the range of float32 on their way, and come back ----

def far_out(n, name, seed=0):
    """Elements whose sums, or products, up to each one are finite and normal, and those of other parts often are
    not."""
    r = np.random.default_rng([n, seed])
    if name == "sum":
        prefix = r.uniform(-3.4e38, 3.4e38, n)
        return np.diff(prefix, prepend=0).clip(-3.4e38, 3.4e38).astype(np.float32)
    exponent = r.uniform(-125, 127, n)
    return np.exp2(np.diff(exponent, prepend=0).clip(-125, 127)).astype(np.float32)


def prefixes(x, name):
    with np.errstate(over="ignore"):
        return (np.cumsum if name == "sum" else np.multiply.accumulate)(x.astype(np.longdouble))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["sum", "prod"])
def test_reductions_whose_prefixes_are_finite(name, dtype):
    for n in [2, 3, 7, 8, 17, 33, 250, 1000, 1030, 4000, 300_000]:
        pair = [3e38, 3e38, -3e38, -3e38] if name == "sum" else [1e-30, 1e30, 1e30, 1e-30]
        for x in (np.resize(np.roll(pair, 1 if name == "sum" else 0), n), far_out(n, name)):
            a = mx.array(x.astype(np.float32)).astype(dtype_of(dtype))
            steps = prefixes(values_of(a), name)
            size = np.abs(steps)
            if not np.all((size < 3.3e38) & ((name == "sum") | (size > 1.3e-38))):
                continue                                    # no longer what it was made to be, after rounding
            scale = np.abs(values_of(a)).max() * 1e-6 * max(1, n / 1000) if name == "sum" else 0
            for got in (getattr(mx, name)(a), getattr(mx, name)(mx.broadcast_to(a[:, None], (n, 5)), axis=0)[3],
                        getattr(mx, name)(mx.contiguous(mx.broadcast_to(a[:, None], (n, 5))), axis=0)[3],
                        getattr(mx, name)(mx.contiguous(mx.broadcast_to(a, (3, n))), axis=1)[1]):
                np.testing.assert_allclose(values_of(got), float(steps[-1]),
                                           rtol=2e-2 if dtype == "bfloat16" else 1e-5 + 1.2e-7 * n,
                                           atol=scale)                 # a rounding each


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("n", [7, 250, 1000, 5000])
def test_running_products_whose_prefixes_are_finite(n, reverse):
    exponent = np.random.default_rng(n).uniform(-62, 62, n)
    for x in (np.exp2(np.diff(exponent, prepend=0)), np.resize([1e-30, 1e30, 1e30, 1e-30], n)):
        x = x.astype(np.float32)[::-1] if reverse else x.astype(np.float32)
        steps = prefixes(x[::-1] if reverse else x, "prod")
        steps = (steps[::-1] if reverse else steps).astype(np.float64)
        a = mx.array(x)
        columns = mx.cumprod(mx.contiguous(mx.broadcast_to(a[:, None], (n, 3))), axis=0, reverse=reverse)
        for got in (mx.cumprod(a, reverse=reverse), columns[:, 1]):
            np.testing.assert_allclose(values_of(got), steps, rtol=1e-5 + 1.2e-7 * n)


def test_a_zero_before_large_numbers():
    x = mx.array([0.0] + [1e30] * 40)
    assert mx.prod(x).item() == 0 and mx.cumprod(x).tolist() == [0] * 41
    assert mx.prod(mx.array([float("inf"), 0.0])).item() != mx.prod(mx.array([float("inf"), 0.0])).item()
    assert mx.sum(mx.array([float("inf"), 1.0])).item() == float("inf")
    assert np.isnan(mx.sum(mx.array([float("inf"), float("-inf")])).item())
    assert mx.sum(mx.array([1.7e308, -1.7e308] * 8, mx.float64)).item() == 0
