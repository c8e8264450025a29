"""gomlx.core.fast against its definitions in float64, against the installed MLX for errors and dtypes, and its
gradients against finite differences.

Tolerances: the engine computes in float32 and rounds once, so results are within a few units of the last place of the
dtype; attention adds up to a thousand terms.
"""
import functools
import math

import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

# eps and scale are float32 numbers, also for float64.
RTOL = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-7}
ATOL = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-7}
DTYPES = list(RTOL)
SIZES = [1, 7, 8, 17, 33, 100, 1000]


def make(shape, dtype="float32", seed=0):
    """An array of the dtype, and exactly what it holds in float64."""
    a = mx.array(np.random.default_rng(seed).standard_normal(shape)).astype(getattr(mx, dtype))
    return a, values(a)


def values(a):
    return np.array(a if a.dtype == mx.float64 else a.astype(mx.float32)).astype(np.float64)


def check(got, want, dtype="float32", scale=1.0):
    assert got.dtype == getattr(mx, dtype) and got.shape == want.shape
    np.testing.assert_allclose(values(got), want, rtol=RTOL[dtype] * scale, atol=ATOL[dtype] * scale)


# ---- gelu ----

@pytest.mark.parametrize("dtype", DTYPES)
def test_gelu(dtype):
    for n in SIZES:
        a, x = make(n, dtype)
        check(mx.fast.gelu(a * 3), (y := values(a * 3)) * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2, dtype, 2)
    ends = mx.array([-6e4, -40, -0.0, 0, 40, 6e4, math.inf, math.nan]).astype(getattr(mx, dtype))
    np.testing.assert_array_equal(values(mx.fast.gelu(ends)), [0, 0, 0, 0, 40, *values(ends)[5:7], math.nan])
    with pytest.raises(ValueError, match="gelu"):
        mx.fast.gelu(mx.array(1j))


