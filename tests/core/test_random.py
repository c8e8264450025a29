"""Random numbers: what a key gives, that it gives nothing else, and how the values are distributed."""
import subprocess
import sys
import threading

import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

KEY = 77
HALF = [mx.float32, mx.float16, mx.bfloat16]


def values(a):
    return np.asarray(a.astype(mx.float32)) if a.dtype in HALF else np.asarray(a)


def rotate(x, n):
    return (x << np.uint32(n)) | (x >> np.uint32(32 - n))


def threefry(key, counters):
    """Threefry-2x32 with twenty rounds, from its definition."""
    k = [np.uint32(key[0]), np.uint32(key[1])]
    k.append(k[0] ^ k[1] ^ np.uint32(0x1BD11BDA))
    a, b = counters[0] + k[0], counters[1] + k[1]
    for group in range(5):
        for distance in [(13, 15, 26, 6), (17, 29, 16, 24)][group % 2]:
            a = a + b
            b = rotate(b, distance) ^ a
        a, b = a + k[(group + 1) % 3], b + k[(group + 2) % 3] + np.uint32(group + 1)
    return a, b


def words(key, n):
    half = (n + 1) // 2
    first = np.arange(half, dtype=np.uint32)
    second = first + np.uint32(half)
    if n % 2:
        second[-1] = 0
    return np.concatenate(threefry(key, (first, second)))[:n]


@pytest.mark.parametrize("n", [1, 2, 3, 5, 16, 255, 256, 257, 1024, 5001, 100000])
def test_uniform_is_words_of_threefry(n):
    for seed in (0, KEY, 2**63 + 12345):
        want = np.minimum(words((seed >> 32, seed & 0xFFFFFFFF), n).astype(np.float32) / np.float32(2**32),
                          np.nextafter(np.float32(1), np.float32(0)))
        np.testing.assert_array_equal(values(mx.random.uniform(shape=(n,), key=mx.random.key(seed))), want)


def test_known_words_of_threefry():
    """The known answers that come with the generator's reference implementation: key and counter zero, and all ones."""
    zero, ones = np.zeros(1, np.uint32), np.full(1, 0xFFFFFFFF, np.uint32)
    assert [hex(w[0]) for w in threefry((0, 0), (zero, zero))] == ["0x6b200159", "0x99ba4efe"]
    assert [hex(w[0]) for w in threefry((0xFFFFFFFF,) * 2, (ones, ones))] == ["0x1cb996fc", "0xbb002be7"]


def test_keys():
    assert mx.random.key(2**40 + 3).tolist() == [256, 3]
    key = mx.random.key(KEY)
    many = mx.random.split(key, 5)
    assert many.shape == (5, 2) and many.dtype == mx.uint32
    assert len({tuple(k) for k in many.tolist()}) == 5
    np.testing.assert_array_equal(np.asarray(mx.random.split(key)).ravel(), words((0, KEY), 4))
    for bad in (-1, 2**64, 1.5, "a"):
        with pytest.raises(TypeError):
            mx.random.key(bad)
        with pytest.raises(TypeError):
            mx.random.seed(bad)
    for bad in (mx.array([1, 2]), mx.array([1, 2, 3], dtype=mx.uint32), mx.array([[1, 2]], dtype=mx.uint32)):
        with pytest.raises(ValueError):
            mx.random.uniform(key=bad)


def test_state_is_the_thread_s():
    mx.random.seed(5)
    state = mx.random.state
    assert isinstance(state, list) and state is mx.random.state and len(state) == 1
    before = state[0]
    first = mx.random.normal((4,))
    assert before.tolist() == [0, 5] and state[0].tolist() != [0, 5]
    second = mx.random.normal((4,))
    assert first.tolist() != second.tolist()
    seen = []

    def other():
        mx.random.seed(5)
        seen.append(list(state)[0].tolist())
        seen.append(mx.random.normal((4,)).tolist())
        seen.append(state[0].tolist() == [0, 5])

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [[0, 5], first.tolist(), False] and state[0].tolist() != [0, 5]
    mx.random.seed(5)
    assert mx.random.normal((4,)).tolist() == first.tolist()
    keys = mx.random.split(mx.random.key(5))
    assert mx.random.normal((4,), key=keys[1]).tolist() == first.tolist()
    state[0] = mx.random.key(5)
    assert mx.random.normal((4,)).tolist() == first.tolist()
    state[0] = "no key"
    with pytest.raises(TypeError):
        mx.random.normal()
    del state[0]
    with pytest.raises(IndexError):
        mx.random.normal()
    mx.random.seed(0)


