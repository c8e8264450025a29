"""Gradients against finite differences, in float64, for every differentiable row of ops.def and the functions made of
them; second derivatives against differences of the first; and vmap against a loop.

A central difference with step h has an error of h**2 times the third derivative: 1e-6 relative is what it can be held
to.
"""

import io

import numpy as np
import pytest
from catalogue import BINARY, REDUCE, UNARY

import gomlx.core as mx

# Zero everywhere, or no function of real numbers.
CONSTANT = {"sign", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "isposinf", "isneginf", "logical_not",
            "equal",
            "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
            "floor_divide", "all", "any", "imag", "stop_gradient"}
INTEGERS_ONLY = {"bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"}
DOMAIN = {"arcsin": (-0.9, 0.9), "arccos": (-0.9, 0.9), "arctanh": (-0.9, 0.9), "erfinv": (-0.8, 0.8),
          "arccosh": (1.2, 4),
          "tan": (-1.2, 1.2)}
STEP = 1e-5


def values(name, shape, seed):
    low, high = DOMAIN.get(name, (0.3, 2.0))
    return np.random.default_rng(seed).uniform(low, high, shape)


def f64(x):
    return mx.array(x, dtype=mx.float64)


def scalar(function, weights):
    """A scalar that every output has its own share in."""
    return lambda *xs: (function(*xs) * weights).sum()


def weights_of(function, *xs):
    shape = function(*(f64(x) for x in xs)).shape
    return f64(np.random.default_rng(9).uniform(0.5, 1.5, shape))


def differences(function, xs, argument):
    result = np.zeros_like(xs[argument])
    for i in np.ndindex(result.shape):
        sides = []
        for step in (STEP, -STEP):
            moved = [x.copy() for x in xs]
            moved[argument][i] += step
            sides.append(function(*(f64(x) for x in moved)).item())
        result[i] = (sides[0] - sides[1]) / (2 * STEP)
    return result


