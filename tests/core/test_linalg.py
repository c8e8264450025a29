"""Linear algebra: against NumPy, and by what defines a factorisation; batches, sizes, dtypes, errors, gradients."""
import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

LA = mx.linalg
SIZES = [1, 2, 3, 5, 8, 17, 33, 70]
SHAPES = [(1, 1), (2, 2), (3, 3), (5, 2), (2, 5), (17, 17), (40, 23), (23, 40), (1, 6), (6, 1), (2, 3, 4, 4),
          (3, 0, 2, 2), (0, 3), (3, 0), (0, 0)]
COMPLEX = "complex64"
# Kernels work in float64: what is left is the rounding of inputs and results, times the size of the numbers.
TOLERANCE = {"float32": 3e-6, "float64": 1e-12, COMPLEX: 3e-6}


def matrix(*shape, dtype="float32", seed=0):
    r = np.random.default_rng(seed + sum(shape))
    a = r.standard_normal(shape)
    if dtype == COMPLEX:
        a = a + 1j * r.standard_normal(shape)
    return a.astype(dtype)


def symmetric(*shape, dtype="float32"):
    a = matrix(*shape, dtype=dtype)
    return (a + np.swapaxes(a.conj(), -1, -2)) / 2


def positive(*shape, dtype="float32"):
    a = matrix(*shape, dtype=dtype)
    return (a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])).astype(dtype)


def arr(a):
    return mx.array(a, dtype=getattr(mx, str(a.dtype)))


def near(got, want, dtype, factor=1.0):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    size = max(1.0, float(np.abs(want).max())) if want.size else 1
    np.testing.assert_allclose(got, want, atol=TOLERANCE[dtype] * factor * size, rtol=0)