def test_compiled_functions_keep_the_state():
    draw = mx.compile(lambda n: mx.random.uniform(shape=(3,)) + n, inputs=mx.random.state, outputs=mx.random.state)
    zero = mx.array(0.0)

    def three():
        mx.random.seed(9)
        got = [draw(zero).tolist() for _ in range(3)]
        mx.random.seed(9)
        assert got == [mx.random.uniform(shape=(3,)).tolist() for _ in range(3)]
        assert got[0] != got[1] != got[2]
        results.append(got)

    results = []
    three()
    thread = threading.Thread(target=three)
    thread.start()
    thread.join()
    assert len(results) == 2 and results[0] == results[1]


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_uniform_bounds(dtype):
    x = values(mx.random.uniform(-2, 5, (300, 300), dtype, mx.random.key(KEY)))
    assert -2 <= x.min() < -1.9 and 4.9 < x.max() <= 5 and abs(x.mean() - 1.5) < 0.05
    assert values(mx.random.uniform(shape=(1 << 20,), dtype=dtype, key=mx.random.key(1))).max() < 1
    low, high = mx.array([0.0, 10.0]), mx.array([[1.0], [20.0], [30.0]])
    y = values(mx.random.uniform(low, high, (3, 2), dtype, mx.random.key(KEY)))
    assert y.shape == (3, 2) and (y[:, 0] >= 0).all() and (y[1:, 1] >= 10).all()


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_normal(dtype):
    x = values(mx.random.normal((1001, 500), dtype, key=mx.random.key(KEY))).astype(np.float64)
    assert abs(x.mean()) < 5e-3 and abs(x.std() - 1) < 5e-3
    assert abs((x**3).mean()) < 0.02 and abs((x**4).mean() - 3) < 0.05
    for k, share in ((1, 0.682689), (2, 0.954500), (3, 0.997300)):
        assert abs((np.abs(x) < k).mean() - share) < 3e-3
    y = values(mx.random.normal((1001, 500), dtype, loc=2.0, scale=0.5, key=mx.random.key(KEY)))
    np.testing.assert_allclose(y, x * 0.5 + 2, atol=3e-2 if dtype != mx.float32 else 1e-5)


def test_normal_is_the_inverse_of_its_distribution():
    """Each value is the normal quantile of the uniform one at its place."""
    from math import erfc, sqrt
    key = mx.random.key(KEY)
    z, u = values(mx.random.normal((4000,), key=key)), values(mx.random.uniform(shape=(4000,), key=key))
    shares = np.array([0.5 * erfc(-float(v) / sqrt(2)) for v in z])
    np.testing.assert_allclose(shares, u, atol=2e-7, rtol=2e-6)


def test_complex_normal():
    z = values(mx.random.normal((400, 300), mx.complex64, key=mx.random.key(KEY)))
    assert abs(z.real.var() - 0.5) < 0.01 and abs(z.imag.var() - 0.5) < 0.01 and abs((z.real * z.imag).mean()) < 0.01
    y = values(mx.random.normal((400, 300), mx.complex64, 1 - 2j, 3.0, mx.random.key(KEY)))
    np.testing.assert_allclose(y, 3 * z + (1 - 2j), rtol=1e-5, atol=1e-5)


def test_other_distributions():
    key, n = mx.random.key(KEY), (400, 500)
    g = values(mx.random.gumbel(n, key=key)).astype(np.float64)
    assert abs(g.mean() - 0.577216) < 0.01 and abs(g.var() - np.pi**2 / 6) < 0.02
    assert abs(values(mx.random.gumbel(n, mx.float16, key=key)).mean() - 0.577216) < 0.02
    x = values(mx.random.laplace(n, loc=1.0, scale=2.0, key=key)).astype(np.float64)
    assert abs(np.median(x) - 1) < 0.02 and abs(np.abs(x - 1).mean() - 2) < 0.02
    t = values(mx.random.truncated_normal(-1.0, 2.0, n, key=key))
    assert t.min() >= -1 and t.max() <= 2 and abs(t.mean() - 0.2296) < 0.01
    assert mx.random.truncated_normal(0, mx.array([1.0, 2.0])).shape == (2,)
    b = values(mx.random.bernoulli(mx.array([0.0, 0.2, 0.7, 1.0]), (20000, 4), key=key))
    np.testing.assert_allclose(b.mean(0), [0, 0.2, 0.7, 1], atol=0.01)
    assert mx.random.bernoulli().shape == () and mx.random.bernoulli().dtype == mx.bool_


