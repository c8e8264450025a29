"""Scans, sorts and selections against NumPy: every dtype, sizes around the vector widths, blocks and digits, NaN and
infinities, views, empty arrays; errors by class; gradients against finite differences; vmap against a loop; bits
whatever the threads."""
import numpy as np
import pytest
from arrays import check_vmap
from test_gradients import check_gradient

import gomlx.core as mx
from gomlx import _gomlx

pytestmark = pytest.mark.isa

try:
    import mlx.core as mlx
except ImportError:
    mlx = None

DTYPES = ["bool_", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "bfloat16",
          "float32",
          "float64", "complex64"]
SIZES = [1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 255, 257, 1000, 1025, 4095, 4097, 20000]


def values_for(dtype, shape, seed=0, ties=False):
    r = np.random.default_rng(seed)
    if dtype == "bool_":
        return r.integers(0, 2, shape).astype(bool)
    if dtype[0] in "ui":
        info = np.iinfo(dtype)
        low, high = (info.min, info.max) if not ties else (max(info.min, -3), 3)
        return r.integers(low, high, shape, dtype=dtype, endpoint=True)
    x = r.normal(size=shape) * 10 if not ties else r.integers(-2, 3, shape) * 0.5
    if dtype == "complex64":
        return (x + 1j * r.integers(-2, 3, shape)).astype(np.complex64)
    x = x.astype(np.float64 if dtype == "float64" else np.float32)
    flat = x.reshape(-1)
    if flat.size >= 16:
        flat[r.integers(0, flat.size, 8)] = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, np.nan, 1.0]
    return x


def pair(dtype, shape, **options):
    """An array, and what it holds as NumPy sees it."""
    n = values_for(dtype, shape, **options)
    a = mx.array(n, dtype=mx.float64) if dtype == "float64" else mx.array(n).astype(getattr(mx, dtype))
    return a, numbers(a) if dtype in ("float16", "bfloat16") else n


def numbers(a):
    return np.array(a.astype(mx.float32) if a.dtype in (mx.float16, mx.bfloat16) else a)


# ---- sorts ----

@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sort_and_argsort(dtype, ties):
    for size in SIZES:
        a, n = pair(dtype, (size,), seed=size, ties=ties)
        got = mx.sort(a)
        assert got.dtype == a.dtype
        np.testing.assert_array_equal(numbers(got), np.sort(n))
        places = mx.argsort(a)
        assert places.dtype == mx.uint32
        np.testing.assert_array_equal(np.array(places), np.argsort(n, kind="stable"))


@pytest.mark.parametrize("dtype", ["bool_", "int16", "uint32", "bfloat16", "float32", "int64", "complex64"])
def test_long_rows(dtype):
    for size in (131072, 300001):
        a, n = pair(dtype, (size,), seed=size)
        np.testing.assert_array_equal(numbers(mx.sort(a)), np.sort(n))
        np.testing.assert_array_equal(np.array(mx.argsort(a)), np.argsort(n, kind="stable"))
    a, n = pair(dtype, (2, 140000), seed=1)
    np.testing.assert_array_equal(numbers(mx.sort(a)), np.sort(n))
    np.testing.assert_array_equal(np.array(mx.argsort(a)), np.argsort(n, kind="stable"))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, None])
def test_axes_and_views(axis):
    a, n = pair("float32", (5, 33, 18))
    for x, y in ((a, n), (mx.transpose(a, (2, 0, 1)), n.transpose(2, 0, 1)), (a[::-1, ::2], n[::-1, ::2]),
                 (mx.broadcast_to(a[:, :1], (5, 4, 18)), np.broadcast_to(n[:, :1], (5, 4, 18)))):
        np.testing.assert_array_equal(np.array(mx.sort(x, axis=axis)), np.sort(y, axis=axis))
        np.testing.assert_array_equal(np.array(mx.argsort(x, axis=axis)), np.argsort(y, axis=axis, kind="stable"))


def test_sort_leaves_its_input_alone():
    a = mx.array([3.0, 1.0, 2.0])
    assert mx.sort(a).tolist() == [1, 2, 3] and a.tolist() == [3, 1, 2]
    b = mx.array([3.0, 1.0, 2.0]) + 0                    # its memory may be reused
    assert mx.sort(b).tolist() == [1, 2, 3]