def check_gradient(function, *xs, second=True):
    weights = weights_of(function, *xs)
    total = scalar(function, weights)
    for argument in range(len(xs)):
        gradient = mx.grad(total, argnums=argument)
        got = gradient(*(f64(x) for x in xs))
        assert got.dtype == mx.float64 and got.shape == xs[argument].shape
        np.testing.assert_allclose(np.array(got), differences(total, xs, argument), rtol=1e-6, atol=1e-8)
        if second:
            share = f64(np.random.default_rng(8).uniform(0.5, 1.5, xs[argument].shape))

            def once(*ys, gradient=gradient, share=share):
                return (gradient(*ys) * share).sum()

            for other in range(len(xs)):
                got = mx.grad(once, argnums=other)(*(f64(x) for x in xs))
                np.testing.assert_allclose(np.array(got), differences(once, xs, other), rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("name", [n for n in UNARY if n not in CONSTANT | INTEGERS_ONLY])
def test_unary(name):
    check_gradient(getattr(mx, name), values(name, (3, 2), 1))


@pytest.mark.parametrize("dtype", [mx.float32, mx.float64], ids=str)
def test_sinc_around_zero(dtype):
    """Where cos(pi x) and sinc(x) cancel."""
    x = np.array([1e-30, -1e-6, 1e-3, 0.1, 0.2499, 0.2501, -0.5, 3.0])
    u = np.pi * x.astype(np.longdouble)
    want = np.pi * np.where(np.abs(x) < 0.01, -u / 3 + u**3 / 30, (np.cos(u) - np.sin(u) / u) / u)
    slope = mx.grad(lambda v: mx.sinc(v).sum())
    np.testing.assert_allclose(np.array(slope(mx.array(x, dtype))), want.astype(float),
                               rtol=5e-6 if dtype == mx.float32 else 1e-11)
    assert slope(mx.array([0.0], dtype)).tolist() == [0]
    second = mx.grad(lambda v: slope(v).sum())(mx.array([0.0, 1e-4], dtype))
    np.testing.assert_allclose(np.array(second), -np.pi**2 / 3, rtol=1e-6)


@pytest.mark.parametrize("name", [n for n in UNARY if n in CONSTANT])
def test_constant_unary(name):
    function = getattr(mx, name)
    got = mx.grad(lambda x: function(x).astype(mx.float32).sum())(mx.array([0.5, -1.5]))
    assert got.tolist() == [0, 0]


@pytest.mark.parametrize("name", [n for n in BINARY if n not in CONSTANT | INTEGERS_ONLY])
def test_binary(name):
    check_gradient(getattr(mx, name), values(name, (3, 2), 1), values(name, (3, 2), 2))


@pytest.mark.parametrize("shapes", [((3, 1), (2,)), ((1, 2), (3, 2)), ((), (2, 2)), ((2, 1, 2), (3, 1))], ids=str)
@pytest.mark.parametrize("name", ["add", "multiply", "divide", "power", "maximum", "remainder"])
def test_binary_broadcasting(name, shapes):
    x, y = (values(name, shape, seed) for seed, shape in enumerate(shapes))
    check_gradient(getattr(mx, name), x, y, second=False)


@pytest.mark.parametrize("axis", [None, 0, 1, (0, 2), ()], ids=str)
@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("name", [n for n in REDUCE if n not in CONSTANT] + ["var", "std"])
def test_reduce(name, axis, keepdims):
    if axis == () and name in ("var", "std"):
        pytest.skip("a deviation of nothing: constant")
    function = getattr(mx, name)
    check_gradient(lambda x: function(x, axis=axis, keepdims=keepdims), values(name, (2, 3, 2), 5), second=axis == 1)


OTHERS = {
    "where": (lambda x, y: mx.where(mx.array([[True], [False]]), x, y), (1, 3), (2, 3)),
    "astype": (lambda x: (x.astype(mx.float32) * 2).astype(mx.float64), (3,)),
    "softmax": (lambda x: mx.softmax(x, axis=-1), (2, 3)),
    "softmax of an inner axis": (lambda x: mx.softmax(x, axis=0), (2, 3)),
    "softmax of all axes": (lambda x: mx.softmax(x), (2, 3)),
    "clip": (lambda x: mx.clip(x, 0.5, 1.5), (5,)),
    "nan_to_num": (lambda x: mx.nan_to_num(x), (5,)),
    "round": (lambda x: mx.round(x, 2) + x, (5,)),
    "divmod": (lambda x, y: mx.divmod(x, y)[1], (5,), (5,)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    function, *shapes = OTHERS[name]
    if name == "astype":            # the difference is taken in float32 there
        assert mx.grad(lambda x: function(x).sum())(f64([1.0, 2.0])).tolist() == [2, 2]
        return
    check_gradient(function, *(values(name, shape, seed) for seed, shape in enumerate(shapes)))


def test_product_with_zeros():
    def gradient(x):
        return mx.grad(lambda x: x.prod())(mx.array(x)).tolist()
    assert gradient([2.0, 3.0, 4.0]) == [12, 8, 6]
    assert gradient([0.0, 3.0, 4.0]) == [12, 0, 0]
    assert gradient([0.0, 0.0, 4.0]) == [0, 0, 0]


def test_the_gradient_of_logsumexp_goes_over_its_input_once(tmp_path):
    """One fused node between the input and the gradient; float16 is rounded after each step."""
    x = mx.array(np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4))
    gradient = mx.grad(lambda x: (2 * mx.logsumexp(x, axis=1)).sum())
    mx.export_to_dot(text := io.StringIO(), gradient(x))
    assert "SubtractExpMultiply" in text.getvalue()
    mx.export_function(file := str(tmp_path / "gradient"), gradient, x)          # where it has the parts
    assert np.array_equal(np.array(mx.import_function(file)(x)[0]), np.array(gradient(x)))
    for dtype in (mx.float32, mx.float16):
        y = x.astype(dtype)
        want = mx.exp(y - mx.logsumexp(y, axis=1, keepdims=True)) * mx.array(2, dtype)
        assert np.array_equal(np.array(gradient(y)), np.array(want))


def test_equals_share_the_gradient_of_an_extreme():
    assert mx.grad(lambda x: x.max())(mx.array([1.0, 3.0, 3.0])).tolist() == [0, 0.5, 0.5]
    assert mx.grad(lambda x: x.min(axis=0).sum())(mx.array([[1.0, 3.0], [1.0, 2.0]])).tolist() == [[0.5, 0], [0.5, 1]]


def test_of_equals_the_second_gets_the_gradient():
    for function in (mx.maximum, mx.minimum):
        a, b = mx.grad(lambda x, y, f=function: f(x, y).sum(), argnums=(0, 1))(mx.array([2.0]), mx.array([2.0]))
        assert (a.tolist(), b.tolist()) == ([0], [1])


def test_power_of_zero():
    a, b = mx.grad(lambda x, y: (x ** y).sum(), argnums=(0, 1))(mx.array([0.0, 3.0]), mx.array([2.0, 2.0]))
    assert a.tolist() == [0, 6] and b[0].item() == 0
    np.testing.assert_allclose(b[1].item(), 9 * np.log(3), rtol=1e-6)


@pytest.mark.parametrize("base, exponent, slopes", [(0.0, 2.0, (0, 0)), (0.0, 0.5, (np.inf, 0)), (np.inf, -1.5, (0, 0)),
                                                    (2.0, 0.0, (0, np.log(2)))])
def test_tangents_of_power_are_its_gradients(base, exponent, slopes):
    a, b, one = mx.array(base), mx.array(exponent), mx.array(1.0)
    gradients = mx.grad(lambda a, b: a**b, argnums=(0, 1))(a, b)
    tangents = [mx.jvp(f, [x], [one])[1][0] for f, x in ((lambda a: a**b, a), (lambda b: a**b, b))]
    np.testing.assert_allclose([g.item() for g in gradients], slopes, rtol=1e-6)
    np.testing.assert_allclose([t.item() for t in tangents], slopes, rtol=1e-6)


@pytest.mark.parametrize("k", [-7, -4, -3, -2, 0, 3, 4, 5, 9])
def test_diagonals_beyond_the_matrix_have_gradients(k):
    x, n = mx.ones((3, 4)), max(0, min(3, 3 + k, 4 - k, 4))
    value, gradient = mx.value_and_grad(lambda x: mx.diag(x, k).sum())(x)
    assert value.item() == n and gradient.tolist() == mx.eye(3, 4, k).tolist()
    assert mx.jvp(lambda x: mx.diagonal(x, k), [x], [x])[1][0].tolist() == [1] * n


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["exp", "sqrt", "tanh", "sigmoid", "erf", "log"])
def test_a_gradient_has_the_dtype_of_its_argument(name, dtype):
    x = mx.array([0.5, 1.5]).astype(getattr(mx, dtype))
    assert mx.grad(lambda x: getattr(mx, name)(x).sum())(x).dtype == x.dtype
    assert mx.grad(lambda x: (x + mx.array([1.0, 2.0])).sum())(x).dtype == x.dtype


COMPLEX = [n for n in UNARY if n not in CONSTANT | INTEGERS_ONLY
           and n not in ("expm1", "erf", "erfinv", "sigmoid", "abs", "real", "conj", "conjugate")]


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_functions_multiply_by_the_conjugate_of_the_derivative(name):
    z = np.array([0.4 + 0.3j, -0.5 + 0.8j], np.complex64)
    function, h = getattr(mx, name), 1e-2
    _, (got,) = mx.vjp(function, [mx.array(z)], [mx.array(np.ones(2, np.complex64))])
    ahead, behind = (np.array(function(mx.array((z + step).astype(np.complex64)))) for step in (h, -h))
    np.testing.assert_allclose(np.array(got), np.conj((ahead - behind) / (2 * h)), rtol=5e-3, atol=5e-3)


# ---- vmap ----

@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("name", ["exp", "abs", "logical_not", "isnan"])
def test_vmap_unary(name, axis):
    x = mx.array(values(name, (2, 3, 4), 1), dtype=mx.float32)
    function = getattr(mx, name)
    assert mx.vmap(function, in_axes=axis, out_axes=axis)(x).tolist() == function(x).tolist()


@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0), (1, 0), (2, 1)], ids=str)
@pytest.mark.parametrize("name", ["add", "less", "power"])
def test_vmap_binary(name, axes):
    function = getattr(mx, name)
    x, y = np.float32(values(name, (3, 3, 3), 1)), np.float32(values(name, (3, 3), 2))
    got = mx.vmap(function, in_axes=axes)(mx.array(x), mx.array(y))
    rows = [function(*(mx.array(v if a is None else np.take(v, i, a)) for v, a in ((x, axes[0]), (y, axes[1]))))
            for i in range(3)]
    np.testing.assert_array_equal(np.array(got), np.stack([np.array(r) for r in rows]))