def test_multivariate_normal():
    mean, cov = np.array([1.0, -2, 3], "f4"), np.array([[2.0, 0.5, 0], [0.5, 1, 0.3], [0, 0.3, 0.5]], "f4")
    x = np.asarray(mx.random.multivariate_normal(mx.array(mean), mx.array(cov), (200, 250), key=mx.random.key(KEY)))
    assert x.shape == (200, 250, 3)
    np.testing.assert_allclose(x.reshape(-1, 3).mean(0), mean, atol=0.02)
    np.testing.assert_allclose(np.cov(x.reshape(-1, 3).T), cov, atol=0.03)
    eye = np.eye(3, dtype="f4")
    for mean_shape, batch, shape, want in (((3,), (), (), ()), ((2, 3), (), (), (2,)), ((2, 3), (), (5, 2), (5, 2)),
                                           ((2, 3), (5, 1), (), (5, 2))):
        covs = mx.array(np.broadcast_to(eye, batch + (3, 3)).copy())
        assert mx.random.multivariate_normal(mx.array(np.zeros(mean_shape, "f4")), covs, shape).shape == want + (3,)
    for m, c, more in ((mean, cov[:2], {}), (mean, cov[0], {}), (mean[0], cov, {}), (mean, np.eye(2, dtype="f4"), {}),
                       (mean, cov, dict(dtype=mx.float16)), (np.zeros((2, 3), "f4"), cov, dict(shape=(3,)))):
        with pytest.raises(ValueError):
            mx.random.multivariate_normal(mx.array(m), mx.array(c), **more)


@pytest.mark.parametrize("dtype", [mx.int32, mx.int8, mx.uint8, mx.int64, mx.uint32], ids=str)
def test_randint(dtype):
    x = mx.random.randint(3, 12, (10000,), dtype, mx.random.key(KEY))
    counts = np.bincount(np.asarray(x), minlength=12)
    assert x.dtype == dtype and counts[:3].sum() == 0 and len(counts) == 12 and (np.abs(counts[3:] - 1111) < 150).all()
    y = np.asarray(mx.random.randint(mx.array([0, 10]), mx.array([[5], [20]]), (2, 2)))
    assert (y[:, 0] < [5, 20]).all() and 10 <= y[1, 1] < 20 and y[0, 1] == 10


def test_one_line_of_logits_is_drawn_by_its_cumulative_sum():
    logits = mx.array([0.0, 2.0, -float("inf"), 1.0, -float("inf")])
    sums = np.cumsum(np.exp(np.array(logits, dtype="f8")))
    for shape, x in (((3000,), logits), ((1, 3000), logits[None])):
        u = np.array(mx.random.uniform(shape=shape, key=mx.random.key(2)))
        got = mx.random.categorical(x, num_samples=3000, key=mx.random.key(2))
        assert got.dtype == mx.uint32 and got.shape == shape and set(np.array(got).flat) == {0, 1, 3}
        assert (np.array(got) == np.searchsorted(sums / sums[-1], u, "right")).mean() > 0.999
    assert mx.random.categorical(logits[None]).shape == (1,) and mx.random.categorical(logits).shape == ()
    assert mx.random.categorical(logits[:, None], axis=0, shape=(2, 1)).shape == (2, 1)
    lines = mx.concatenate([logits[None], mx.array([[-float("inf")] * 4 + [0.0]])])
    assert np.array(mx.vmap(lambda line: mx.random.categorical(line[None], key=mx.random.key(1)))(lines))[1] == 4


def test_categorical():
    logits = mx.log(mx.array([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]]))
    key = mx.random.key(KEY)
    x = np.asarray(mx.random.categorical(logits, num_samples=20000, key=key))
    assert x.shape == (2, 20000)
    np.testing.assert_allclose([np.bincount(r, minlength=3) / 20000 for r in x], [[0.1, 0.2, 0.7], [0.5, 0.5, 0]],
                               atol=0.015)
    y = np.asarray(mx.random.categorical(logits, shape=(20000, 2), key=key))
    np.testing.assert_allclose(np.bincount(y[:, 0], minlength=3) / 20000, [0.1, 0.2, 0.7], atol=0.015)
    z = mx.random.categorical(mx.transpose(logits), axis=0, key=key)
    assert z.shape == (2,) and z.dtype == mx.uint32
    assert mx.random.categorical(logits, axis=0).shape == (3,)
    for arguments in (dict(shape=(3,)), dict(shape=(1,)), dict(shape=(4, 2), num_samples=2), dict(num_samples=-1)):
        with pytest.raises(ValueError):
            mx.random.categorical(logits, **arguments)
    for axis in (2, -3):
        with pytest.raises(IndexError):
            mx.random.categorical(logits, axis=axis)