def check_split(n, got, k):
    """got holds the values of n, with the k-th in its place, none above it before and none below it behind."""
    np.testing.assert_array_equal(np.sort(got, axis=-1), np.sort(n, axis=-1))
    order = np.sort(n, axis=-1)[..., k:k + 1]
    np.testing.assert_array_equal(got[..., k:k + 1], order)

    def rank(x):                                           # NaN above everything
        return np.where(np.isnan(x), np.inf, x) if x.dtype.kind == "f" else x

    assert (rank(got[..., :k]) <= rank(order)).all() and (rank(got[..., k + 1:]) >= rank(order)).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != "complex64"])
def test_partition(dtype, ties):
    for size in (1, 2, 17, 64, 300, 513, 3000):
        for k in sorted({0, size // 3, size - 1}):
            a, n = pair(dtype, (3, size), seed=size, ties=ties)
            n = n.astype(np.int8) if dtype == "bool_" else n
            got = mx.partition(a, k)
            assert got.dtype == a.dtype
            check_split(n, numbers(got).astype(n.dtype), k)
            places = np.array(mx.argpartition(a, k - size))
            assert places.dtype == np.uint32
            np.testing.assert_array_equal(np.sort(places, axis=-1), np.broadcast_to(np.arange(size), (3, size)))
            np.testing.assert_array_equal(np.take_along_axis(n, places.astype(np.int64), -1),
                                          numbers(got).astype(n.dtype))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "float16", "bfloat16", "float32", "float64"])
def test_topk(dtype, ties):
    for size in (1, 5, 16, 100, 1000, 9000):
        for k in sorted({0, 1, min(3, size), size // 8, size // 2, size}):
            a, n = pair(dtype, (3, size), seed=size + k, ties=ties)
            got = mx.topk(a, k)
            assert got.shape == (3, k) and got.dtype == a.dtype
            np.testing.assert_array_equal(np.sort(numbers(got), axis=-1), np.sort(n, axis=-1)[:, size - k:])
    a, n = pair("float32", (40, 3))
    np.testing.assert_array_equal(np.sort(np.array(mx.topk(a, 4, axis=0)), axis=0), np.sort(n, axis=0)[36:])
    assert mx.topk(a, 7, axis=None).shape == (7,)


def test_topk_of_rising_and_falling_rows():
    for n in (np.arange(5000.0), -np.arange(5000.0), np.zeros(5000), np.full(5000, -np.inf), np.full(5000, np.nan)):
        got = np.sort(np.array(mx.topk(mx.array(n.astype(np.float32)), 100)))
        np.testing.assert_array_equal(got, np.sort(n)[-100:])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "bfloat16"])
def test_searchsorted(dtype, side):
    for size in (0, 1, 2, 33, 1000):
        a, n = pair(dtype, (size,), seed=size, ties=True)
        v, m = pair(dtype, (4, 9), seed=1, ties=True)
        got = mx.searchsorted(mx.sort(a), mx.transpose(v), side=side)
        assert got.dtype == mx.uint32
        np.testing.assert_array_equal(np.array(got), np.searchsorted(np.sort(n), m.T, side=side))
    assert mx.searchsorted(mx.array([1, 2, 2, 3]), mx.array([2.5])).tolist() == [3]


# ---- scans ----

SCANS = {"cumsum": (np.cumsum, 0), "cumprod": (np.cumprod, 1), "cummax": (np.maximum.accumulate, None),
         "cummin": (np.minimum.accumulate, None), "logcumsumexp": (np.logaddexp.accumulate, -np.inf)}


