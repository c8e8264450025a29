"""Forward and backward derivatives are each other's transpose: <u, J v> = <J^T u, v>, for every row of ops.def that can
be called from Python. Forward mode is made of the backward rule, which must be linear in the cotangent for that: a new
row fails here until it has a call below, or a reason why it has no derivative.

In float32: both sides are sums of some dozens of products, and agree within a few roundings of the sum of magnitudes.
"""

import numpy as np
import pytest
from catalogue import ROWS

import gomlx.core as mx

CONSTANT = "its derivative is zero"
INTEGERS = "of integers"
MADE = "made of numbers, not of arrays"
QUANTISED = "of quantised weights or float8"
INSIDE = "for code of other devices"
WITHOUT = {
    **dict.fromkeys(["sign", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "isposinf", "isneginf",
                     "logical_not", "equal", "not_equal", "less", "less_equal", "greater", "greater_equal",
                     "logical_and", "logical_or", "logical_xor", "floor_divide", "all", "any", "stop_gradient",
                     "argmax", "argmin", "zeros_like", "ones_like", "argsort", "argpartition", "searchsorted", "round",
                     "isclose", "allclose", "array_equal", "count_nonzero", "broadcast_shapes"], CONSTANT),
    **dict.fromkeys(["bitwise_invert", "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"],
                    INTEGERS),
    **dict.fromkeys(["arange", "zeros", "ones", "eye", "identity", "tri", "bartlett", "hanning", "hamming", "blackman",
                     "fftfreq", "rfftfreq"], MADE),
    **dict.fromkeys(["quantize_blocks", "dequantize_blocks", "quantize", "qqmm", "gather_qqmm", "to_fp8", "from_fp8"],
                    QUANTISED),
    **dict.fromkeys(["metal_kernel", "cuda_kernel", "precompiled_cuda_kernel"], INSIDE),
    "view": "of bytes",
    **dict.fromkeys(["lu", "lu_factor", "qr", "eigh", "eig", "eigvals", "pinv"], "no rule: an error says so"),
}
DOMAIN = {"arcsin": (-0.9, 0.9), "arccos": (-0.9, 0.9), "arctanh": (-0.9, 0.9), "erfinv": (-0.8, 0.8),
          "arccosh": (1.2, 4),
          "tan": (-1.2, 1.2)}


def definite(x):
    return x @ x.swapaxes(-1, -2) + 2 * mx.eye(x.shape[-1])


def at(*values):
    return mx.array(values)


def of_quantized(multiply):
    """multiply(x, weights of 8 bits), differentiated with respect to x, scales and biases."""
    def function(x, scales, biases):
        codes = mx.quantize(mx.array(np.random.default_rng(3).standard_normal((8, 64)).astype("f")), 64, 8)[0]
        return multiply(x, codes, scales, biases)
    return function


def cross_entropy(x):
    return mx.fast.cross_entropy(x, at(1, 0, 4))