@pytest.mark.parametrize("arguments, shape", [({"num_samples": 500}, (500,)), ({"shape": (20, 30)}, (20, 30)),
                                              ({}, (1,))])
def test_categorical_of_one_line_is_where_uniform_values_fall(arguments, shape):
    logits = mx.array([0.5, float("-inf"), 2.0, -1.0, float("-inf")])
    if not arguments:
        logits = logits.reshape(1, 5)
    key = mx.random.key(7)
    got = mx.random.categorical(logits, key=key, **arguments)
    sums = np.cumsum(np.asarray(mx.softmax(logits.reshape(5))))
    u = np.asarray(mx.random.uniform(shape=shape, key=key))
    assert got.dtype == mx.uint32 and got.shape == shape
    assert np.mean(np.asarray(got) == np.searchsorted(sums, u,
                                                      side="right")) > 0.99      # the sums' last bits are our own
    assert not {1, 4} & set(got.flatten().tolist())


def test_shapes_are_sequences():
    for call in ("uniform(shape=3)", "normal(3)", "randint(0, 9, 3)", "bernoulli(0.5, 3)", "gumbel(3)", "laplace(3)",
                 "truncated_normal(-1, 1, 3)", "categorical(mx.zeros(5), shape=3)"):
        with pytest.raises(TypeError):
            eval("mx.random." + call)
    mx.random.seed(seed=3)
    assert mx.eval(mx.random.state, [mx.random.state]) is None and mx.random.state[0].tolist() == [0, 3]


def test_permutation():
    key = mx.random.key(KEY)
    for n in (0, 1, 2, 7, 1000, 70001):
        order = np.asarray(mx.random.permutation(n, key=key))
        np.testing.assert_array_equal(order, np.argsort(words((0, KEY), n), kind="stable"))
    a = np.arange(24).reshape(4, 6)
    for axis in (0, 1, -1):
        np.testing.assert_array_equal(np.asarray(mx.random.permutation(mx.array(a), axis, key)),
                                      np.take(a, np.asarray(mx.random.permutation(a.shape[axis], key=key)), axis))
    with pytest.raises(ValueError):
        mx.random.permutation(-1)
    with pytest.raises(IndexError):
        mx.random.permutation(mx.array(a), axis=2)
    with pytest.raises(TypeError):
        mx.random.permutation(2.5)


def test_errors():
    for call in (lambda: mx.random.uniform(dtype=mx.int32), lambda: mx.random.uniform(dtype=mx.complex64),
                 lambda: mx.random.normal(dtype=mx.int32), lambda: mx.random.laplace(dtype=mx.uint8),
                 lambda: mx.random.gumbel(dtype=mx.int8), lambda: mx.random.truncated_normal(0, 1, dtype=mx.int32),
                 lambda: mx.random.randint(0, 5, dtype=mx.float32), lambda: mx.random.bernoulli(mx.array([0, 1])),
                 lambda: mx.random.uniform(shape=(-1,)), lambda: mx.random.uniform(0, mx.array([1, 2, 3]), (2,)),
                 lambda: mx.random.uniform(0, mx.array([1, 2, 3])),
                 lambda: mx.random.randint(0, mx.array([1, 2]), (3,)),
                 lambda: mx.random.normal((3,), loc=mx.array([1.0, 2.0]))):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(RuntimeError):
        mx.random.uniform(dtype=mx.float64)
    with pytest.raises(TypeError):
        mx.random.uniform(key=5)