def scan_with_numpy(name, n, axis, reverse, inclusive, dtype):
    function, start = SCANS[name]
    if start is None:
        extreme = np.iinfo(n.dtype) if n.dtype.kind in "iu" else None
        start = {"cummax": extreme.min if extreme else -np.inf, "cummin": extreme.max if extreme else np.inf}[name]
    n = np.flip(n, axis) if reverse else n
    full = function(n.astype(np.float64) if n.dtype.kind == "f" else n, axis=axis,
                    **({"dtype": n.dtype} if n.dtype.kind in "iu" and name in ("cumsum", "cumprod") else {}))
    if not inclusive:
        shape = [1 if i == axis else size for i, size in enumerate(n.shape)]
        full = np.concatenate([np.full(shape, start, full.dtype), np.take(full, range(n.shape[axis] - 1), axis)], axis)
    return np.flip(full, axis) if reverse else full


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", SCANS)
def test_scans(name, reverse, inclusive):
    r = np.random.default_rng(0)
    for dtype in ("float32", "bfloat16", "int32", "uint8", "float64"):
        for shape, axis in [((1,), 0), ((17,), 0), ((3, 33), 1), ((3, 33), 0), ((5, 7, 20), 1), ((2, 5000), 1),
                            ((5000, 3), 0),
                            ((4, 2100, 70), 1)]:
            if dtype in ("int32", "uint8") and name == "logcumsumexp":
                continue
            n = r.integers(0, 200, shape) if dtype in ("int32", "uint8") else \
                r.uniform(0.5, 1.5, shape) ** (0.01 if name == "cumprod" else 1)
            if name == "logcumsumexp":
                n = n * 20 - 10
            a = (mx.array(n, dtype=mx.float64) if dtype == "float64"
                 else mx.array(n.astype(np.float32)).astype(getattr(mx, dtype)))
            n = numbers(a)
            n = n if dtype != "bfloat16" else n.astype(np.float32)
            got = getattr(mx, name)(a, axis=axis, reverse=reverse, inclusive=inclusive)
            assert got.dtype == a.dtype
            want = scan_with_numpy(name, n, axis, reverse, inclusive, dtype)
            if n.dtype.kind in "iu":
                np.testing.assert_array_equal(np.array(got), want)
            else:
                rtol = {"float32": 6e-6 if name == "logcumsumexp" else 2e-6, "bfloat16": 8e-3, "float64": 1e-12}[dtype]
                np.testing.assert_allclose(numbers(got), want, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "complex64"])
def test_scans_of_many_columns(dtype):
    n = np.random.default_rng(1).integers(0, 9, (3, 5000)).astype(dtype)
    np.testing.assert_array_equal(np.array(mx.cumsum(mx.array(n), 0)), np.cumsum(n, 0, dtype=dtype))


def test_scan_of_a_long_row_does_not_drift():
    n = np.random.default_rng(0).uniform(0, 1, 3_000_000).astype(np.float32)
    for options in ({}, {"reverse": True}, {"inclusive": False}):
        got = np.array(mx.cumsum(mx.array(n), **options))
        np.testing.assert_allclose(got, scan_with_numpy("cumsum", n, 0, options.get("reverse", False),
                                                        options.get("inclusive", True), ""), rtol=3e-6)


def walk(name, n, seed):
    """Elements of float32 whose sums, or products, up to each one are finite and normal."""
    r, x, at = np.random.default_rng([n, seed]), np.empty(n, np.float32), 0.0 if name == "cumsum" else 1.0
    for i in range(n):
        goal = r.uniform(-3e38, 3e38) if name == "cumsum" else 2.0 ** r.uniform(-120, 120)
        x[i] = np.clip(goal - at, -3e38, 3e38) if name == "cumsum" else np.clip(goal / at, 2.0**-125, 2.0**126)
        at = at + float(x[i]) if name == "cumsum" else at * float(x[i])
    return x


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("n", [4, 8, 17, 40, 2047, 2049, 4200, 300_000])
def test_scans_whose_prefixes_are_finite(name, n):
    """However far the sums and products of parts of a row are out of range: rows, columns, and blocks on all
    threads."""
    x = walk(name, n, 1)
    want = getattr(np, name)(x.astype(np.longdouble))
    assert np.isfinite(want.astype(np.float32)).all()
    forms = {"row": (mx.array(x), {}, 0), "reverse": (mx.array(x[::-1].copy()), {"reverse": True}, 0)}
    if n < 5000:
        forms |= {"rows": (mx.array(np.tile(x, (9, 1))), {"axis": 1}, 4),
                  "columns": (mx.array(np.tile(x[:, None], 19)), {"axis": 0}, 5)}
    for form, (a, options, pick) in forms.items():
        for inclusive in (True, False):
            got = np.array(getattr(mx, name)(a, inclusive=inclusive, **options)).astype("d")
            got = (got[::-1] if form == "reverse" else got[pick] if form == "rows"
                   else got[:, pick] if form == "columns" else got)
            got, wanted = (got, want) if inclusive else (got[1:], want[:-1])
            np.testing.assert_allclose(got, wanted.astype("d"), rtol=3e-7 * n if name == "cumprod" else 0,
                                       atol=1e32 * n**0.5 if name == "cumsum" else 0, err_msg=form)