KEY = at(1, 2).astype(mx.uint32)
CALLS = {
    "minmax": (lambda x: mx.minmax(x, axis=1), (3, 5)),
    "full": (lambda x: mx.full((2, 3), x), ()), "full_like": (lambda x: mx.full_like(mx.ones((2, 3)), x), (3,)),
    "tril": (mx.tril, (4, 3)), "triu": (mx.triu, (3, 4)), "linspace": (lambda x, y: mx.linspace(x, y, 7), (), ()),
    "meshgrid": (mx.meshgrid, (3,), (2,)), "astype": (lambda x: x.astype(mx.float64).astype(mx.float32), (5,)),
    "reshape": (lambda x: mx.reshape(x, (3, 2)), (2, 3)), "transpose": (mx.transpose, (2, 3)),
    "broadcast_to": (lambda x: mx.broadcast_to(x, (4, 3)), (3,)), "flatten": (mx.flatten, (2, 3)),
    "unflatten": (lambda x: mx.unflatten(x, 0, (2, 3)), (6,)), "squeeze": (mx.squeeze, (1, 3)),
    "expand_dims": (lambda x: mx.expand_dims(x, 1), (3,)), "matrix_transpose": (mx.matrix_transpose, (2, 3)),
    "moveaxis": (lambda x: mx.moveaxis(x, 0, 2), (2, 3, 4)), "swapaxes": (lambda x: mx.swapaxes(x, 0, 2), (2, 3, 4)),
    "atleast_1d": (mx.atleast_1d, ()), "atleast_2d": (mx.atleast_2d, (3,)), "atleast_3d": (mx.atleast_3d, (3,)),
    "broadcast_arrays": (mx.broadcast_arrays, (3, 1), (2,)),
    "slice": (lambda x: mx.slice(x, at(1), (0,), (2, 3)), (5, 3)),
    "slice_update": (lambda x, y: mx.slice_update(x, y, at(1), (0,)), (5, 3), (2, 3)),
    "concatenate": (lambda x, y: mx.concatenate([x, y]), (2, 3), (4, 3)),
    "stack": (lambda x, y: mx.stack([x, y]), (3,), (3,)),
    "split": (lambda x: mx.split(x, 2), (4, 3)), "unstack": (mx.unstack, (3, 2)),
    "tile": (lambda x: mx.tile(x, (2, 3)), (2, 2)),
    "repeat": (lambda x: mx.repeat(x, 3, 0), (2, 2)), "pad": (lambda x: mx.pad(x, (2, 9), mode="reflect"), (4,)),
    "flip": (mx.flip, (2, 3)), "roll": (lambda x: mx.roll(x, 2), (5,)),
    "as_strided": (lambda x: mx.as_strided(x, (3, 3), (1, 2)), (9,)), "depends": (mx.depends, (3,), (3,)),
    "diag": (mx.diag, (3,)), "diagonal": (mx.diagonal, (3, 4)), "trace": (mx.trace, (3, 3)), "diff": (mx.diff, (7,)),
    "sort": (mx.sort, (7,)), "partition": (lambda x: mx.partition(x, 3), (7,)), "topk": (lambda x: mx.topk(x, 3), (7,)),
    "kron": (mx.kron, (2, 3), (2,)), "contiguous": (lambda x: mx.contiguous(x.T), (2, 3)),
    "where": (lambda x, y: mx.where(at(True, False, True), x, y), (2, 3), (3,)),
    "take": (lambda x: mx.take(x, at(0, 2, 2), 0), (3, 2)),
    "take_along_axis": (lambda x: mx.take_along_axis(x, at([0, 2, 2], [1, 1, 0]), 1), (2, 3)),
    "put_along_axis": (lambda x, y: mx.put_along_axis(x, at([0, 2], [1, 0]), y, 1), (2, 3), (2, 2)),
    "nan_to_num": (mx.nan_to_num, (5,)), "clip": (lambda x: mx.clip(x, 0.5, 1.5), (9,)),
    "divmod": (mx.divmod, (5,), (5,)),
    "var": (mx.var, (5,)), "std": (mx.std, (5,)), "softmax": (lambda x: mx.softmax(x, axis=-1), (3, 5)),
    "matmul": (mx.matmul, (2, 3, 4), (4, 5)), "addmm": (lambda c, a, b: mx.addmm(c, a, b, 0.5, 2.0), (3, 5), (3, 4),
                                                        (4, 5)),
    "inner": (mx.inner, (3, 4), (4,)), "outer": (mx.outer, (3,), (4,)), "vecdot": (mx.vecdot, (3, 4), (3, 4)),
    "tensordot": (lambda x, y: mx.tensordot(x, y, 1), (2, 3), (3, 4)),
    "gather_mm": (lambda x, y: mx.gather_mm(x, y, rhs_indices=at(0, 2)), (2, 1, 3), (3, 3, 4)),
    "segmented_mm": (lambda x, y: mx.segmented_mm(x, y, at([0, 2], [2, 4])), (3, 4), (4, 5)),
    "block_masked_mm": (lambda x, y: mx.block_masked_mm(x, y, 32, mask_lhs=mx.ones((1, 1), mx.bool_)), (3, 4), (4, 5)),
    "hadamard_transform": (mx.hadamard_transform, (2, 8)), "convolve": (mx.convolve, (7,), (3,)),
    "conv_general": (lambda x, w: mx.conv_general(x, w, stride=2, padding=1), (1, 7, 2), (3, 3, 2)),
    "conv1d": (mx.conv1d, (1, 7, 2), (3, 3, 2)), "conv2d": (mx.conv2d, (1, 4, 5, 2), (3, 2, 2, 2)),
    "conv3d": (mx.conv3d, (1, 3, 3, 3, 2), (2, 2, 2, 2, 2)), "conv_transpose1d": (mx.conv_transpose1d, (1, 5, 2),
                                                                                  (3, 3, 2)),
    "conv_transpose2d": (mx.conv_transpose2d, (1, 3, 4, 2), (3, 2, 2, 2)),
    "conv_transpose3d": (mx.conv_transpose3d, (1, 2, 3, 2, 2), (2, 2, 2, 2, 2)),
    "gelu": (mx.fast.gelu, (7,)), "rms_norm": (lambda x, w: mx.fast.rms_norm(x, w, 1e-5), (3, 8), (8,)),
    "layer_norm": (lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), (3, 8), (8,), (8,)),
    "rope": (lambda x: mx.fast.rope(x, 8, traditional=False, base=10000.0, scale=1.0, offset=3), (1, 2, 3, 8)),
    "scaled_dot_product_attention": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5,
                                                                                          mask="causal"),
                                     (1, 2, 3, 8), (1, 1, 5, 8), (1, 1, 5, 8)),
    "norm": (mx.linalg.norm, (3, 4)), "cross": (mx.linalg.cross, (2, 3), (2, 3)),
    "cholesky": (lambda x: mx.linalg.cholesky(definite(x)), (3, 3)),
    "cholesky_inv": (lambda x: mx.linalg.cholesky_inv(mx.tril(x) + mx.eye(3)), (3, 3)),
    "inv": (lambda x: mx.linalg.inv(definite(x)), (3, 3)),
    "tri_inv": (lambda x: mx.linalg.tri_inv(mx.tril(x) + mx.eye(3)), (3, 3)),
    "solve": (lambda x, y: mx.linalg.solve(definite(x), y), (3, 3), (3, 2)),
    "solve_triangular": (lambda x, y: mx.linalg.solve_triangular(mx.tril(x) + mx.eye(3), y), (3, 3), (3, 2)),
    "det": (lambda x: mx.linalg.det(definite(x)), (3, 3)), "slogdet": (lambda x: mx.linalg.slogdet(definite(x))[1],
                                                                       (3, 3)),
    "svd": (lambda x: mx.linalg.svd(x, compute_uv=False), (3, 4)),
    "eigvalsh": (lambda x: mx.linalg.eigvalsh(definite(x)), (3, 3)),
    **{name: (getattr(mx.fft, name), (4, 6)) for name in ("fft", "fft2", "fftn", "ifft", "ifft2", "ifftn", "rfft",
                                                          "rfft2", "rfftn", "fftshift", "ifftshift")},
    "irfft": (lambda x: mx.fft.irfft(mx.fft.rfft(x)), (4, 6)),
    "irfft2": (lambda x: mx.fft.irfft2(mx.fft.rfft2(x)), (4, 6)),
    "irfftn": (lambda x: mx.fft.irfftn(mx.fft.rfftn(x)), (4, 6)),
    "cross_entropy": (cross_entropy, (3, 5)),
    "dequantize": (of_quantized(lambda x, w, s, b: x[:, None] * mx.dequantize(w, s, b, 64, 8)), (2, 64), (8, 1),
                   (8, 1)),
    "quantized_matmul": (of_quantized(lambda x, w, s, b: mx.quantized_matmul(x, w, s, b, True, 64, 8)), (2, 64), (8, 1),
                         (8, 1)),
    "gather_qmm": (lambda x: mx.gather_qmm(x, *mx.quantize(mx.ones((3, 8, 64)), 64, 8), rhs_indices=at(0, 2),
                                           group_size=64, bits=8), (2, 1, 64)),
    "gated_delta_update": (lambda q, k, v, g, b, s: mx.fast.gated_delta_update(q, k, v, g, b, s), (1, 4, 2, 8),
                           (1, 4, 2, 8), (1, 4, 2, 8), (1, 4, 2), (1, 4, 2), (1, 2, 8, 8)),
    "imag": (lambda x: mx.imag(x * at(1 + 2j)), (3,)), "logsumexp": (lambda x: mx.logsumexp(x, axis=1), (3, 5)),
    "prod": (lambda x: mx.prod(x, axis=1), (3, 5)),
}
for scan in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp"):
    for reverse in (False, True):
        for inclusive in (True, False):
            CALLS[f"{scan} reverse={reverse} inclusive={inclusive}"] = (
                lambda x, f=getattr(mx, scan), r=reverse, i=inclusive: f(x, axis=1, reverse=r, inclusive=i), (2, 5, 3))