def t(a):
    return np.swapaxes(a, -1, -2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_qr(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    q, r = (np.asarray(x) for x in LA.qr(arr(a)))
    k = min(shape[-2:])
    assert q.shape == shape[:-1] + (k,) and r.shape == shape[:-2] + (k, shape[-1]) and q.dtype == r.dtype == dtype
    near(q @ r, a, dtype)
    near(t(q) @ q, np.broadcast_to(np.eye(k), t(q).shape[:-1] + (k,)), dtype)
    assert (np.tril(r, -1) == 0).all()
    want_q, want_r = np.linalg.qr(a)
    near(q, want_q, dtype, 30)
    near(r, want_r, dtype, 30)


@pytest.mark.parametrize("dtype", ["float32", "float64", COMPLEX])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_svd(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    u, s, vt = (np.asarray(x) for x in LA.svd(arr(a)))
    m, n, k = shape[-2], shape[-1], min(shape[-2:])
    assert u.shape == shape[:-1] + (m,) and s.shape == shape[:-2] + (k,) and vt.shape == shape[:-2] + (n, n)
    assert u.dtype == vt.dtype == dtype and s.dtype == ("float32" if dtype == COMPLEX else dtype)
    near((u[..., :k] * s[..., None, :]) @ vt[..., :k, :], a, dtype)
    near(t(u.conj()) @ u, np.broadcast_to(np.eye(m), u.shape), dtype)
    near(vt @ t(vt.conj()), np.broadcast_to(np.eye(n), vt.shape), dtype)
    if a.size:
        near(s, np.linalg.svd(a, compute_uv=False), dtype)
    near(LA.svd(arr(a), compute_uv=False), s, dtype)


@pytest.mark.parametrize("kind", ["rank 1", "zero", "equal values", "graded", "bidiagonal with a zero", "identity",
                                  "tiny"])
def test_svd_of_difficult_matrices(kind):
    n = 12
    a = {"rank 1": np.outer(np.arange(1, n + 1), np.ones(n)), "zero": np.zeros((n, n)),
         "equal values": np.linalg.qr(matrix(n, n, dtype="float64"))[0] * 3,
         "graded": np.diag(10.0 ** -np.arange(n)) @ matrix(n, n, dtype="float64"),
         "bidiagonal with a zero": np.diag([1.0, 2, 0, 3, 4, 0, 5, 6, 7, 8, 9, 0]) + np.diag(np.ones(n - 1), 1),
         "identity": np.eye(n), "tiny": matrix(n, n, dtype="float64") * 1e-200}[kind]
    u, s, vt = (np.asarray(x) for x in LA.svd(mx.array(a, dtype=mx.float64)))
    size = max(np.abs(a).max(), 1e-300)
    np.testing.assert_allclose(((u * s) @ vt) / size, a / size, atol=1e-13 * n)
    np.testing.assert_allclose(s / size, np.linalg.svd(a, compute_uv=False) / size, atol=1e-13 * n)
    np.testing.assert_allclose(u.T @ u, np.eye(n), atol=1e-13)
    np.testing.assert_allclose(vt @ vt.T, np.eye(n), atol=1e-13)
    assert (s >= 0).all() and (np.diff(s) <= 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", COMPLEX])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(2, 3, 4, 4), (0, 0), (0, 3, 3)], ids=str)
def test_eigh(shape, dtype):
    a = symmetric(*shape, dtype=dtype)
    for triangle, keep in (("L", np.tril), ("U", np.triu)):
        other = np.triu if keep is np.tril else np.tril
        half = keep(a) + 7 * other(np.ones_like(a), 1 if other is np.triu else -1)
        w, v = (np.asarray(x) for x in LA.eigh(arr(half.astype(dtype)), UPLO=triangle))
        assert w.dtype == ("float32" if dtype == COMPLEX else dtype) and v.dtype == dtype
        near(a @ v, v * w[..., None, :], dtype, 3)
        near(t(v.conj()) @ v, np.broadcast_to(np.eye(shape[-1]), v.shape), dtype)
        near(w, np.linalg.eigvalsh(a), dtype)
        near(LA.eigvalsh(arr(half.astype(dtype)), UPLO=triangle), w, dtype)


@pytest.mark.parametrize("a", [np.zeros((4, 4)), np.ones((6, 6)), np.eye(5), np.diag([3.0, 1, 2, 1, 3]),
                               [[0, 1], [1, 0]], np.diag(np.ones(9), 1) + np.diag(np.ones(9), -1),
                               np.diag(10.0 ** np.arange(0, -16, -1))], ids=range(7))
def test_eigh_of_difficult_matrices(a):
    a = np.asarray(a, dtype="float64")
    w, v = (np.asarray(x) for x in LA.eigh(mx.array(a, dtype=mx.float64)))
    np.testing.assert_allclose(a @ v, v * w, atol=1e-14 * len(a))
    np.testing.assert_allclose(v.T @ v, np.eye(len(a)), atol=1e-14 * len(a))
    np.testing.assert_allclose(w, np.linalg.eigvalsh(a), atol=1e-14 * len(a))


@pytest.mark.parametrize("dtype", ["float32", "float64", COMPLEX])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(2, 3, 4, 4), (0, 0)], ids=str)
def test_eig(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    w, v = (np.asarray(x) for x in LA.eig(arr(a)))
    assert w.dtype == v.dtype == COMPLEX
    near(a @ v, v * w[..., None, :], COMPLEX, 4)
    if a.size:
        near(np.linalg.norm(v, axis=-2), np.ones(w.shape), COMPLEX)
    near(LA.eigvals(arr(a)), w, COMPLEX)
    if dtype != COMPLEX:                                     # pairs are conjugates to the last bit
        np.testing.assert_array_equal(np.sort_complex(w.reshape(-1)), np.sort_complex(w.conj().reshape(-1)))
    if a.size:
        for want, got in zip(np.linalg.eigvals(a).reshape(-1, shape[-1]), w.reshape(-1, shape[-1])):
            assert max(np.abs(got - x).min() for x in want) < 2e-5 * max(1, np.abs(want).max())


@pytest.mark.parametrize("a", [np.zeros((3, 3)), np.eye(4), [[0, 1], [-1, 0]], [[1, 1], [0, 1]], np.diag(np.ones(5), 1),
                               np.roll(np.eye(6), 1, 0), [[2, 0], [1, 2]], np.triu(np.ones((5, 5))),
                               [[0, 0, 1], [1, 0, 0], [0, 1, 0]], np.diag([1e-8, 1.0, 1e8]) @ np.ones((3, 3))],
                         ids=range(10))
def test_eig_of_difficult_matrices(a):
    a = np.asarray(a, dtype="float64")
    for x in (mx.array(a, dtype=mx.float64), mx.array(a.astype(COMPLEX))):
        w, v = (np.asarray(x).astype("complex128") for x in LA.eig(x))
        size = max(1, np.abs(a).max())
        np.testing.assert_allclose(a @ v / size, v * w / size, atol=2e-6)
        np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES] + [(2, 3, 4, 4), (0, 0)], ids=str)
def test_inverses_and_solutions(shape, dtype):
    n = shape[-1]
    a = matrix(*shape, dtype=dtype) + 3 * np.sqrt(n) * np.eye(n, dtype=dtype)
    eye = np.broadcast_to(np.eye(n), shape)
    near(np.asarray(LA.inv(arr(a))) @ a, eye, dtype)
    low, high = np.tril(a), np.triu(a)
    near(np.asarray(LA.tri_inv(arr(a))) @ low, eye, dtype, 10)
    near(np.asarray(LA.tri_inv(arr(a), upper=True)) @ high, eye, dtype, 10)
    b = matrix(*shape[:-1], 4, dtype=dtype, seed=1)
    near(a @ np.asarray(LA.solve(arr(a), arr(b))), b, dtype)
    near(low @ np.asarray(LA.solve_triangular(arr(a), arr(b))), b, dtype, 10)
    near(high @ np.asarray(LA.solve_triangular(arr(a), arr(b), upper=True)), b, dtype, 10)
    one = b[(0,) * (len(shape) - 2)]
    near(a @ np.asarray(LA.solve(arr(a), arr(one))), np.broadcast_to(one, b.shape), dtype)
    v = matrix(n, dtype=dtype)
    near((a @ np.asarray(LA.solve(arr(a), arr(v)))[..., None])[..., 0], np.broadcast_to(v, shape[:-1]), dtype)
    p = positive(*shape, dtype=dtype)
    low = np.asarray(LA.cholesky(arr(p)))
    near(low @ t(low), p, dtype)
    assert (np.triu(low, 1) == 0).all()
    near(LA.cholesky(arr(np.triu(p)), upper=True), t(low), dtype)
    near(np.asarray(LA.cholesky_inv(arr(low))) @ p, eye, dtype, 300)
    near(np.asarray(LA.cholesky_inv(arr(t(low).copy()), upper=True)) @ p, eye, dtype, 300)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_lu(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    p, low, high = (np.asarray(x) for x in LA.lu(arr(a)))
    k = min(shape[-2:])
    assert p.dtype == np.uint32 and p.shape == shape[:-1] and low.shape == shape[:-1] + (k,)
    assert high.shape == shape[:-2] + (k, shape[-1])
    near(np.take_along_axis(low, p[..., None].astype(int), -2) @ high, a, dtype)
    assert (np.abs(low) <= 1).all() and (np.tril(high, -1) == 0).all() and (np.triu(low, 1) == 0).all()
    near(np.diagonal(low, axis1=-2, axis2=-1), np.ones(shape[:-2] + (k,)), dtype)
    packed, pivots = (np.asarray(x) for x in LA.lu_factor(arr(a)))
    near(np.tril(packed, -1)[..., :k] + np.eye(shape[-2], k), low, dtype)
    near(np.triu(packed)[..., :k, :], high, dtype)
    if not a.size:
        return
    rows = np.broadcast_to(np.arange(shape[-2]), shape[:-1]).copy().reshape(-1, shape[-2])
    for row, exchange in zip(rows, pivots.reshape(-1, k)):
        for i, j in enumerate(exchange):
            row[[i, j]] = row[[j, i]]
    near(np.take_along_axis(a.reshape((-1,) + shape[-2:]), rows[..., None], 1).reshape(shape), low @ high, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(n, n) for n in SIZES[:-1]] + [(2, 3, 4, 4), (0, 0), (0, 3, 3)], ids=str)
def test_determinants(shape, dtype):
    a = matrix(*shape, dtype=dtype)
    want = np.linalg.det(a.astype("float64"))
    got = np.asarray(LA.det(arr(a)))
    assert got.dtype == dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-5 if dtype == "float32" else 1e-11)
    sign, log = (np.asarray(x) for x in LA.slogdet(arr(a)))
    want_sign, want_log = np.linalg.slogdet(a.astype("float64"))
    np.testing.assert_array_equal(sign, want_sign)
    np.testing.assert_allclose(log, want_log, atol=1e-5 if dtype == "float32" else 1e-11)