def test_gelu_gradients():
    a, x = make(33, "float64")
    cdf, density = (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2, np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    check(mx.grad(lambda v: mx.fast.gelu(v).sum())(a), cdf + x * density, "float64")
    second = mx.grad(lambda v: mx.grad(lambda u: mx.fast.gelu(u).sum())(v).sum())(a)
    check(second, (2 - x * x) * density, "float64")


# ---- norms ----

def rms_norm(x, w, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * (1 if w is None else w)


def layer_norm(x, w, b, eps):
    n = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)
    return n * (1 if w is None else w) + (0 if b is None else b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
def test_rms_norm(dtype, weighted):
    for d in SIZES:
        (a, x), (b, w) = make((3, d), dtype), make((d,), dtype, 1)
        check(mx.fast.rms_norm(a, b if weighted else None, 1e-5), rms_norm(x, w if weighted else None, 1e-5), dtype, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("parts", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_layer_norm(dtype, parts):
    for d in SIZES[1:]:
        (a, x), (b, w), (c, bias) = make((3, d), dtype), make((d,), dtype, 1), make((d,), dtype, 2)
        got = mx.fast.layer_norm(a, b if parts[0] else None, c if parts[1] else None, 1e-5)
        check(got, layer_norm(x, w if parts[0] else None, bias if parts[1] else None, 1e-5), dtype, 2)


VIEWS = {"transposed": lambda a: a.T, "every other row": lambda a: a[::2], "part of a row": lambda a: a[:, 3:11],
         "reversed rows": lambda a: a[:, ::-1], "repeated": lambda a: (mx if isinstance(a, mx.array)
                                                                       else np).broadcast_to(a[:1], (4, 20))}


@pytest.mark.parametrize("view", VIEWS)
def test_norms_of_views(view):
    a, x = make((12, 20))
    a, x = VIEWS[view](a), VIEWS[view](x)
    check(mx.fast.rms_norm(a, None, 1e-5), rms_norm(x, None, 1e-5))
    check(mx.fast.layer_norm(a, None, None, 1e-5), layer_norm(x, None, None, 1e-5))
    check(mx.softmax(a, axis=-1), np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def test_norms_of_more_dimensions_and_one():
    for shape in ((8,), (2, 3, 4, 8)):
        a, x = make(shape)
        check(mx.fast.rms_norm(a, None, 1e-5), rms_norm(x, None, 1e-5))
        check(mx.fast.layer_norm(a, None, None, 1e-5), layer_norm(x, None, None, 1e-5))


def test_layer_norm_far_from_zero():
    """The variance is that of x - mean, not a difference of large numbers."""
    a = mx.array(1e4 + np.random.default_rng(0).standard_normal((2, 64)).astype(np.float32))
    got = mx.fast.layer_norm(a, None, None, 1e-5)
    np.testing.assert_allclose(values(got), layer_norm(values(a), None, None, 1e-5), atol=1e-3)     # an ulp of the mean


# ---- rope ----

def rope(x, dims, traditional, base, scale, offset, freqs=None):
    steps, half = x.shape[-2], dims // 2
    inverse = scale / np.asarray(freqs) if freqs is not None else scale * base ** (-np.arange(half) / half)
    start = np.broadcast_to(np.asarray(offset).reshape(-1), (x.shape[0],)).reshape((-1,) + (1,) * (x.ndim - 1))
    angle = (start + np.arange(steps).reshape(-1, 1)) * inverse
    cos, sin = np.cos(angle), np.sin(angle)
    out = x.copy()
    first, second = (x[..., 0:dims:2], x[..., 1:dims:2]) if traditional else (x[..., :half], x[..., half:dims])
    to = (slice(0, dims, 2), slice(1, dims, 2)) if traditional else (slice(0, half), slice(half, dims))
    out[..., to[0]], out[..., to[1]] = first * cos - second * sin, second * cos + first * sin
    return out


@pytest.mark.parametrize("traditional", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 3, 5, 8), (2, 2, 1, 64), (2, 6, 22), (2, 2, 3, 4, 200)], ids=str)
def test_rope(shape, dtype, traditional):
    a, x = make(shape, dtype)
    for dims in (shape[-1], shape[-1] // 2 // 2 * 2):
        for offset in (0, 7, mx.array(3), mx.array(list(range(5, 5 + shape[0])), dtype=mx.uint32)):
            got = mx.fast.rope(a, dims, traditional=traditional, base=10000.0, scale=0.5, offset=offset)
            want = rope(x, dims, traditional, 1e4, 0.5, values(offset) if isinstance(offset, mx.array) else offset)
            check(got, want, "float32" if dtype == "float64" else dtype, 4) if dtype != "float64" else \
                np.testing.assert_allclose(values(got), want, rtol=2e-5, atol=2e-5)


def test_rope_frequencies():
    a, x = make((2, 3, 4, 8))
    freqs = [1.0, 2.0, 5.0, 100.0]
    got = mx.fast.rope(a, 8, traditional=False, base=None, scale=2.0, offset=3, freqs=mx.array(freqs))
    check(got, rope(x, 8, False, None, 2.0, 3, freqs), scale=4)


def test_rope_of_a_transposed_array():
    a, x = make((2, 5, 3, 8))
    got = mx.fast.rope(a.transpose(0, 2, 1, 3), 8, traditional=False, base=100.0, scale=1.0, offset=1)
    check(got, rope(x.transpose(0, 2, 1, 3), 8, False, 100.0, 1.0, 1), scale=4)
    check(mx.fast.rope(a.T, 2, traditional=False, base=100.0, scale=1.0, offset=1), rope(x.T, 2, False, 100.0, 1.0, 1),
          scale=4)


def test_rope_far_away():
    a, x = make((1, 1, 2, 64))
    got = mx.fast.rope(a, 64, traditional=False, base=10000.0, scale=1.0, offset=100000)
    np.testing.assert_allclose(values(got), rope(x, 64, False, 1e4, 1.0, 100000), atol=0.03)    # float32 angles


# ---- attention ----

def attention(q, k, v, scale, mask=None, sinks=None):
    k, v = (np.repeat(t, q.shape[1] // t.shape[1], axis=1) for t in (k, v))
    scores = scale * q @ k.swapaxes(-1, -2)
    if isinstance(mask, str):
        rows, columns = scores.shape[-2:]
        mask = np.arange(columns) <= np.arange(rows)[:, None] + columns - rows
    if mask is not None:
        scores = np.where(mask, scores, -3.4e38) if mask.dtype == bool else scores + mask
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks.reshape(1, -1, 1, 1), scores.shape[:3] + (1,))], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights[..., :k.shape[2]] @ v


def operands(batch, heads, kv_heads, queries, keys, dim, value_dim, dtype="float32"):
    shapes = ((batch, heads, queries, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, value_dim))
    return [make(shape, dtype, seed) for seed, shape in enumerate(shapes)]


SHAPES = [(1, 1, 1, 1, 1, 1, 1), (2, 4, 2, 3, 5, 8, 8), (1, 2, 2, 33, 70, 16, 24), (1, 8, 2, 1, 300, 64, 64),
          (2, 3, 1, 50, 257, 40, 7),
          (1, 2, 1, 1, 1000, 128, 128), (1, 1, 1, 60, 513, 96, 512), (1, 6, 2, 100, 30, 64, 64),
          (1, 2, 2, 5, 3, 600, 8)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(shape, dtype):
    (q, x), (k, y), (v, z) = operands(*shape, dtype)
    scale = shape[5] ** -0.5
    check(mx.fast.scaled_dot_product_attention(q, k, v, scale=scale), attention(x, y, z, scale), dtype, 2)
    if shape[3] <= shape[4]:
        got = mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal")
        check(got, attention(x, y, z, scale, "causal"), dtype, 2)


@pytest.mark.parametrize("rows", [2, 30])
@pytest.mark.parametrize("shape", [(1,), (300,), (1, 300), ("T", 300), ("T", 1), (4, "T", 300), (2, 1, 1, 300),
                                   (2, 4, "T", 300)], ids=str)
def test_attention_masks(shape, rows):
    (q, x), (k, y), (v, z) = operands(2, 4, 2, rows, 300, 16, 16)
    shape = tuple(rows if n == "T" else n for n in shape)
    r = np.random.default_rng(3)
    for mask in (r.integers(0, 2, shape).astype(bool), r.standard_normal(shape).astype(np.float32)):
        if mask.dtype == bool and mask.shape[-1] == 1:
            mask[:] = True
        got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mx.array(mask))
        check(got, attention(x, y, z, 0.3, mask), scale=2)


def test_a_mask_that_is_a_view():
    (q, x), (k, y), (v, z) = operands(1, 2, 1, 30, 40, 16, 16)
    mask = np.random.default_rng(3).standard_normal((40, 60)).astype(np.float32)
    for view in (lambda m: m[:30, :40], lambda m: m.T[:30, :40], lambda m: m[5:35, 1:41]):
        got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=view(mx.array(mask)))
        check(got, attention(x, y, z, 0.3, view(mask)), scale=2)


@pytest.mark.parametrize("rows", [1, 40])
def test_sinks(rows):
    (q, x), (k, y), (v, z) = operands(2, 4, 2, rows, 300, 16, 16)
    sinks = np.array([1.0, -2.0, 3.0, 0.5], np.float32)
    for mask in (None, "causal"):
        got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mask, sinks=mx.array(sinks))
        check(got, attention(x, y, z, 0.3, mask, sinks), scale=2)


@pytest.mark.parametrize("rows", [3, 40])
def test_a_query_that_sees_nothing_gets_the_mean(rows):
    (q, x), (k, y), (v, z) = operands(1, 2, 2, rows, 20, 16, 16)
    got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3, mask=mx.array(np.zeros((rows, 20), bool)))
    check(got, np.broadcast_to(z.mean(2, keepdims=True), z.shape[:2] + (rows, 16)), scale=2)
    got = mx.fast.scaled_dot_product_attention(k, q[:, :, :2], v[:, :, :2], scale=0.3, mask="causal")
    check(got, attention(y, x[:, :, :2], z[:, :, :2], 0.3, "causal"), scale=2)
    check(got[:, :, 0], z[:, :, :2].mean(2), scale=2)


def test_attention_of_transposed_arrays():
    (q, x), (k, y), (v, z) = (make((2, rows, 4, 16), seed=i) for i, rows in enumerate((30, 50, 50)))
    q, k, v, x, y, z = (t.transpose(0, 2, 1, 3) for t in (q, k, v, x, y, z))
    check(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3), attention(x, y, z, 0.3), scale=2)
    q, k, v, x, y, z = (t[:, :, ::-1, ::-1] for t in (q, k, v, x, y, z))
    check(mx.fast.scaled_dot_product_attention(q, k, v, scale=0.3), attention(x, y, z, 0.3), scale=2)