def test_scans_in_place_of_their_input():
    """The blocks that are worked on again find their elements, where the results took their place."""
    x = walk("cumprod", 5000, 2)
    want = np.array(mx.cumprod(mx.array(x)))
    np.testing.assert_array_equal(np.array(mx.cumprod(mx.array(x) * 1)), want)
    np.testing.assert_array_equal(np.array(mx.cumprod(mx.array(x[::-1].copy()) * 1, reverse=True))[::-1], want)


def test_scans_of_special_values():
    a = mx.array([1.0, float("nan"), 2.0])
    assert np.isnan(np.array(mx.cummax(a))[1:]).all() and np.isnan(np.array(mx.cummin(a))[1:]).all()
    got = np.array(mx.logcumsumexp(mx.array([-np.inf, -np.inf, 0.0, np.inf, 1.0])))
    np.testing.assert_array_equal(got, [-np.inf, -np.inf, 0, np.inf, np.inf])
    assert mx.cumsum(mx.array([True, True])).tolist() == [1,
                                                          2] and mx.cumprod(mx.array([True, False])).dtype == mx.bool_
    assert mx.cumsum(mx.zeros((2, 0, 3)), axis=1).shape == (2, 0, 3) and mx.cumsum(mx.array(3)).tolist() == [3]
    assert mx.cumsum(mx.array([1.5]), dtype=mx.int32).tolist() == [1]
    z = mx.array([1 + 1j, 2, 0.5j])
    np.testing.assert_allclose(np.array(mx.cumprod(z)), np.cumprod(np.array(z)))
    np.testing.assert_allclose(np.array(mx.logcumsumexp(z)), np.log(np.cumsum(np.exp(np.array(z)))), rtol=1e-6)


# ---- errors, gradients, batches, bits ----

ERRORS = [(IndexError, text) for text in ("m.sort(a, axis=2)", "m.sort(m.array(3))", "m.argsort(a, axis=-3)",
                                          "m.cumsum(a, axis=2)",
                                          "m.partition(a, 0, axis=2)", "m.topk(a, 1, axis=2)",
                                          "m.cummax(m.array(3), axis=0)")]
ERRORS += [(ValueError, text) for text in ("m.partition(a, 3)", "m.partition(a, -4)", "m.argpartition(a, 3)",
                                           "m.topk(a, 4)",
                                           "m.topk(a, -1)", "m.searchsorted(a, a)",
                                           "m.searchsorted(a[0], a, side='x')")]
ERRORS += [(TypeError, text) for text in ("m.sort(1)", "m.cumsum(1)", "m.cumsum(a, 1, True)", "m.searchsorted(a[0], 2)",
                                          "m.topk(a, 1.5)")]


@pytest.mark.parametrize("error, text", ERRORS, ids=[text for _, text in ERRORS])
def test_errors(error, text):
    for m in (mx, mlx):
        if m is not None:
            with pytest.raises(error):
                eval(text, {"m": m, "a": m.array([[1, 2, 3], [4, 5, 6]])})


DIFFERENTIABLE = {
    "sort": lambda x: mx.sort(x), "sort columns": lambda x: mx.sort(x, axis=0),
    "sort all": lambda x: mx.sort(x, axis=None),
    "partition": lambda x: mx.partition(x, 2), "topk": lambda x: mx.topk(x, 2),
    "topk columns": lambda x: mx.topk(x, 1, axis=0),
    "cumsum": lambda x: mx.cumsum(x, 1), "cumsum back": lambda x: mx.cumsum(x, 0, reverse=True, inclusive=False),
    "cumprod": lambda x: mx.cumprod(x, 1), "cumprod back": lambda x: mx.cumprod(x, 0, reverse=True, inclusive=False),
    "cummax": lambda x: mx.cummax(x, 1), "cummin back": lambda x: mx.cummin(x[:, ::-1], 1, reverse=True),
    "logcumsumexp": lambda x: mx.logcumsumexp(x, 1), "logcumsumexp back": lambda x: mx.logcumsumexp(x, 0, reverse=True),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name):
    check_gradient(DIFFERENTIABLE[name], np.random.default_rng(3).uniform(0.3, 2.0, (3, 4)),
                   second=name.startswith(("cumprod", "logcumsumexp")))