def test_transforms():
    keys = mx.random.split(mx.random.key(KEY), 6)
    for draw in (lambda k: mx.random.uniform(-1, 2, shape=(3, 5), key=k), lambda k: mx.random.normal((7,), key=k),
                 lambda k: mx.random.split(k, 3)):
        together = np.asarray(mx.vmap(draw)(keys))
        nested = np.asarray(mx.vmap(mx.vmap(draw))(mx.reshape(keys, (2, 3, 2))))
        for i in range(6):
            np.testing.assert_array_equal(together[i], np.asarray(draw(keys[i])))
            np.testing.assert_array_equal(nested[i // 3, i % 3], together[i])
    key = keys[0]
    u = mx.random.uniform(shape=(4,), key=key)
    slope = mx.grad(lambda low: mx.sum(mx.random.uniform(low, 1.0, (4,), key=key)))(mx.array(0.0))
    np.testing.assert_allclose(slope.item(), float(np.sum(1 - np.asarray(u))), rtol=1e-6)
    assert mx.grad(lambda m: mx.sum(mx.random.normal((4,), loc=m, key=key)))(mx.array(0.0)).item() == 4


THREADS = """
import gomlx._gomlx as engine, gomlx.core as mx, hashlib, numpy as np
engine.set_threads({threads})
k = mx.random.key(3)
for a in (mx.random.normal((300001,), key=k), mx.random.uniform(shape=(7, 50001), dtype=mx.float16, key=k),
          mx.vmap(lambda k: mx.random.gumbel((5, 333), key=k))(mx.random.split(k, 99))):
    print(hashlib.sha256(np.asarray(a).tobytes()).hexdigest())
"""


def test_the_same_bits_for_any_number_of_threads():
    runs = {subprocess.run([sys.executable, "-P", "-c", THREADS.format(threads=n)], capture_output=True, text=True,
                           check=True).stdout for n in (1, 2, 5)}
    assert len(runs) == 1 and len(runs.pop().split()) == 3


# ---- MLX itself, where it is installed ----
ORACLE = [
    "m.random.uniform(-2, 5, (1001,), {t}, k)", "m.random.uniform(shape=(10, 100), dtype={t}, key=k)",
    "m.random.uniform(m.array([0., 1.]), m.array([[3.], [4.]]), (2, 2), {t}, k)",
    "m.random.normal((1001,), {t}, key=k)",
    "m.random.normal((1000,), {t}, loc=2, scale=3, key=k)",
    "m.random.normal((3, 2), {t}, loc=m.array([1., 2.]), scale=m.array([[1.], [2.], [3.]]), key=k)",
    "m.random.gumbel((999,), {t}, key=k)", "m.random.laplace((999,), {t}, loc=1.5, scale=2.5, key=k)",
    "m.random.truncated_normal(-1.0, 2.0, (1001,), {t}, k)", "m.random.split(k, 7)", "m.random.key(2**63 + 5)",
    "m.random.randint(-100, 100, (1000,), m.int32, k)", "m.random.randint(0, 10, (1000,), m.uint8, k)",
    "m.random.bernoulli(0.3, (1000,), k)", "m.random.categorical(x, key=k)", "m.random.categorical(x, axis=1, key=k)",
    "m.random.categorical(x, num_samples=3, key=k)", "m.random.categorical(x, axis=1, num_samples=3, key=k)",
    "m.random.categorical(x, shape=(6, 4, 7), axis=1, key=k)",
    "m.random.normal((3, 4), m.complex64, 1.0+2j, 2.0, key=k)",
    "m.random.normal((301,), m.float64, key=k)",
    "m.random.multivariate_normal(x[0, 0], x[0].T @ x[0] + m.eye(7), (9,), key=k)",
]


CASES = [(text, dtype) for text in ORACLE for dtype in ("float32", "float16", "bfloat16")
         if "{t}" in text or dtype == "float32"]


@pytest.mark.parametrize("text, dtype", CASES)
def test_values_are_mlx_s(text, dtype):
    mlx = pytest.importorskip("mlx.core")
    x = np.random.default_rng(0).standard_normal((4, 5, 7), dtype=np.float32)

    def run(m):
        y = eval(text.format(t="m." + dtype), {"m": m, "k": m.random.key(KEY), "x": m.array(x)})
        return str(y.dtype).split(".")[-1], np.array(y.astype(m.float32) if y.dtype == m.bfloat16 else y)

    (got_type, got), (want_type, want) = run(mx), run(mlx)
    assert got_type == want_type and got.shape == want.shape
    # A half float of erfinv may round the other way.
    tolerance = {"float32": 3e-6, "float16": 3e-3, "bfloat16": 2e-2}[dtype]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance if got.dtype.kind in "fc" else 0)