def test_attention_without_keys_or_queries():
    (q, _), (k, _), (v, _) = operands(1, 2, 1, 3, 4, 8, 8)
    got = mx.fast.scaled_dot_product_attention(q, k[:, :, :0], v[:, :, :0], scale=1.0)
    assert got.shape == (1, 2, 3, 8) and not np.array(got).any()
    assert mx.fast.scaled_dot_product_attention(q[:, :, :0], k, v, scale=1.0).shape == (1, 2, 0, 8)


def test_threads_do_not_change_the_bits():
    from gomlx import _gomlx
    (q, _), (k, _), (v, _) = operands(1, 4, 2, 100, 700, 64, 64)
    a, _ = make((64, 300))
    results = []
    for n in (1, 2, 3):
        _gomlx.set_threads(n)
        one = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.1)
        few = mx.fast.scaled_dot_product_attention(q[:, :, :1], k, v, scale=0.1)
        results.append([np.array(t).tobytes() for t in (one, few, mx.fast.layer_norm(a, None, None, 1e-5))])
    _gomlx.set_threads(2)
    assert results[0] == results[1] == results[2]


# ---- gradients and vmap ----

def differences(function, xs, argument, step=1e-2):
    result = np.zeros(xs[argument].shape)
    for i in np.ndindex(result.shape):
        sides = []
        for h in (step, -step):
            moved = [x.copy() for x in xs]
            moved[argument][i] += h
            sides.append(function(*(mx.array(x) for x in moved)).item())
        result[i] = (sides[0] - sides[1]) / (2 * step)
    return result