for kind, name, space in ROWS:
    if kind != "OP" and name not in WITHOUT:
        CALLS.setdefault(name, (getattr(mx, name), *[(3, 4)] * (2 if kind == "BINARY" else 1)))
    elif space == "random":
        WITHOUT[name] = "of chance"
CALLABLE = [name for kind, name, space in ROWS if space != "engine"]


def random_like(rng, a):
    x = rng.uniform(-1, 1, a.shape)
    return mx.array((x + 1j * rng.uniform(-1, 1, a.shape)).astype("F") if a.dtype == mx.complex64 else x.astype("f"))


def product(a, b):
    """(<a, b>, the sum of the magnitudes), over lists of arrays."""
    parts = [(np.conj(np.array(x)) * np.array(y)).real.ravel().astype("d") for x, y in zip(a, b, strict=True)]
    return sum(p.sum() for p in parts), sum(np.abs(p).sum() for p in parts)


def check_transpose(function, xs, rng):
    vs = [random_like(rng, x) for x in xs]
    outputs, forward = mx.jvp(function, xs, vs)
    us = [random_like(rng, y) for y in outputs]
    backward = mx.vjp(function, xs, us)[1]
    (left, scale), (right, other) = product(us, forward), product(backward, vs)
    assert scale > 0 and abs(left - right) <= 2e-5 * (scale + other), (left, right)