def test_determinants_of_special_matrices():
    zero = mx.array(np.zeros((3, 3), "float32"))
    assert LA.det(zero).item() == 0
    sign, log = LA.slogdet(zero)
    assert sign.item() == 0 and log.item() == -np.inf
    assert LA.det(mx.array([[0.0, 1], [1, 0]])).item() == -1
    half = LA.det(mx.array([[1.0, 2], [3, 4]], dtype=mx.float16))
    assert half.dtype == mx.float16 and half.item() == -2
    assert LA.det(mx.array([[1, 2], [3, 4]])).dtype == mx.float32


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 2), (2, 5), (3, 4, 2), (2, 0), (0, 0)], ids=str)
def test_pinv(shape):
    for dtype in ("float32", "float64"):
        a = matrix(*shape, dtype=dtype)
        p = np.asarray(LA.pinv(arr(a)))
        assert p.shape == shape[:-2] + (shape[-1], shape[-2])
        near(a @ p @ a, a, dtype, 10)
        near(p @ a @ p, p, dtype, 10)
        near(t(a @ p), a @ p, dtype, 10)
    assert (np.asarray(LA.pinv(mx.array(np.zeros((2, 3), "float32")))) == 0).all()
    rank_1 = np.outer([1, 2, 3], [1, 1]).astype("float32")
    near(LA.pinv(mx.array(rank_1)), np.linalg.pinv(rank_1), "float32")