FUNCTIONS = {
    "rms_norm": (lambda x, w: mx.fast.rms_norm(x, w, 1e-5), (3, 5), (5,)),
    "rms_norm without weight": (lambda x: mx.fast.rms_norm(x, None, 1e-5), (3, 5)),
    "layer_norm": (lambda x, w, b: mx.fast.layer_norm(x, w, b, 1e-5), (2, 3, 5), (5,), (5,)),
    "layer_norm without weight": (lambda x, b: mx.fast.layer_norm(x, None, b, 1e-5), (3, 5), (5,)),
    "rope": (lambda x: mx.fast.rope(x, 4, traditional=False, base=100.0, scale=1.0, offset=2), (1, 2, 3, 6)),
    "traditional rope": (lambda x: mx.fast.rope(x, 6, traditional=True, base=100.0, scale=1.0, offset=mx.array([2, 5])),
                         (2, 3, 6)),
    "attention": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5), (1, 2, 3, 4), (1, 1, 5, 4),
                  (1, 1, 5, 3)),
    "causal attention": (lambda q, k, v: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5, mask="causal"),
                         (1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3)),
    "attention with a mask and sinks": (
        lambda q, k, v, m, s: mx.fast.scaled_dot_product_attention(q, k, v, scale=0.5, mask=m, sinks=s),
        (1, 2, 3, 4), (1, 1, 5, 4), (1, 1, 5, 3), (3, 5), (2,)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients(name):
    function, *shapes = FUNCTIONS[name]
    xs = [np.random.default_rng(i).standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)]
    weights = mx.array(np.random.default_rng(9).uniform(0.5, 1.5,
                                                        function(*(mx.array(x) for x in xs)).shape).astype(np.float32))

    def total(*arrays):
        return (function(*arrays) * weights).sum()

    gradients = mx.grad(total, argnums=tuple(range(len(xs))))(*(mx.array(x) for x in xs))
    for i, gradient in enumerate(gradients if len(xs) > 1 else [gradients]):
        # central differences in float32: an error of step**2 and of an ulp over the step
        np.testing.assert_allclose(np.array(gradient), differences(total, xs, i), rtol=2e-2, atol=4e-3)


ROWS = {"rms_norm": 1, "layer_norm": 2, "softmax": 0}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dim", [1, 37, 256, 1500])
def test_gradients_over_rows(name, dim):
    """The kernels' against those of float64, which operations make; second derivatives too, and each row by itself."""
    def function(x, *parts):
        parts = [p.astype(x.dtype) for p in parts] + [None] * (name == "layer_norm" and not parts)
        return mx.softmax(x, axis=-1) if name == "softmax" else getattr(mx.fast, name)(x, *parts, 1e-5)

    rng = np.random.default_rng(dim)
    numbers = [rng.standard_normal(shape) for shape in [(2, 5, dim), (2, 5, dim)] + [(dim,)] * ROWS[name]]
    cot, x, *parts = numbers

    def gradients(dtype, slope=False):
        def total(x, *parts):
            return (function(x, *parts) * mx.array(cot, dtype=dtype)).sum()

        def size(x, *parts):
            return (mx.grad(total)(x, *parts) ** 2).sum()

        arrays = [mx.array(a, dtype=dtype) for a in (x, *parts)]
        got = mx.grad(size if slope else total, argnums=tuple(range(len(arrays))))(*arrays)
        return [np.array(g) for g in (got if len(arrays) > 1 else [got])]

    for slope in (False, True):
        with mx.stream(mx.cpu):                             # float64 is not on GPUs
            want = gradients(mx.float64, slope)
        for a, b in zip(gradients(mx.float32, slope), want):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * max(1, abs(b).max()))
    whole = gradients(mx.float32)[0]
    cot, x = cot[1:, 3:4], x[1:, 3:4]
    assert gradients(mx.float32)[0].tobytes() == whole[1:, 3:4].tobytes()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("which", ["first", "all", "last"])
