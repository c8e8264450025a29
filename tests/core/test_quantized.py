"""Quantised matrices: the formats by NumPy definitions of their own, the values by the installed MLX bit for bit,
products against float64, gradients against finite differences of the same function."""
import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

CODINGS = [*(("affine", group, bits) for group in (32, 64, 128) for bits in (1, 2, 3, 4, 5, 6, 8)),
           ("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]
FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def normal(*shape, seed=0, scale=1.0):
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def options(coding):
    return dict(zip(("mode", "group_size", "bits"), coding))


def fields(words, bits):
    """Values of `bits` bits, the first in the lowest bits of the row's stream."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=-1, bitorder="little")
    return (stream.reshape(*words.shape[:-1], -1, bits) << np.arange(bits)).sum(-1)


def e4m3(code):
    sign, exponent, mantissa = np.where(code & 128, -1.0, 1.0), code >> 3 & 15, code & 7
    value = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    return np.where(code & 127 == 127, np.nan, sign * value)


def values(quantised, coding):
    """What a quantised matrix stands for, in float64."""
    mode, group, bits = coding
    q = fields(np.array(quantised[0]), bits)
    if mode == "affine":
        scales, biases = (np.repeat(np.array(a.astype(mx.float32), dtype=float), group, -1) for a in quantised[1:])
        return scales * q + biases
    scales = np.array(quantised[1]).astype(np.int64)
    steps = e4m3(scales) if mode == "nvfp4" else 2.0 ** (scales - 127.0)
    return np.repeat(steps, group, -1) * (FP4[q] if bits == 4 else e4m3(q))


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16], ids=str)
def test_there_and_back(coding, dtype):
    w = mx.array(normal(5, 256)).astype(dtype)
    quantised = mx.quantize(w, **options(coding))
    assert quantised[0].dtype == mx.uint32 and quantised[0].shape == (5, 8 * coding[2])
    back = mx.dequantize(*quantised, **options(coding), dtype=mx.float32)
    want = values(quantised, coding)
    atol = np.abs(want).max() * (1e-6 if dtype == mx.float32 else 2e-2)
    np.testing.assert_allclose(np.array(back), want, rtol=0, atol=atol)
    if coding[2] == 8:
        np.testing.assert_allclose(want, np.array(w.astype(mx.float32)), atol=0.15)


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_same_bits_as_mlx(coding, dtype):
    mlx = pytest.importorskip("mlx.core")
    for scale in (1, 0.01, 300):
        w = normal(4, 512, scale=scale)
        got = mx.quantize(mx.array(w).astype(getattr(mx, dtype)), **options(coding))
        want = mlx.quantize(mlx.array(w).astype(getattr(mlx, dtype)), **options(coding))
        got += (mx.dequantize(*got, **options(coding)),)
        want += (mlx.dequantize(*want, **options(coding)),)
        for g, w in zip(got, want, strict=True):
            assert str(g.dtype).split(".")[-1] == str(w.dtype).split(".")[-1]
            g, w = (np.array(a.astype(m.float32)) if a.dtype == m.bfloat16 else np.array(a) for a,
                    m in ((g, mx), (w, mlx)))
            np.testing.assert_array_equal(g, w)


def test_global_scale():
    mlx = pytest.importorskip("mlx.core")
    w = normal(4, 128)
    for scale in (1.0, 4.5, 0.3):
        got = mx.quantize(mx.array(w), mode="nvfp4", global_scale=mx.array(scale))
        want = mlx.quantize(mlx.array(w), mode="nvfp4", global_scale=mlx.array(scale))
        np.testing.assert_array_equal(np.array(got[0]), np.array(want[0]))
        back = mx.dequantize(*got, mode="nvfp4", global_scale=mx.array(scale))
        want = mlx.dequantize(*want, mode="nvfp4", global_scale=mlx.array(scale))
        np.testing.assert_array_equal(np.array(back), np.array(want))


def test_fp8():
    codes = np.arange(256, dtype=np.uint8)
    decoded = np.array(mx.from_fp8(mx.array(codes), mx.float32))
    np.testing.assert_array_equal(decoded, e4m3(codes.astype(np.int64)))
    finite = codes[~np.isnan(decoded)]
    np.testing.assert_array_equal(np.array(mx.to_fp8(mx.array(decoded[~np.isnan(decoded)]))), finite)
    assert mx.to_fp8(mx.array([1e9, -1e9, 464.0, 1.0625, 1.1875])).tolist() == [0x7E, 0xFE, 0x7E, 0x38, 0x3A]
    assert mx.from_fp8(mx.array(codes)).dtype == mx.bfloat16


# ---- products ----

@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_products(coding, dtype):
    """Sizes that end inside a register, a tile and a block; float32 sums."""
    quantised = mx.quantize(mx.array(normal(37, 384, seed=1)), **options(coding))
    if coding[0] == "affine":
        quantised = tuple(a if a.dtype == mx.uint32 else a.astype(dtype) for a in quantised)
    w = values(quantised, coding)
    for tokens in (1, 2, 3, 5, 70):
        for transpose in (True, False):
            x = mx.array(normal(tokens, 384 if transpose else 37, seed=2)).astype(dtype)
            got = mx.quantized_matmul(x, *quantised, transpose=transpose, **options(coding))
            want = np.array(x.astype(mx.float32), dtype=float) @ (w.T if transpose else w)
            assert got.dtype == dtype
            np.testing.assert_allclose(np.array(got.astype(mx.float32)), want, rtol=0,
                                       atol=np.abs(want).max() * (3e-6 if dtype == mx.float32 else 5e-3))


@pytest.mark.parametrize("coding", [("affine", 64, 4), ("affine", 32, 5), ("affine", 128, 8), ("mxfp4", 32, 4)],
                         ids=str)
@pytest.mark.parametrize("transpose", [True, False])
def test_rows_are_the_same_alone_and_together(coding, transpose):
    quantised = mx.quantize(mx.array(normal(192, 256)), **options(coding))
    x = mx.array(normal(67, 256 if transpose else 192))
    together = np.array(mx.quantized_matmul(x, *quantised, transpose=transpose, **options(coding)))
    for i in (0, 3, 64, 66):
        alone = np.array(mx.quantized_matmul(x[i], *quantised, transpose=transpose, **options(coding)))
        np.testing.assert_array_equal(alone, together[i])


def test_batches_of_matrices():
    w = mx.array(normal(3, 32, 64))
    quantised = mx.quantize(w)
    dense = values(quantised, ("affine", 64, 4))
    x = normal(2, 1, 5, 64)
    got = mx.quantized_matmul(mx.array(x), *quantised)
    np.testing.assert_allclose(np.array(got), x @ dense.swapaxes(-1, -2), atol=1e-4)
    lhs, rhs = np.array([[1, 0, 1, 1]]), np.array([[2], [0]])
    x = normal(2, 5, 64, seed=4)
    got = mx.gather_qmm(mx.array(x), *quantised, lhs_indices=mx.array(lhs), rhs_indices=mx.array(rhs))
    np.testing.assert_allclose(np.array(got), x[lhs] @ dense[rhs].swapaxes(-1, -2), atol=1e-4)
    y = normal(4, 1, 32, seed=5)
    rhs = np.array([0, 0, 2, 1])
    for sorted_indices in (False, True):
        got = mx.gather_qmm(mx.array(y), *quantised, rhs_indices=mx.array(rhs), transpose=False,
                            sorted_indices=sorted_indices)
        np.testing.assert_allclose(np.array(got), y @ dense[rhs], atol=1e-4)


def test_a_matrix_that_is_not_there_is_an_index_error():
    quantised = mx.quantize(mx.array(normal(3, 32, 64)))
    got = mx.gather_qmm(mx.array(normal(2, 1, 64)), *quantised, rhs_indices=mx.array([7, 1]))
    with pytest.raises(IndexError, match="gather_qmm: index 7 is out of range"):
        mx.eval(got)


@pytest.mark.parametrize("mode", ["nvfp4", "mxfp8", "mxfp4"])
def test_qqmm(mode):
    coding = next(c for c in CODINGS if c[0] == mode)
    x, w = mx.array(normal(3, 64, seed=1)), mx.array(normal(8, 64, seed=2))
    quantised = mx.quantize(w, mode=mode)
    want = values(mx.quantize(x, mode=mode), coding) @ values(quantised, coding).T
    for right in ((w,), quantised):
        np.testing.assert_allclose(np.array(mx.qqmm(x, *right, mode=mode)), want, atol=1e-4)
    index = mx.array([0, 0])
    got = mx.gather_qqmm(x[None], w[None], lhs_indices=index, rhs_indices=index, mode=mode)
    np.testing.assert_allclose(np.array(got), np.stack([want, want]), atol=1e-4)


# ---- gradients and batches ----

def check_gradient(function, x, step=1e-2):
    """function is linear in x: a difference is exact but for rounding."""
    gradient = np.array(mx.grad(function)(mx.array(x)))
    for at in [tuple(i) for i in np.random.default_rng(3).integers(0, x.shape, (6, x.ndim))]:
        moved = [x.copy(), x.copy()]
        moved[0][at] += step
        moved[1][at] -= step
        want = (function(mx.array(moved[0])).item() - function(mx.array(moved[1])).item()) / (2 * step)
        np.testing.assert_allclose(gradient[at], want, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
def test_gradients(transpose, lead):
    w, scales, biases = mx.quantize(mx.array(normal(*lead, 32, 64)))
    x = normal(2, 3, 64 if transpose else 32, seed=1)
    weights = mx.array(normal(2, 3, 32 if transpose else 64, seed=2))

    def total(x, scales, biases):
        return (mx.quantized_matmul(x, w, scales, biases, transpose=transpose) * weights).sum()

    check_gradient(lambda x: total(x, scales, biases), x)
    check_gradient(lambda s: total(mx.array(x), s, biases), np.array(scales))
    check_gradient(lambda b: total(mx.array(x), scales, b), np.array(biases))


def test_gradients_of_gathered_products_and_of_values():
    w, scales, biases = mx.quantize(mx.array(normal(3, 32, 64)))
    x, index = normal(2, 3, 64, seed=1), {"lhs_indices": mx.array([0, 1, 1, 1]), "rhs_indices": mx.array([2, 0, 2, 2])}
    weights = mx.array(normal(4, 3, 32, seed=2))
    check_gradient(lambda x: (mx.gather_qmm(x, w, scales, biases, **index) * weights).sum(), x)
    check_gradient(lambda s: (mx.gather_qmm(mx.array(x), w, s, biases, **index) * weights).sum(), np.array(scales))
    shares = mx.array(normal(3, 32, 64, seed=4))
    check_gradient(lambda s: (mx.dequantize(w, s, biases) * shares).sum(), np.array(scales))
    check_gradient(lambda b: (mx.dequantize(w, scales, b) * shares).sum(), np.array(biases))


def test_vmap():
    quantised = mx.quantize(mx.array(normal(2, 32, 64)))
    one = tuple(a[0] for a in quantised)
    x = mx.array(normal(2, 3, 64))
    got = mx.vmap(lambda x: mx.quantized_matmul(x, *one))(x)
    np.testing.assert_array_equal(np.array(got), np.array(mx.quantized_matmul(x, *one)))
    got = mx.vmap(lambda *a: mx.quantized_matmul(x[0], *a))(*quantised)
    for i in range(2):
        np.testing.assert_array_equal(np.array(got[i]), np.array(mx.quantized_matmul(x[0], *(a[i] for a in quantised))))
    np.testing.assert_array_equal(np.array(mx.vmap(lambda w: mx.quantize(w)[1])(mx.array(normal(2, 4, 64)))),
                                  np.array(mx.quantize(mx.array(normal(2, 4, 64)))[1]))


# ---- errors ----

@pytest.mark.parametrize("call", [
    lambda w, q: mx.quantize(w, bits=7), lambda w, q: mx.quantize(w, group_size=16),
    lambda w, q: mx.quantize(w, mode="int4"),
    lambda w, q: mx.quantize(w[:, :33]), lambda w, q: mx.quantize(w[0]), lambda w, q: mx.quantize(w.astype(mx.int32)),
    lambda w, q: mx.quantize(w, mode="mxfp4", group_size=64), lambda w, q: mx.quantize(w, global_scale=mx.array(1.0)),
    lambda w, q: mx.dequantize(*q[:2]), lambda w, q: mx.dequantize(q[0], q[1][:2], q[2]),
    lambda w, q: mx.dequantize(*q, bits=8),
    lambda w, q: mx.dequantize(*q, dtype=mx.int32), lambda w, q: mx.quantized_matmul(w[:, :32], *q),
    lambda w, q: mx.quantized_matmul(w, *q, transpose=False),
    lambda w, q: mx.quantized_matmul(w, q[0], q[1][:2], q[2][:2]),
    lambda w, q: mx.quantized_matmul(w, w, *q[1:]), lambda w, q: mx.quantized_matmul(w, *q, mode="mxfp4"),
    lambda w, q: mx.gather_qmm(w, *q, rhs_indices=mx.array([0.5])), lambda w, q: mx.to_fp8(w.astype(mx.int32)),
    lambda w, q: mx.from_fp8(w), lambda w, q: mx.qqmm(w, q[0])])
def test_errors(call):
    w = mx.array(normal(4, 64))
    with pytest.raises(ValueError):
        call(w, mx.quantize(w))


def test_quantised_weights_have_no_gradient():
    w, scales, biases = mx.quantize(mx.array(np.ones((64, 64), "f4")))
    x = mx.ones((2, 64))

    def product(x, w):
        return mx.quantized_matmul(x, w, scales, biases).sum()

    assert mx.grad(product)(x, w).shape == (2, 64)
    for call in (lambda: mx.grad(product, argnums=1)(x, w), lambda: mx.grad(product, argnums=(0, 1))(x, w),
                 lambda: mx.compile(mx.grad(product, argnums=1))(x, w),
                 lambda: mx.grad(lambda w: mx.gather_qmm(x, w[None], scales[None], biases[None]).sum())(w)):
        with pytest.raises(RuntimeError):
            call()