def test_ill_conditioned():
    """Hilbert's matrix: the residual is small, whatever the condition."""
    n = 10
    a = 1 / (np.arange(n)[:, None] + np.arange(n) + 1)
    b = a @ np.ones(n)
    for dtype in ("float32", "float64"):
        x = np.asarray(LA.solve(arr(a.astype(dtype)), arr(b.astype(dtype))))
        residual = a.astype(dtype) @ x - b.astype(dtype)
        assert np.abs(residual).max() <= 1e3 * np.finfo(dtype).eps * max(1, np.abs(x).max())
    s = np.asarray(LA.svd(mx.array(a, dtype=mx.float64), compute_uv=False))
    np.testing.assert_allclose(s, np.linalg.svd(a, compute_uv=False), atol=1e-15)


@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, -1, -2, -3, 0.5, float("inf"), float("-inf")])
def test_vector_norms(order):
    a = matrix(3, 4, 5)
    for axis in (0, 1, -1):
        for keep in (False, True):
            near(LA.norm(mx.array(a), order, axis, keep), np.linalg.norm(a, order, axis, keep), "float32")
    near(LA.norm(mx.array(a[0, 0]), order), np.linalg.norm(a[0, 0], order), "float32")
    near(LA.norm(mx.array([3, -4, 12]), order), np.linalg.norm([3.0, -4, 12], order), "float32")


@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, 2, -1, -2, float("inf"), float("-inf")])
def test_matrix_norms(order):
    a = matrix(3, 4, 5)
    for axis in ((0, 1), (1, 2), (2, 0), (-1, -2)):
        for keep in (False, True):
            near(LA.norm(mx.array(a), order, axis, keep), np.linalg.norm(a, order, axis, keep), "float32")
    near(LA.norm(mx.array(a[0]), order), np.linalg.norm(a[0], order), "float32")
    near(LA.norm(mx.array(a[0]), order, keepdims=True), np.linalg.norm(a[0], order, keepdims=True), "float32")
    z = matrix(4, 5, dtype=COMPLEX)
    near(np.real(np.asarray(LA.norm(mx.array(z), order))), np.linalg.norm(z, order), "float32")