def test_vmap(name, which):
    function, *shapes = FUNCTIONS[name]
    batched = [which == "all" or (which == "first") == (i == 0)
               for i in range(len(shapes))] if len(shapes) > 1 else [True]
    xs = [np.random.default_rng(i).standard_normal(((3,) if b else ()) + shape).astype(np.float32)
          for i, (shape, b) in enumerate(zip(shapes, batched))]
    got = mx.vmap(function, in_axes=tuple(0 if b else None for b in batched))(*(mx.array(x) for x in xs))
    want = [np.array(function(*(mx.array(x[lane] if b else x) for x, b in zip(xs, batched)))) for lane in range(3)]
    np.testing.assert_allclose(np.array(got), np.stack(want), rtol=1e-5, atol=1e-6)


def test_vmap_of_rope_frequencies():
    x, freqs = mx.random.normal((3, 1, 2, 4)), mx.array([[1.0, 9.0], [2.0, 5.0], [3.0, 4.0]])
    one = functools.partial(mx.fast.rope, dims=4, traditional=False, base=None, scale=1.0, offset=2)
    got = mx.vmap(lambda x, f: one(x, freqs=f))(x, freqs)
    want = mx.stack([one(a, freqs=f) for a, f in zip(x, freqs)])
    assert mx.array_equal(got, want).item()


def test_vmap_of_rope_offsets():
    a, x = make((3, 2, 4, 5, 8))
    offsets = mx.array([1, 5, 9])
    got = mx.vmap(lambda t, o: mx.fast.rope(t, 8, traditional=False, base=100.0, scale=1.0, offset=o))(a, offsets)
    check(got, np.stack([rope(x[i], 8, False, 100.0, 1.0, [1, 5, 9][i]) for i in range(3)]), scale=4)


# ---- against MLX: dtypes of results and classes of errors ----

def filled(m, fill, shape, dtype="float32"):
    return m.array(fill(shape, np.float32)).astype(getattr(m, dtype))


def turned(m, x, dims=8, **options):
    return m.fast.rope(x, dims, **{"traditional": False, "base": 1e4, "scale": 1.0, "offset": 0, **options})


def attended(m, types=("float32",) * 3, shapes=((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8)), **options):
    q, k, v = (filled(m, np.zeros, shape, t) for shape, t in zip(shapes, types))
    return m.fast.scaled_dot_product_attention(q, k, v, **{"scale": 0.3, **{n: f(m) for n, f in options.items()}})


CASES = {f"norms of {x}, {w}, {b}": lambda m, x=x, w=w, b=b: [
    m.fast.layer_norm(filled(m, np.ones, (2, 8), x), w and filled(m, np.ones, (8,), w),
                      b and filled(m, np.ones, (8,), b), 1e-5),
    m.fast.rms_norm(filled(m, np.ones, (2, 8), x), w and filled(m, np.ones, (8,), w), 1e-5)]
    for x in ("float16", "bfloat16", "float32", "int32", "complex64") for w in (None, "float16", "float32", "int32")
    for b in (None, "bfloat16")}