def test_gradient_of_exclusive_extremes_and_logs():
    n = np.random.default_rng(3).uniform(0.3, 2.0, (6,))
    for function in (mx.cummax, mx.cummin, mx.logcumsumexp):
        for reverse in (False, True):
            rest = slice(None, -1) if reverse else slice(1, None)          # the first one is infinite
            check_gradient(lambda x, f=function, b=reverse, r=rest: f(x, reverse=b, inclusive=False)[r], n,
                           second=False)


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
def test_gradient_of_cumprod_with_zeros(reverse, inclusive):
    for zeros in ([1], [0], [3], [1, 3], [0, 1, 2, 3]):
        n = np.array([1.5, 0.7, 2.0, 1.2])
        n[zeros] = 0
        check_gradient(lambda x: mx.cumprod(x, reverse=reverse, inclusive=inclusive), n, second=False)


def test_topk_gradient_by_the_filter():
    x = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    got = np.array(mx.grad(lambda a: mx.topk(a, 5).sum())(mx.array(x)))
    want = np.zeros(1000)
    want[np.argsort(x)[-5:]] = 1
    np.testing.assert_array_equal(got, want)


BATCHED = {"argsort": lambda x: mx.argsort(x, axis=0), "argpartition": lambda x: mx.argpartition(x, 1),
           **DIFFERENTIABLE}


@pytest.mark.parametrize("name", BATCHED)
def test_vmap(name):
    check_vmap(BATCHED[name])


def test_vmap_of_searchsorted():
    rows, values = mx.sort(mx.array(np.random.default_rng(0).normal(size=(3, 10)).astype(np.float32))), mx.array([0.0,
                                                                                                                  1.0])
    want = np.stack([np.searchsorted(row, [0, 1]) for row in np.array(rows)])
    np.testing.assert_array_equal(np.array(mx.vmap(mx.searchsorted, in_axes=(0, None))(rows, values)), want)
    one = mx.array([0.0, 1.0, 2.0])
    np.testing.assert_array_equal(np.array(mx.vmap(mx.searchsorted, in_axes=(None, 0))(one, rows)),
                                  np.searchsorted([0, 1, 2], np.array(rows)))


def test_bits_do_not_depend_on_threads():
    a = mx.array(np.random.default_rng(0).normal(size=400_000).astype(np.float32))
    b = mx.reshape(a, (400, 1000))
    found = []
    try:
        for threads in (1, 2, 3):
            _gomlx.set_threads(threads)
            found.append([np.array(x).tobytes() for x in (
                mx.cumsum(a), mx.cumsum(a, reverse=True), mx.cumsum(b, 0), mx.cumsum(b, 1), mx.logcumsumexp(a),
                mx.sort(a),
                mx.argsort(a), mx.topk(a, 50), mx.partition(a, 1000))])
    finally:
        _gomlx.set_threads(_gomlx.default_threads())
    assert found[0] == found[1] == found[2]
    row = np.array(mx.cumsum(b, 1))[3]
    np.testing.assert_array_equal(row, np.array(mx.cumsum(b[3])))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("at", [0, 1, 4])
def test_logcumsumexp_of_complex_numbers_keeps_nan(at, reverse):
    """From a NaN on everything is, also where it is the first; but e**(-inf + nan i) is 0."""
    x = np.array([1 + 1j, 2, -1j, 0.5, 3], "F")
    x[at] = complex(np.nan, 1)
    got = np.isnan(np.array(mx.logcumsumexp(mx.array(x), reverse=reverse)))
    want = np.arange(5) >= at
    np.testing.assert_array_equal(got, np.arange(5) <= at if reverse else want)
    x[at] = complex(-np.inf, np.nan)
    np.testing.assert_allclose(np.array(mx.logcumsumexp(mx.array(x)))[-1], np.log(np.exp(np.delete(x, at)).sum()), 1e-5)