def test_norms_of_everything():
    a = matrix(3, 4, 5)
    near(LA.norm(mx.array(a)), np.linalg.norm(a), "float32")
    near(LA.norm(mx.array(a), keepdims=True), np.linalg.norm(a, keepdims=True), "float32")
    near(LA.norm(mx.array(a), axis=[]), np.abs(a), "float32")
    assert LA.norm(mx.array(-3.0)).item() == 3 and LA.norm(mx.array([])).item() == 0
    assert LA.norm(mx.array([3.0, 4.0], dtype=mx.float16)).dtype == mx.float16
    b = mx.array(a[0])
    for bad in (dict(ord="x"), dict(ord=3), dict(ord=0), dict(axis=(0, 0)), dict(ord="fro", axis=0), dict(ord="inf")):
        with pytest.raises(ValueError):
            LA.norm(b, **bad)
    for bad in (dict(ord=2), dict(ord="fro"), dict(axis=(0, 1, 2)), dict(ord=1, axis=[])):
        with pytest.raises(ValueError):
            LA.norm(mx.array(a), **bad)
    for bad in (2, -3, (0, 2)):
        with pytest.raises(IndexError):
            LA.norm(b, axis=bad)
    with pytest.raises(TypeError):
        LA.norm(b, ord=[1])


def test_cross():
    for shape_a, shape_b in (((3,), (3,)), ((5, 3), (5, 3)), ((5, 3), (3,)), ((4, 1, 3), (5, 3))):
        a, b = matrix(*shape_a), matrix(*shape_b, seed=1)
        near(LA.cross(mx.array(a), mx.array(b)), np.cross(a, b), "float32")
    a, b = matrix(3, 6), matrix(3, 6, seed=1)
    near(LA.cross(mx.array(a), mx.array(b), axis=0), np.cross(a, b, axis=0), "float32")
    assert LA.cross(mx.array([1, 2]), mx.array([4, 5])).tolist() == [0, 0, -3]
    assert LA.cross(mx.array([1, 2]), mx.array([4, 5, 6])).tolist() == [12, -6, -3]
    assert LA.cross(mx.array([1, 2, 3]), mx.array([4, 5])).tolist() == [-15, 12, -3]
    with pytest.raises(ValueError):
        LA.cross(mx.array([1, 2, 3, 4]), mx.array([1, 2, 3]))
    with pytest.raises(IndexError):
        LA.cross(mx.array([1, 2, 3]), mx.array([1, 2, 3]), axis=1)


def test_errors():
    wide, half, whole = mx.array(np.zeros((2, 3), "f4")), mx.array(np.eye(2, dtype="f2")), mx.array([[1, 2], [3, 4]])
    square_only = [LA.inv, LA.tri_inv, LA.cholesky, LA.cholesky_inv, LA.eigh, LA.eigvalsh, LA.eig, LA.eigvals, LA.det,
                   LA.slogdet]
    for f in square_only:
        with pytest.raises(ValueError):
            f(wide)
    for f in square_only[:8] + [LA.qr, LA.svd, LA.lu, LA.lu_factor, LA.pinv]:
        for bad in (half, whole, mx.array([1.0, 2.0]), mx.array(1.0)):
            with pytest.raises(ValueError):
                f(bad)
    z = mx.array(np.eye(2, dtype=COMPLEX))
    for f in (LA.inv, LA.tri_inv, LA.cholesky, LA.qr, LA.lu, LA.pinv, LA.det, LA.slogdet):
        with pytest.raises(ValueError):
            f(z)
    eye = mx.array(np.eye(3, dtype="f4"))
    for f in (LA.solve, LA.solve_triangular):
        for a, b in ((wide, mx.array([1.0, 2.0])), (eye, mx.array([1.0, 2.0])), (eye, mx.array(1.0)),
                     (z, mx.array([1.0, 2.0])), (whole, mx.array([1.0, 2.0])),
                     (mx.array([1.0, 2.0]), mx.array([1.0, 2.0]))):
            with pytest.raises(ValueError):
                f(a, b)
        assert f(eye, mx.array([1, 2, 3])).dtype == mx.float32
    with pytest.raises(TypeError):
        LA.inv([[1.0]])


def test_failures_are_raised_when_evaluated():
    """A singular matrix is known to be so when its inverse is computed; other work is not held up by it."""
    zero, nan = mx.array(np.zeros((3, 3), "f4")), mx.array(np.full((3, 3), np.nan, "f4"))
    for lazy in (LA.inv(zero), LA.tri_inv(zero), LA.solve(zero, mx.array([1.0, 2, 3])), LA.svd(nan)[1], LA.eigvals(nan),
                 LA.eigvalsh(nan), LA.inv(mx.array(np.ones((2, 2, 3, 3), "f4")))):
        with pytest.raises(RuntimeError):
            mx.eval(lazy)
        with pytest.raises(RuntimeError):
            lazy.tolist()
    assert LA.inv(mx.array([[2.0]])).tolist() == [[0.5]]


