"""Dense products against NumPy in float64, and what is promised of their bits: an element is added up in an order that
only k gives, whatever rows, columns, batches, layouts and threads come with it."""
import numpy as np
import pytest

import gomlx.core as mx
from gomlx import _gomlx

pytestmark = pytest.mark.isa

# The error of a sum of n products, as a part of the sum of their sizes, and of one rounding of the result.
ERRORS = {"float32": (2e-6, 0), "float16": (2e-6, 2.0**-11), "bfloat16": (2e-6, 2.0**-8), "float64": (1e-14, 0),
          "complex64": (4e-6, 0)}
DTYPES = list(ERRORS)
LEAST = {"float16": 2.0**-25}            # half of what lies between two denormal numbers


def make(shape, dtype, seed=0):
    """(array, its exact values)"""
    r = np.random.default_rng([seed, *shape])
    v = r.standard_normal(shape)
    if dtype == "complex64":
        v = (v + 1j * r.standard_normal(shape)).astype(np.complex64)
    elif dtype != "float64":
        v = v.astype(np.float32)
    a = mx.array(v, dtype=getattr(mx, dtype))
    return a, values(a)


def values(a):
    if a.dtype == mx.complex64:
        return np.array(a).astype(np.complex128)
    return np.array(a if a.dtype == mx.float64 else a.astype(mx.float32)).astype(np.float64)


def check(got, x, y, dtype):
    want, (error, rounding) = x @ y, ERRORS[dtype]
    assert got.dtype == getattr(mx, dtype) and got.shape == want.shape
    bound = error * (np.abs(x) @ np.abs(y)) + rounding * np.abs(want) * 1.01 + LEAST.get(dtype, 1e-37)
    assert (np.abs(values(got) - want) <= bound).all()


def bits(a):
    return np.array(a.view(mx.uint16 if a.dtype in (mx.float16, mx.bfloat16) else mx.uint32))


