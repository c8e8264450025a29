"""Operations that are written by hand, and the first of gomlx.core.fast, against their definitions in NumPy."""
import math

import numpy as np
import pytest
from operations import ALL_DTYPES, FLOATS, RTOL, check, dtype_of, make, name_of, values_of

import gomlx.core as mx

pytestmark = [pytest.mark.isa, pytest.mark.filterwarnings("ignore::RuntimeWarning")]       # NumPy's, about infinities


def test_argmax_ties_go_to_the_first():
    x = np.array([[1, 3, 3], [2, 2, 0]], np.int32)
    assert mx.argmax(mx.array(x)).item() == 1 and mx.argmin(mx.array(x)).item() == 5
    assert mx.argmax(mx.array(x), axis=1).tolist() == [1, 0]
    assert mx.argmax(mx.array(x), axis=0, keepdims=True).tolist() == [[1, 0, 0]]
    assert mx.argmax(mx.array(x), axis=0).dtype == mx.uint32


@pytest.mark.parametrize("arguments", [(5,), (2, 9), (1, 10, 3), (5, 1, -1), (5, 5), (0, 1, 0.25), (2.5,), (3, 0)],
                         ids=str)
def test_arange(arguments):
    got, want = mx.arange(*arguments), np.arange(*arguments)
    assert got.dtype == (mx.float32 if want.dtype.kind == "f" else mx.int32)
    np.testing.assert_array_equal(np.array(got), want)


def test_arange_dtypes():
    assert mx.arange(3, dtype=mx.float16).dtype == mx.float16
    assert mx.arange(2**40, 2**40 + 2).tolist() == [2**40, 2**40 + 1]
    with pytest.raises(ValueError):
        mx.arange(2**40)
    with pytest.raises(ValueError):
        mx.arange(0, 5, 0)
    with pytest.raises(TypeError):
        mx.arange()


def test_full():
    assert mx.full((2, 3), 7).tolist() == [[7] * 3] * 2
    assert mx.full(2, 1.5, mx.bfloat16).dtype == mx.bfloat16
    assert mx.full((2, 2), mx.array([1, 2])).tolist() == [[1, 2], [1, 2]]
    assert mx.full((), True).item() is True
    with pytest.raises(ValueError):
        mx.full((-1,), 0)
    with pytest.raises(OverflowError):
        mx.full((2**40,), 0)
    with pytest.raises(ValueError):
        mx.full((2,), 300, mx.uint8)


@pytest.mark.parametrize("to", ALL_DTYPES)
@pytest.mark.parametrize("start", ALL_DTYPES)
def test_astype(start, to):
    x = np.array([0, 1, 2, 5, 100]).astype(bool if start == "bool" else np.int64)
    a, _ = make(x, start)
    got = mx.astype(a, dtype_of(to))
    assert name_of(got.dtype) == to
    np.testing.assert_array_equal(values_of(got), x.astype(bool) if to == "bool" else x)


def test_astype_rounds_to_even():
    assert mx.array([1 + 2**-11, 1 + 3 * 2**-11]).astype(mx.float16).tolist() == [1.0, 1 + 2 * 2**-10]
    assert mx.array([1 + 2**-8, 1 + 3 * 2**-8]).astype(mx.bfloat16).tolist() == [1.0, 1 + 2 * 2**-7]
    assert mx.array([1e9, -2.7, 2.7]).astype(mx.int32).tolist() == [10**9, -2, 2]


def test_reshape_and_transpose():
    x = np.arange(24).reshape(2, 3, 4)
    a = mx.array(x)
    np.testing.assert_array_equal(np.array(mx.reshape(a, (4, -1))), x.reshape(4, -1))
    np.testing.assert_array_equal(np.array(mx.reshape(mx.transpose(a), (6, 4))), x.T.reshape(6, 4))
    np.testing.assert_array_equal(np.array(mx.transpose(a, (1, 2, 0))), x.transpose(1, 2, 0))
    np.testing.assert_array_equal(np.array(a.swapaxes(0, 2)), x.swapaxes(0, 2))
    for source in range(-3, 3):
        for destination in range(-3, 3):
            np.testing.assert_array_equal(np.array(a.moveaxis(source, destination)),
                                          np.moveaxis(x, source, destination))
    np.testing.assert_array_equal(np.array(a.flatten(1)), x.reshape(2, 12))
    np.testing.assert_array_equal(np.array(a.T.flatten()), x.T.flatten())
    for bad in ((5, 5), (-1, -1), (7, -1)):
        with pytest.raises(ValueError):
            mx.reshape(a, bad)
    for bad in ((0, 1), (0, 0, 1)):
        with pytest.raises(ValueError):
            mx.transpose(a, bad)