CASES |= {
    "rms_norm of a scalar": lambda m: m.fast.rms_norm(m.array(1.0), None, 1e-5),
    "rms_norm with a matrix": lambda m: m.fast.rms_norm(filled(m, np.ones, (2, 8)), filled(m, np.ones, (1, 8)), 1e-5),
    "rms_norm with too few weights": lambda m: m.fast.rms_norm(filled(m, np.ones, (2, 8)), filled(m, np.ones, (1,)),
                                                               1e-5),
    "layer_norm with a short bias": lambda m: m.fast.layer_norm(filled(m, np.ones, (2, 8)), None,
                                                                filled(m, np.ones, (3,)), 1e-5),
    "rms_norm without eps": lambda m: m.fast.rms_norm(filled(m, np.ones, (2, 8)), None),
    "rope of a matrix": lambda m: turned(m, filled(m, np.ones, (4, 8))),
    "rope of integers": lambda m: turned(m, filled(m, np.ones, (1, 4, 8), "int32")),
    "rope of odd dims": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), 7),
    "rope of no dims": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), 0),
    "rope of too many dims": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), 10),
    "rope with a float offset": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), offset=m.array(1.0)),
    "rope with too many offsets": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), offset=m.array([1, 2])),
    "rope with a matrix of offsets": lambda m: turned(m, filled(m, np.ones, (2, 4, 8)), offset=m.array([[1], [2]])),
    "rope without base": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), base=None),
    "rope with base and freqs": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), freqs=filled(m, np.ones, (4,))),
    "rope with too few freqs": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), base=None,
                                                freqs=filled(m, np.ones, (3,))),
    "rope with integer freqs": lambda m: turned(m, filled(m, np.ones, (1, 4, 8)), base=None,
                                                freqs=m.array([1, 2, 3, 4])),
    "cuda_kernel": lambda m: m.fast.cuda_kernel(name="a", input_names=["x"], output_names=["y"], source=""),
    "attention of three types": lambda m: attended(m, ("float32", "float16", "bfloat16")),
    "attention of integers": lambda m: attended(m, ("int32",) * 3),
    "attention of three dimensions": lambda m: attended(m, shapes=((4, 3, 8), (2, 5, 8), (2, 5, 8))),
    "attention of heads that do not divide": lambda m: attended(m, shapes=((2, 3, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8))),
    "attention of other batches": lambda m: attended(m, shapes=((1, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 8))),
    "attention of more keys than values": lambda m: attended(m, shapes=((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 4, 8))),
    "attention of other dims": lambda m: attended(m, shapes=((2, 4, 3, 8), (2, 2, 5, 4), (2, 2, 5, 8))),
    "a mask of five dimensions": lambda m: attended(m, mask=lambda m: filled(m, np.zeros, (1, 2, 4, 3, 5))),
    "a mask that does not broadcast": lambda m: attended(m, mask=lambda m: filled(m, np.zeros, (3, 4))),
    "a mask of kv heads": lambda m: attended(m, mask=lambda m: filled(m, np.zeros, (2, 2, 3, 5))),
    "a mask of integers": lambda m: attended(m, mask=lambda m: filled(m, np.zeros, (3, 5), "int32")),
    "a mask that is wider": lambda m: attended(m, ("float16",) * 3, mask=lambda m: filled(m, np.zeros, (3, 5))),
    "a mask of another half": lambda m: attended(m, ("float16",) * 3,
                                                 mask=lambda m: filled(m, np.zeros, (3, 5), "bfloat16")),
    "a mask that is a word": lambda m: attended(m, mask=lambda m: "window"),
    "a mask that is a number": lambda m: attended(m, mask=lambda m: 1.0),
    "too few sinks": lambda m: attended(m, sinks=lambda m: filled(m, np.zeros, (2,))),
    "a matrix of sinks": lambda m: attended(m, sinks=lambda m: filled(m, np.zeros, (4, 1))),
    "sinks that are wider": lambda m: attended(m, ("float16",) * 3, sinks=lambda m: filled(m, np.zeros, (4,))),
    "sinks of integers": lambda m: attended(m, sinks=lambda m: filled(m, np.zeros, (4,), "int32")),
}


@pytest.mark.parametrize("name", CASES)
def test_case_against_mlx(name):
    oracle = pytest.importorskip("mlx.core")
    results = []
    for module in (mx, oracle):
        try:
            got = CASES[name](module)
            results.append([(str(a.dtype).rpartition(".")[2], tuple(a.shape), a.tolist())
                            for a in (got if isinstance(got, list) else [got])])
        except Exception as error:                  # of whatever class: it is what is compared
            results.append(type(error))
    ours, theirs = results
    assert isinstance(ours, type) == isinstance(theirs, type), f"{ours} instead of {theirs}"
    if isinstance(ours, type):
        assert ours is theirs
    else:
        for (dtype, shape, got), (want_dtype, want_shape, want) in zip(ours, theirs, strict=True):
            assert (dtype, shape) == (want_dtype, want_shape)
            np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)