def test_every_op_is_here():
    assert set(CALLABLE) == {name.split()[0] for name in CALLS} | set(WITHOUT) & set(CALLABLE)


@pytest.mark.parametrize("name", CALLS)
def test_transpose(name):
    function, *shapes = CALLS[name]
    rng = np.random.default_rng(5)
    low, high = DOMAIN.get(name, (0.3, 2.0))
    check_transpose(function, [mx.array(rng.uniform(low, high, shape).astype("f")) for shape in shapes], rng)


@pytest.mark.parametrize("name", ["multiply", "exp", "logcumsumexp", "matmul", "prod", "cumprod", "divide", "power"])
def test_transpose_of_complex(name):
    rng = np.random.default_rng(6)
    function = getattr(mx, name)
    n = 2 if name in ("multiply", "matmul", "divide", "power") else 1
    check_transpose(function, [mx.array((rng.uniform(0.5, 1, (3, 3)) + 1j * rng.uniform(-1, 1, (3, 3))).astype("F"))
                               for _ in range(n)], rng)


@pytest.mark.parametrize("n", [1, 2, 7, 33])
def test_forward_derivative_of_logcumsumexp(n):
    """A mean of the tangents so far, with weights e**x."""
    rng = np.random.default_rng(n)
    x, t = rng.uniform(-30, 30, n), rng.uniform(-1, 1, n)
    ((_,), (got,)) = mx.jvp(mx.logcumsumexp, [mx.array(x.astype("f"))], [mx.array(t.astype("f"))])
    w = np.exp(x.astype("f").astype("d"))
    np.testing.assert_allclose(np.array(got), np.cumsum(w * t.astype("f")) / np.cumsum(w), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("largest", [1e4, 1e7])
def test_gradient_of_logcumsumexp_of_a_large_value(largest):
    """All results before it are that value, so its gradient is the sum of their cotangents, whatever its size."""
    c = np.random.default_rng(3).uniform(0.5, 1.5, 8).astype("f")
    x = mx.array([-1.8, -0.2, 3.0, 0.1, 0.5, 1.5, 2.7, largest])
    _, (gradient,) = mx.vjp(lambda x: mx.logcumsumexp(x, reverse=True, inclusive=False), [x], [mx.array(c)])
    np.testing.assert_allclose(gradient[-1].item(), c[:-1].astype("d").sum(), rtol=1e-6)


def test_gradient_of_logcumsumexp_of_infinities():
    inf = float("inf")
    gradient = mx.grad(lambda x: mx.logcumsumexp(x).sum())
    assert gradient(mx.array([-inf, -inf, 0.0])).tolist() == [0, 0, 1]
    assert gradient(mx.array([0.0, -inf, 500.0, -500.0])).tolist() == [2, 0, 2, 0]
    assert gradient(mx.array([-1e30, 0.0])).tolist() == [1, 1]


@pytest.mark.parametrize("name", ["cummax", "cummin"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_cumulative_extremes_of_nan(name, reverse):
    """From a NaN on the results are that NaN, so it has their cotangents, also where it is the first."""
    turn = slice(None, None, -1 if reverse else 1)
    nan = float("nan")
    for values, want in (([nan, 1.0, 2.0], [7, 0, 0]), ([1.0, nan, 2.0], [1, 6, 0])):
        _, (got,) = mx.vjp(lambda x: getattr(mx, name)(x, reverse=reverse), [mx.array(values)[turn]],
                           [mx.array([1.0, 2.0, 4.0])[turn]])
        assert got[turn].tolist() == want


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_exclusive_logcumsumexp_leaves_out_the_last(n, reverse):
    """No result has the last value, so that it may be NaN; the others have the gradient of the inclusive one."""
    c = mx.array([0.5, 1.5, 2.5, 3.5][:n])
    x = mx.array([0.25, -1.0, float("nan")][3 - n:])
    turn = slice(None, None, -1 if reverse else 1)

    def function(x):
        return mx.logcumsumexp(x, reverse=reverse, inclusive=False)

    gradient = mx.vjp(function, [x[turn]], [c[turn]])[1][0][turn].tolist()
    _, (inclusive,) = mx.vjp(mx.logcumsumexp, [x[:-1]], [c[1:]])
    assert gradient == [*inclusive.tolist(), 0]
    _, (tangent,) = mx.jvp(function, [x[turn]], [mx.ones((n,))])
    assert tangent[turn].tolist() == [0, *[1] * (n - 1)]