def test_broadcast_to():
    np.testing.assert_array_equal(np.array(mx.broadcast_to(mx.array([1, 2, 3]), (2, 3))), [[1, 2, 3]] * 2)
    assert mx.broadcast_to(2, (2, 2)).tolist() == [[2, 2], [2, 2]]
    with pytest.raises(ValueError):
        mx.broadcast_to(mx.array([1, 2, 3]), (3, 2))


def test_slice():
    x = np.arange(24).reshape(4, 6)
    got = mx.slice(mx.array(x), mx.array([1, 2]), (0, 1), (2, 3))
    np.testing.assert_array_equal(np.array(got), x[1:3, 2:5])
    np.testing.assert_array_equal(np.array(mx.slice(mx.array(x), mx.array([2]), (1,), (4, 2))), x[:, 2:4])


def test_concatenate():
    x, y = np.arange(6).reshape(2, 3), np.arange(8).reshape(2, 4)
    np.testing.assert_array_equal(np.array(mx.concatenate([mx.array(x), mx.array(y)], 1)), np.concatenate([x, y], 1))
    np.testing.assert_array_equal(np.array(mx.concatenate([mx.array(x), mx.array(x).T.T[::-1]])),
                                  np.concatenate([x, x[::-1]]))
    assert mx.concatenate([mx.array(x), mx.array(y)], axis=None).shape == (14,)
    assert mx.concatenate([mx.array([1]), mx.array([1.5])]).tolist() == [1.0, 1.5]
    for bad in ([], [mx.array(x), mx.array(y)], [mx.array(x), mx.array([1])]):
        with pytest.raises(ValueError):
            mx.concatenate(bad)


def test_where():
    x = np.arange(-4, 5).astype(np.float32)
    np.testing.assert_array_equal(np.array(mx.where(mx.array(x) > 0, mx.array(x), 0)), np.where(x > 0, x, 0))
    assert mx.where(mx.array([True, False]), 1, 2.5).tolist() == [1.0, 2.5]
    assert mx.where(mx.array([[True], [False]]), mx.array([1, 2]), mx.array([3, 4])).tolist() == [[1, 2], [3, 4]]


def test_take():
    x = np.arange(60).reshape(3, 4, 5)
    a = mx.array(x)
    i = np.array([[0, 2], [1, -1]])
    for axis in (0, 1, 2, -1):
        np.testing.assert_array_equal(np.array(mx.take(a, mx.array(i), axis)), np.take(x, i, axis))
        np.testing.assert_array_equal(np.array(mx.take(a, 1, axis=axis)), np.take(x, 1, axis))
    np.testing.assert_array_equal(np.array(mx.take(a, mx.array([59, 0]))), [59, 0])
    np.testing.assert_array_equal(np.array(mx.take(a[:, ::-1], mx.array([0, 3]), 1)), x[:, [3, 0]])
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        mx.take(a, mx.array([0.5]), 0)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax(axis, dtype):
    a, x = make(np.random.default_rng(3).normal(0, 3, (7, 33)), dtype)
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    check(mx.softmax(a, axis), e / e.sum(axis=axis, keepdims=True), dtype)


MATMULS = [((3, 4), (4, 5)), ((33, 17), (17, 65)), ((1, 128), (128, 100)), ((4,), (4, 3)), ((3, 4), (4,)), ((4,), (4,)),
           ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((5, 1, 3, 4), (2, 4, 6)), ((0, 4), (4, 3)), ((3, 0), (0, 2))]