def slopes(f, a, step=1e-5):
    """Central differences of sum(f(a) * weights) in float64."""
    want = np.zeros_like(a)
    for i in np.ndindex(a.shape):
        up, down = a.copy(), a.copy()
        up[i] += step
        down[i] -= step
        want[i] = (f(up) - f(down)) / (2 * step)
    return want


GRADIENTS = {
    "inv": lambda a: LA.inv(a), "tri_inv": lambda a: LA.tri_inv(a),
    "tri_inv upper": lambda a: LA.tri_inv(a, upper=True),
    "cholesky": lambda a: LA.cholesky(a @ mx.transpose(a)),
    "cholesky upper": lambda a: LA.cholesky(a @ mx.transpose(a), upper=True),
    "cholesky_inv": lambda a: LA.cholesky_inv(a), "det": lambda a: LA.det(a), "slogdet": lambda a: LA.slogdet(a)[1],
    "solve": lambda a: LA.solve(a, a[:, :2]), "solve_triangular": lambda a: LA.solve_triangular(a, a[:, :2]),
    "solve_triangular upper": lambda a: LA.solve_triangular(a, a[:, :2], upper=True),
    "eigvalsh": lambda a: LA.eigvalsh(a + mx.transpose(a)), "eigh": lambda a: mx.abs(LA.eigh(a + mx.transpose(a))[1]),
    "svd": lambda a: LA.svd(a, compute_uv=False), "nuc": lambda a: LA.norm(a, "nuc"), "norm 2": lambda a: LA.norm(a, 2),
    "norm": lambda a: LA.norm(a), "norm 1": lambda a: LA.norm(a, 1), "norm 3": lambda a: LA.norm(a, 3, axis=0),
    "cross": lambda a: LA.cross(a[:3, :3], a[1:, 1:]), "inv of inv": lambda a: LA.inv(LA.inv(a) @ a @ a),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    n = 4
    a = matrix(n, n, dtype="float64") + 3 * np.eye(n)
    f = GRADIENTS[name]
    weights = None

    def value(x):
        nonlocal weights
        y = f(mx.array(x, dtype=mx.float64) if isinstance(x, np.ndarray) else x)
        weights = weights if weights is not None else mx.array(matrix(*y.shape, dtype="float64") + 2, dtype=mx.float64)
        return mx.sum(y * weights)

    got = np.asarray(mx.grad(value)(mx.array(a, dtype=mx.float64)))
    want = slopes(lambda x: value(x).item(), a)
    np.testing.assert_allclose(got, want, atol=2e-6 * max(1, np.abs(want).max()))


def test_second_gradients():
    a = matrix(3, 3, dtype="float64") + 3 * np.eye(3)
    for f in (LA.det, lambda x: LA.slogdet(x)[1], lambda x: mx.sum(LA.inv(x))):
        slope = mx.grad(lambda x: mx.sum(mx.square(mx.grad(f)(x))))
        got = np.asarray(slope(mx.array(a, dtype=mx.float64)))
        want = slopes(lambda x: float((np.asarray(mx.grad(f)(mx.array(x, dtype=mx.float64))) ** 2).sum()), a)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6 * np.abs(want).max())


@pytest.mark.parametrize("a", [[[1.0, 2], [2, 4]], np.outer([1.0, 2, 3], [1, 0, 1]), np.diag([1.0, 2, 0]),
                               np.zeros((3, 3)), [[0.0]]], ids=range(5))
def test_gradient_of_det_of_singular_matrices(a):
    a = np.asarray(a)
    got = np.asarray(mx.grad(LA.det)(mx.array(a, dtype=mx.float64)))
    np.testing.assert_allclose(got, slopes(np.linalg.det, a, 1e-4), atol=1e-6)


def test_vectors_without_gradient_say_so():
    a = mx.array(matrix(3, 3))
    for f in (lambda x: LA.qr(x)[0], lambda x: LA.svd(x)[0], lambda x: LA.lu(x)[1], lambda x: mx.abs(LA.eig(x)[0])):
        with pytest.raises((ValueError, NotImplementedError)):
            mx.grad(lambda x: mx.sum(f(x)))(a)