SHAPES = [(1, 300, 40), (1, 1, 1), (2, 129, 65), (3, 7, 100), (4, 256, 16), (5, 128, 33), (8, 127, 17), (13, 40, 3),
          (49, 257, 31),
          (50, 64, 130), (100, 1, 20), (97, 600, 70), (6, 0, 5), (0, 4, 3), (3, 4, 0), (300, 33, 1), (20, 40, 520)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m, k, n", SHAPES)
def test_layouts(m, k, n, dtype):
    a, x = make((m, k), dtype)
    b, y = make((k, n), dtype, 1)
    check(a @ b, x, y, dtype)
    at, xt = make((k, m), dtype, 2)
    bt, yt = make((n, k), dtype, 3)
    check(at.T @ b, xt.T, y, dtype)
    check(a @ bt.T, x, yt.T, dtype)
    check(at.T @ bt.T, xt.T, yt.T, dtype)
    wide, xw = make((2 * m, 3 * k), dtype, 4)
    back, yb = make((2 * k, n + 3), dtype, 5)
    check(wide[::2, ::3] @ back[::-2, 2:n + 2], xw[::2, ::3], yb[::-2, 2:n + 2], dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_columns_and_batches_do_not_change_bits(dtype):
    """A row or a column alone, among few, among many; a matrix alone and in a batch; the same values in another
    layout."""
    for k in (1, 100, 129, 700):
        a, b = make((4, 70, k), dtype)[0], make((4, k, 75), dtype, 1)[0]
        whole = bits(a @ b)
        turned = mx.contiguous(mx.swapaxes(a, 1, 2)), mx.contiguous(mx.swapaxes(b, 1, 2))
        for i in range(4):
            np.testing.assert_array_equal(bits(a[i] @ b[i]), whole[i])
        np.testing.assert_array_equal(bits(mx.swapaxes(turned[0], 1, 2) @ mx.swapaxes(turned[1], 1, 2)), whole)
        if dtype != "complex64":         # of an imaginary part, the left factor's comes first
            np.testing.assert_array_equal(bits(mx.contiguous(mx.swapaxes(turned[1] @ turned[0], 1, 2))), whole)
        for rows in (1, 2, 3, 4, 5, 13, 49):
            np.testing.assert_array_equal(bits(a[0, :rows] @ b[0]), whole[0, :rows])
            np.testing.assert_array_equal(bits(a[0, :rows] @ turned[1][0].T), whole[0, :rows])
            if rows > 1:                 # a column alone is added up in an order of its own
                columns = bits(mx.contiguous(a[0] @ b[0, :, :rows]))
                np.testing.assert_array_equal(columns, whole[0][:, :columns.shape[1]])
        np.testing.assert_array_equal(bits(a @ b[0]), np.stack([bits(a[i] @ b[0]) for i in range(4)]))
        np.testing.assert_array_equal(bits(a[:1] @ b), np.stack([bits(a[0] @ b[i]) for i in range(4)]))


VECTORS = ((1, 1), (7, 15), (66, 33), (5, 0), (9, 4099), (70, 4500), (300, 257), (1100, 70), (1100, 260))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrix_times_vector(dtype):
    for m, k in VECTORS:
        a, x = make((3, m, k), dtype)
        b, y = make((k,), dtype, 1)
        check(mx.reshape(a @ b, (3 * m, 1)), x.reshape(3 * m, k), y.reshape(k, 1), dtype)
        one, z = make((2, 4, 1, k), dtype, 2)
        check(mx.reshape(one @ b, (8, 1)), z.reshape(8, k), y.reshape(k, 1), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_batches_and_layouts_do_not_change_bits_with_a_vector(dtype):
    for m, k in VECTORS:
        a, b = make((3, m, k), dtype)[0], make((k,), dtype, 1)[0]
        got = a @ b
        turned = mx.contiguous(a.swapaxes(1, 2)).swapaxes(1, 2)
        wide = mx.contiguous(mx.stack([b, b], 1))[:, 0]
        for again in (turned @ b, a @ wide, mx.stack([a[i] @ b for i in range(3)]),
                      (a @ mx.stack([b] * 3)[..., None])[..., 0]):
            np.testing.assert_array_equal(bits(mx.contiguous(again)), bits(got))
        for rows in (1, 2, 5):
            np.testing.assert_array_equal(bits(a[0, :rows] @ b), bits(mx.contiguous(got[0, :rows])))


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_do_not_change_bits(dtype):
    a, b = make((130, 300), dtype)[0], make((300, 170), dtype, 1)[0]
    row, wide = make((1, 300), dtype, 2)[0], make((300, 3000), dtype, 3)[0]
    left, right = make((130, 600), dtype, 4)[0], make((600, 300), dtype, 5)[0]       # more than one slab of k
    try:
        found = []
        for n in (1, 2, 5):
            _gomlx.set_threads(n)
            found.append((bits(a @ b), bits(row @ wide), bits(left @ right)))
    finally:
        _gomlx.set_threads(_gomlx.default_threads())
    for one in found[1:]:
        for again, first in zip(one, found[0]):
            np.testing.assert_array_equal(again, first)
    np.testing.assert_array_equal(bits(left[:3] @ right), found[0][2][:3])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("m, k, n", [(1, 150, 40), (7, 33, 20), (60, 130, 50)])
def test_nan_and_infinity_stay_in_their_rows_and_columns(m, k, n, dtype):
    a, x = make((m, k), dtype)
    b, y = make((k, n), dtype, 1)
    for bad in (np.nan, np.inf, -np.inf):
        x[0, k // 2], y[k - 1, n - 1] = bad, 1.0
        got = values(mx.array(x, dtype=getattr(mx, dtype)) @ mx.array(y, dtype=getattr(mx, dtype)))
        want = np.where(np.isnan(bad), bad, bad * np.sign(y[k // 2]))
        np.testing.assert_array_equal(got[0], want)
        assert np.isfinite(got[1:]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64", "complex64"])
def test_addmm(dtype):
    for shape, added in (((5, 40, 33), (33,)), ((5, 40, 33), (5, 1)), ((1, 300, 70), (1, 70)), ((60, 10, 20), (60, 20)),
                         ((3, 0, 4), (4,)), ((130, 129, 65), ())):
        m, k, n = shape
        (a, x), (b, y), (c, z) = make((2, m, k), dtype), make((k, n), dtype, 1), make(added, dtype, 2)
        for alpha, beta in ((1, 1), (0.5, -2), (0, 1), (1, 0)):
            got, want = mx.addmm(c, a, b, alpha, beta), alpha * (x @ y) + beta * z
            error, rounding = ERRORS[dtype]
            bound = error * (np.abs(x) @ np.abs(y) + np.abs(z) + 1) + 2 * rounding * (np.abs(want) + np.abs(z)) + 1e-37
            assert got.shape == (2, m, n)
            assert (np.abs(values(got) - want) <= 2 * bound).all()
    with pytest.raises(ValueError, match="addmm"):
        mx.addmm(mx.zeros((2, 3)), mx.zeros((4, 2)), mx.zeros((2, 3)))
    with pytest.raises(ValueError, match="addmm"):
        mx.addmm(mx.zeros((3,), dtype=mx.int32), mx.zeros((4, 2), dtype=mx.int32), mx.zeros((2, 3), dtype=mx.int32))


def test_gradients_and_batches_of_addmm():
    c, a, b = make((5,), "float32")[0], make((3, 4), "float32", 1)[0], make((4, 5), "float32", 2)[0]
    loss = lambda c, a, b: (mx.addmm(c, a, b, 0.5, 3.0) ** 2).sum()                     # noqa: E731
    same = lambda c, a, b: ((0.5 * (a @ b) + 3.0 * c) ** 2).sum()                       # noqa: E731
    for got, want in zip(mx.grad(loss, (0, 1, 2))(c, a, b), mx.grad(same, (0, 1, 2))(c, a, b)):
        np.testing.assert_allclose(values(got), values(want), rtol=1e-5, atol=1e-5)
    many = mx.stack([c, 2 * c])
    got = mx.vmap(lambda c: mx.addmm(c, a, b))(many)
    np.testing.assert_allclose(values(got), values(mx.stack([a @ b + c, a @ b + 2 * c])), rtol=1e-5, atol=1e-6)