@pytest.mark.parametrize("shapes", MATMULS, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_matmul(shapes, dtype):
    r = np.random.default_rng(4)
    (a, x), (b, y) = (make(r.standard_normal(s), dtype) for s in shapes)
    got = mx.matmul(a, b)
    assert name_of(got.dtype) == dtype
    want = x @ y
    assert got.shape == want.shape
    np.testing.assert_allclose(values_of(got), want, rtol=RTOL[dtype],
                               atol=8 * RTOL[dtype] * math.sqrt(x.shape[-1] + 1))


def test_matmul_of_views():
    x = np.random.default_rng(4).standard_normal((2, 33, 17)).astype(np.float32)
    a = mx.array(x)
    np.testing.assert_allclose(np.array(a[0] @ a[1].T), x[0] @ x[1].T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.array(a[0].T @ a[1]), x[0].T @ x[1], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.array(a[0, ::2] @ a[1, ::-1].T), x[0, ::2] @ x[1, ::-1].T, rtol=1e-5, atol=1e-5)


def test_matmul_errors():
    with pytest.raises(ValueError):
        mx.matmul(mx.array(np.zeros((2, 3))), mx.array(np.zeros((2, 3))))
    with pytest.raises(ValueError):
        mx.matmul(mx.array([1, 2]), mx.array([1, 2]))
    with pytest.raises(ValueError):
        mx.matmul(mx.array(1.0), mx.array([1.0]))
    with pytest.raises(TypeError):
        mx.matmul(mx.array([1.0]), 2)


# ---- fast ----

@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("d", [1, 7, 8, 17, 33, 1000])
def test_rms_norm_matches_definition(d, dtype):
    r = np.random.default_rng(d)
    (a, x), (b, w) = make(r.standard_normal((3, d)), dtype), make(r.standard_normal(d), dtype)
    normal = x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5)
    check(mx.fast.rms_norm(a, b, 1e-5), normal * w, dtype)
    check(mx.fast.rms_norm(a, None, eps=1e-5), normal, dtype)


def rope_definition(x, dims, traditional, base, scale, offset, freqs=None):
    half = dims // 2
    freqs = base ** (np.arange(half) / half) if freqs is None else freqs
    angle = (np.arange(x.shape[-2]) + offset)[:, None] * scale / freqs
    c, s = np.cos(angle), np.sin(angle)
    out = x.copy()
    if traditional:
        even, odd = x[..., 0:dims:2], x[..., 1:dims:2]
        out[..., 0:dims:2], out[..., 1:dims:2] = even * c - odd * s, even * s + odd * c
    else:
        low, high = x[..., :half], x[..., half:dims]
        out[..., :half], out[..., half:dims] = low * c - high * s, low * s + high * c
    return out


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dims", [16, 10])
def test_rope_matches_definition(traditional, dims):
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 16)).astype(np.float32)
    want = rope_definition(x.astype(np.float64), dims, traditional, 10000.0, 1.0, 7)
    got = mx.fast.rope(mx.array(x), dims, traditional=traditional, base=10000.0, scale=1.0, offset=7)
    np.testing.assert_allclose(np.array(got), want, rtol=1e-4, atol=2e-5)
    freqs = np.linspace(1, 50, dims // 2).astype(np.float32)
    got = mx.fast.rope(mx.array(x), dims, traditional=traditional, base=None, scale=0.5, offset=mx.array(3),
                       freqs=mx.array(freqs))
    want = rope_definition(x.astype(np.float64), dims, traditional, None, 0.5, 3, freqs)
    np.testing.assert_allclose(np.array(got), want, rtol=1e-4, atol=2e-5)


def test_rope_needs_a_base_or_freqs():
    with pytest.raises(ValueError):
        mx.fast.rope(mx.array(np.zeros((1, 1, 2, 4))), 4, traditional=False, base=None, scale=1.0, offset=0)
    with pytest.raises(TypeError):
        mx.fast.rope(mx.array(np.zeros((1, 1, 2, 4))), 4, base=10000.0, scale=1.0, offset=0)


def attention_definition(q, k, v, scale, mask=None):
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat(groups, 1), v.repeat(groups, 1)
    scores = scale * q @ k.swapaxes(-1, -2)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v


@pytest.mark.parametrize("t, s", [(1, 1), (1, 300), (5, 5), (3, 33), (17, 17)])
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (6, 1)])
def test_attention_matches_definition(heads, t, s):
    r = np.random.default_rng(t + s)
    q = r.standard_normal((2, heads[0], t, 16)).astype(np.float32)
    k, v = r.standard_normal((2, 2, heads[1], s, 16)).astype(np.float32)
    q64, k64, v64 = (x.astype(np.float64) for x in (q, k, v))
    causal = np.arange(s) <= np.arange(t)[:, None] + s - t
    additive = r.standard_normal((t, s)).astype(np.float32)
    for mask, want in ((None, None), ("causal", causal), (mx.array(causal), causal), (mx.array(additive), additive)):
        got = mx.fast.scaled_dot_product_attention(mx.array(q), mx.array(k), mx.array(v), scale=0.25, mask=mask)
        np.testing.assert_allclose(np.array(got), attention_definition(q64, k64, v64, 0.25, want), rtol=1e-4, atol=2e-6)