@pytest.mark.parametrize("name", ["inv", "tri_inv", "cholesky", "pinv", "det", "slogdet", "qr", "svd", "eigh",
                                  "eigvalsh", "eig", "eigvals", "lu", "lu_factor", "cholesky_inv"])
def test_vmap(name):
    a = positive(5, 3, 3)
    f = getattr(LA, name)
    one_by_one = [f(mx.array(x)) for x in a]
    for axis in (0, 2):
        together = mx.vmap(f, in_axes=axis)(mx.array(np.moveaxis(a, 0, axis)))
        if isinstance(together, (tuple, list)):
            for k, got in enumerate(together):
                np.testing.assert_array_equal(np.asarray(got), np.stack([np.asarray(x[k]) for x in one_by_one]))
        else:
            np.testing.assert_array_equal(np.asarray(together), np.stack([np.asarray(x) for x in one_by_one]))


def test_vmap_of_solve():
    a, b = positive(5, 3, 3), matrix(5, 3, 2)
    want = np.linalg.solve(a, b)
    near(mx.vmap(LA.solve)(mx.array(a), mx.array(b)), want, "float32", 5)
    near(mx.vmap(LA.solve, in_axes=(None, 0))(mx.array(a[0]), mx.array(b)), np.linalg.solve(a[:1], b), "float32", 5)
    near(mx.vmap(LA.solve_triangular, in_axes=(0, None))(mx.array(a), mx.array(b[0])),
         np.linalg.solve(np.tril(a), b[0]), "float32", 5)
    near(mx.vmap(lambda x: LA.norm(x, 2))(mx.array(a)), np.linalg.norm(a, 2, axis=(1, 2)), "float32")


def test_views_are_read_as_they_are():
    a = matrix(6, 8, 8)
    x = mx.transpose(mx.array(a), (0, 2, 1))[::2, 1:6, 1:6]
    want = np.transpose(a, (0, 2, 1))[::2, 1:6, 1:6]
    near(LA.inv(x), np.linalg.inv(want), "float32", 30)
    near(LA.svd(x)[1], np.linalg.svd(want, compute_uv=False), "float32")


@pytest.mark.parametrize("upper", [False, True])
def test_cholesky_of_what_is_singular_but_for_rounding(upper):
    """It ends at the first negative pivot, where what is left of the input stays; nothing becomes NaN."""
    def lower(a):
        return np.asarray(LA.cholesky(mx.array(np.array(a, "f4")), upper=upper)).T if upper else \
            np.asarray(LA.cholesky(mx.array(np.array(a, "f4"))))
    a = np.array([[1, 2], [2, 4]], "f4") - np.float32(1e-6) * np.eye(2, dtype="f4")
    low = lower(a)
    assert -1e-5 < low[1, 1] < 0
    np.testing.assert_allclose(low @ low.T, a, atol=1e-5)
    assert lower([[-3.0]]).tolist() == [[-3]] and lower([[1, 2], [2, 1]]).tolist() == [[1, 0], [2, -3]]
    assert lower([[1, 2, 3], [2, 1, 4], [3, 4, 5]]).tolist() == [[1, 0, 0], [2, -3, 0], [3, -2, -4]]
    assert lower([[1, 2, 3, 1], [2, 4, 6, 2], [3, 6, 9, 3], [1, 2, 3, 10]]).tolist() == [
        [1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0], [1, 0, 0, 3]]                  # semi-definite: a factor all the same
    rows = np.random.default_rng(0).standard_normal((20, 40)).astype("f4")
    rows[10:] = rows[:10]                                                          # a Gram matrix of dependent rows
    low = lower(rows @ rows.T)
    assert np.isfinite(low).all()
    np.testing.assert_allclose(low[:10, :10] @ low[:10, :10].T, (rows @ rows.T)[:10, :10], atol=1e-3)


def test_errors_of_singular_matrices_say_what_failed():
    zero = mx.array([[0.0, 0.0], [0.0, 0.0]])
    for f, what in ((LA.inv, "LU factorization failed"), (LA.tri_inv, "triangular inversion failed"),
                    (LA.cholesky_inv, "triangular inversion failed")):
        with pytest.raises(RuntimeError, match=what):
            mx.eval(f(zero))