@pytest.mark.parametrize("name", [*REDUCE, "var", "argmax", "argmin", "softmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_vmap_reduce(name, axis, batch):
    x = values(name, (3, 4, 5), 1).astype(np.float32)
    function = getattr(mx, name)
    got = mx.vmap(lambda a: function(a, axis=axis), in_axes=batch)(mx.array(x))
    want = np.stack([np.array(function(mx.array(np.take(x, i, batch)), axis=axis)) for i in range(x.shape[batch])])
    np.testing.assert_allclose(np.array(got), want, rtol=2e-6)


def test_vmap_where_and_ranks():
    x, y, condition = (np.random.default_rng(i).standard_normal((3, *shape)).astype(np.float32)
                       for i, shape in enumerate([(4,), (2, 4), (1,)]))
    got = mx.vmap(lambda c, a, b: mx.where(c > 0, a, b))(*(mx.array(v) for v in (condition, x, y)))
    want = np.stack([np.where(condition[i] > 0, x[i], y[i]) for i in range(3)])
    np.testing.assert_array_equal(np.array(got), want)


def test_what_has_no_gradient_is_said():
    """MLX differentiates neither; of an offset in integers it gives a number."""
    with pytest.raises(ValueError, match="svd: only the singular values"):
        mx.grad(lambda x: mx.linalg.pinv(x).sum())(mx.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]]))
    x = mx.random.normal((1, 2, 3, 4))

    def turned(offset):
        return mx.fast.rope(x, 4, traditional=False, base=1e4, scale=1.0, offset=offset).sum()
    found = mx.grad(turned)(mx.array(3))
    assert (found.dtype, found.item()) == (mx.int32, 0)
