"""Creation, shape and view ops: the same expression over gomlx, over NumPy where it has the function, and over the
installed MLX; errors by class; gradients against finite differences; vmap against a loop."""
import numpy as np
import pytest
from arrays import check_vmap
from test_gradients import check_gradient

import gomlx.core as mx

try:
    import mlx.core as mlx
except ImportError:
    mlx = None

# Over m, with a = 0..5 in (2, 3), c = 0..23 in (2, 3, 4), f = 0..4 as float32, e of shape (2, 0, 3).
EXPRESSIONS = """
m.zeros(3)   m.zeros((2, 0))   m.zeros([2, 2], m.int8)   m.ones((1, 2), dtype=m.bool_)   m.zeros(())
m.full((2,), 3.5, m.float32)   m.full((2, 2), m.array([1, 2]))   m.full_like(a, 7)   m.zeros_like(f)   m.ones_like(a)
m.eye(3)   m.eye(2, 3, 1)   m.eye(4, 2, -1)   m.eye(0)   m.eye(3, k=10)   m.identity(4)   m.tri(3)   m.tri(2, 4, 1)
m.tri(4, 2, -2)   m.tril(a)   m.tril(c, 1)   m.triu(a)   m.triu(c, -1)   m.linspace(0, 1, 5)   m.linspace(-3.3, 7.7, 17)
m.linspace(0, 1, 4, endpoint=False)   m.linspace(5, 5, 3)   m.linspace(0, 10, 1)   m.linspace(0, 10, 0)   m.bartlett(5)
m.bartlett(1)   m.hanning(6)   m.hamming(7)   m.blackman(8)   m.hanning(0)   m.arange(3)   m.arange(1, 10, 3)
m.arange(10, 0, -3)   m.arange(1.0, 3.0, 0.5)   m.arange(10, 0, 3)   m.arange(2**31 - 2, 2**31 + 2)
m.meshgrid(f, a[0])
m.meshgrid(f, a[0], indexing='ij')   m.meshgrid(f, a[0], f[:2], sparse=True)   m.meshgrid(f)   m.reshape(c, (4, 6))
m.reshape(c, (-1, 3))   m.reshape(m.transpose(c, (2, 0, 1)), (8, 3))   m.reshape(e, (0, 7))   m.squeeze(c[:1])
m.squeeze(c[:, :1], 1)   m.squeeze(c[:1, :, :1], (0, -1))   m.expand_dims(a, 0)   m.expand_dims(a, (0, -1))
m.expand_dims(a, (1, 3))   m.moveaxis(c, 0, 2)   m.moveaxis(c, -1, 0)   m.moveaxis(c, 1, 1)   m.swapaxes(c, 0, 2)
m.swapaxes(c, -1, 1)   m.transpose(c)   m.transpose(c, (1, 2, 0))   m.matrix_transpose(c)   m.permute_dims(c, (2, 0, 1))
m.atleast_1d(f[0])   m.atleast_2d(f)   m.atleast_3d(f)   m.atleast_3d(a)   m.atleast_3d(f[1])
m.broadcast_to(f, (3, 5))
m.broadcast_to(a[:, None], (2, 4, 3))   m.broadcast_arrays(a, a[:, :1], f[0])
m.broadcast_shapes((2, 1), (3,), (7, 1, 1))
m.concatenate([a, a])   m.concatenate([a, a[:, :1]], 1)   m.concatenate([c, c[:, ::-1]], axis=-1)
m.concatenate([a, c], axis=None)   m.concatenate([e, c[:, :, :3]], 1)   m.concat([a, a], axis=1)   m.stack([a, a])
m.stack([a, a], axis=-1)   m.stack([a, a, a], axis=1)   m.unstack(c)   m.unstack(c, axis=1)   m.split(f[:4], 2)
m.split(c, 2, axis=-1)   m.split(f, [1, 3])   m.split(f, [])   m.split(f, [3, 1])   m.split(f, [2, 9])
m.split(f, [-2])
m.tile(a, 2)   m.tile(a, (2, 1))   m.tile(f, (2, 3))   m.tile(f[0], 3)   m.tile(a, (2, 1, 1))   m.tile(a, 0)
m.tile(c, (1, 2))   m.repeat(a, 2)   m.repeat(a, 3, axis=0)   m.repeat(c, 2, axis=-1)   m.repeat(a, 0, axis=1)
m.repeat(f[0], 2)   m.flip(c)   m.flip(c, 0)   m.flip(c, (0, -1))   m.roll(a, 1)   m.roll(a, -7)   m.roll(c, 2, -1)
m.roll(c, (1, 2), (0, 2))   m.roll(a, 1, (0, 1))   m.roll(e, 1)   m.roll(f[0], 3)   m.pad(a, 1)   m.pad(a, (1, 0))
m.pad(a, ((1, 0), (0, 2)))   m.pad(c, ((1, 2), (0, 1), (0, 0)))   m.pad(c, ((1, 2), (0, 0), (0, 0)))
m.pad(m.transpose(c, (2, 0, 1)), ((0, 0), (1, 0), (2, 3)))   m.pad(a, 1, constant_values=7)   m.pad(e, 1)
m.pad(a, 2, mode='edge')   m.pad(c, ((1, 0), (0, 2), (3, 1)), mode='edge')   m.pad(a, 1, mode='reflect')
m.pad(a, ((0, 0), (7, 9)), mode='reflect')   m.pad(f[:1], 3, mode='reflect')   m.pad(a, 2, mode='symmetric')
m.pad(a, ((0, 0), (7, 8)), mode='symmetric')   m.pad(c, 0)   m.diag(f)   m.diag(f, 2)   m.diag(f, -1)   m.diag(a)
m.diag(a, 1)   m.diag(a, -5)   m.diagonal(a)   m.diagonal(c, 1, 1, 2)   m.diagonal(c, -1, 2, 0)   m.diagonal(c, 9)
m.trace(a)   m.trace(c, 1)   m.trace(c, 0, 1, 2)   m.diff(f)   m.diff(c, 2)   m.diff(c, axis=0)   m.diff(a, n=0)
m.diff(a > 2)   m.diff(f, 9)   m.kron(f, f)   m.kron(a, c[0])   m.kron(a, f)   m.kron(f[1], a)
m.contiguous(m.transpose(c))
m.flatten(c, 1, 2)   m.flatten(c, -2)   m.flatten(f[0])   m.flatten(c, -7, 9)   m.flatten(e)   m.unflatten(c, 2, (2, 2))
m.unflatten(c, 2, (2, -1))   m.unflatten(c, 0, (2, 1, -1))   m.as_strided(a, (3, 2), (1, 2))   m.as_strided(a)
m.as_strided(a, (4,))   m.as_strided(a, (2, 2), (-1, 1), 3)   m.as_strided(m.transpose(a), (6,), (1,))
m.as_strided(a, (0,), (1,))   m.view(a, m.float32)   m.view(a, m.int16)   m.view(c, m.int64)
m.view(m.transpose(c), m.int16)
m.view(m.transpose(c), m.int64)   m.view(c[:, :, ::2], m.int64)   m.view(c[:, :, 1:3], m.int64)   m.view(e, m.int8)
m.view(f[0], m.int32)   m.view(f, m.uint8)   m.depends([a, f], [c])   m.depends(a, f)
m.linspace(0, 10, 5, dtype=m.int32)
m.linspace(0, 1, 5, False, m.float16)   m.arange(0, 5, 1.5, m.int32)   m.arange(-0.9, 5, 1.9, m.int32)
m.arange(0, 2, dtype=m.complex64)   m.arange(255, 260, dtype=m.uint8)   m.arange(1, 10, float('inf'))   m.arange(stop=4)
m.full_like(a, 7.5)   m.trace(m.ones((2, 2), m.int8))   m.atleast_1d(f[0], a)   m.empty((2, 2))   m.empty_like(a)
""".replace("\n", "   ").split("   ")
EXPRESSIONS = [text for text in EXPRESSIONS if text]
# NumPy has no such function, or another meaning.
NOT_NUMPY = ("m.flatten", "m.unflatten", "m.as_strided", "m.view", "m.depends", "m.contiguous", "m.full_like(a, 7.5",
             "m.empty",
             "m.arange(0, 5, 1.5", "m.arange(-0.9", "m.arange(1, 10, float", "m.linspace(0, 10, 5",
             "m.atleast_1d(f[0], a)",
             "m.zeros_like", "m.linspace(0, 1, 5, False", "m.arange(0, 2, dtype=m.complex", "m.arange(255",
             "m.diag(a, -5")

ERRORS = {
    ValueError: """
        m.zeros((2, -1))   m.full((2, 3), m.array([1, 2]))   m.full((2, 2), [1, 2])   m.eye(-1)   m.tril(f)
        m.linspace(0, 10, -1)   m.meshgrid(f, indexing='zz')   m.arange(0, 10, 0)   m.arange(0, float('inf'))
        m.arange(float('nan'))   m.arange(3, dtype=m.bool_)   m.reshape(a, (4, -1))   m.reshape(a, (-1, -1))
        m.reshape(e, (0, -1))   m.flatten(c, 2, 1)   m.unflatten(c, 1, (2, -1))   m.unflatten(c, 1, ())
        m.squeeze(c, 0)
        m.squeeze(c[:1], (0, -3))   m.expand_dims(a, (0, 0))   m.transpose(a, (0, 0))   m.transpose(a, (0,))
        m.matrix_transpose(f)   m.broadcast_to(a, (3, 3))   m.broadcast_arrays(a, f)   m.broadcast_shapes((2,), (3,))
        m.broadcast_shapes()   m.concatenate([])   m.concatenate([a, f])   m.concatenate([a, c[0]])   m.stack([])
        m.stack([a, f])   m.split(f, 2)   m.split(a, -1)   m.tile(a, -1)   m.repeat(a, -1)   m.pad(a, ((1, 0),) * 3)
        m.pad(a, -1)   m.pad(a, 1, mode='wrap')   m.roll(a, (1, 2), (0, 1, 1))   m.view(a, m.int64)
        m.view(f[0], m.int16)
        m.diag(c)   m.diag(f[0])   m.diagonal(f)   m.diagonal(a, 0, 0, 0)   m.trace(f)   m.diff(a, n=-1)""",
    IndexError: """
        m.unflatten(c, 3, (2, -1))   m.squeeze(c, 4)   m.expand_dims(a, 3)   m.expand_dims(a, -4)
        m.transpose(a, (0, 2))
        m.moveaxis(c, 0, 3)   m.swapaxes(c, 0, -4)   m.concatenate([a, a], axis=2)   m.concatenate([f[0], f[1]])
        m.stack([a, a], axis=3)   m.unstack(a, axis=2)   m.split(a, 2, axis=2)   m.repeat(a, 2, axis=2)   m.flip(a, 2)
        m.roll(a, 1, 2)   m.diagonal(a, 0, 0, 2)   m.diff(a, axis=2)""",
    TypeError: """
        m.zeros((2,), 'float32')   m.full_like(3, 7.5)   m.zeros_like(3)   m.linspace(0, 1, 4.0)   m.hanning(2.0)
        m.arange()
        m.arange(start=3)   m.squeeze(3)   m.moveaxis(c, (0, 1), (1, 2))   m.concatenate([1, 2])   m.stack([1, 2])
        m.unstack(a, 0)   m.split(f, 2.0)   m.repeat(3, 2)   m.pad(a, (1, 2, 3))   m.pad([1, 2], 1)   m.view(a, None)
        m.kron(a, 2)   m.linspace(0, 1j, 3)   m.linspace(2.5j, 3)""",
}
ERRORS = [(error, text.strip()) for error, texts in ERRORS.items() for text in texts.replace("\n", "   ").split("   ")
          if text.strip()]


def arrays(m):
    c = m.reshape(m.arange(24), (2, 3, 4))
    make = m.array if m is not np else np.asarray
    names = {"a": m.reshape(m.arange(6), (2, 3)), "c": c, "f": make(np.arange(5, dtype=np.float32)),
             "e": m.zeros((2, 0, 3))}
    return names if m is not np else {name: x.astype(np.int32) if x.dtype == np.int64 else x for name,
                                      x in names.items()}


def plain(m, value):
    """Type, shape and values of a result, as NumPy sees them."""
    if isinstance(value, (list, tuple)) and not (value and isinstance(value[0], int)):
        return [plain(m, item) for item in value]
    if isinstance(value, tuple):
        return value
    return np.asarray(value) if m is np else np.array(value.tolist()).reshape(value.shape)


def names_of(value):
    if isinstance(value, (list, tuple)):
        return [names_of(item) for item in value]
    return str(getattr(value, "dtype", "")).rpartition(".")[2]


def check_same(got, want):
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            check_same(one, other)
    elif isinstance(want, tuple):
        assert got == want
    else:
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-6, atol=2e-7)


def value_of(m, text):
    return eval(text, {"m": m, **arrays(m)})


def test_arange_of_a_bool():
    with pytest.raises(ValueError):
        mx.arange(True)
    assert mx.arange(True, dtype=mx.int32).tolist() == mx.arange(False, 1).tolist() == [0]


def test_more_arrays_than_a_node_takes():
    many = [mx.array([7]), mx.array([8])] * 33000
    want = 7 + mx.arange(66000) % 2
    assert mx.array_equal(mx.concatenate(many), want).item()
    assert mx.array_equal(mx.array(many), want[:, None]).item()


def test_many_arrays_are_joined_in_little_time():
    many = [mx.array([i]) for i in range(4000)]        # minutes, if each copy were compared with all that were read
    assert mx.array_equal(mx.stack(many)[:, 0], mx.arange(4000)).item()


@pytest.mark.parametrize("text", [text for text in EXPRESSIONS if not text.startswith(NOT_NUMPY)])
def test_as_numpy(text):
    check_same(plain(mx, value_of(mx, text)), plain(np, value_of(np, text)))


@pytest.mark.skipif(mlx is None, reason="mlx is not installed")
@pytest.mark.parametrize("text", EXPRESSIONS)
def test_as_mlx(text):
    got, want = value_of(mx, text), value_of(mlx, text)
    assert type(got).__name__ == type(want).__name__
    assert names_of(got) == names_of(want)
    check_same(plain(mx, got), plain(mlx, want))


@pytest.mark.parametrize("error, text", ERRORS, ids=[text for _, text in ERRORS])
def test_errors(error, text):
    with pytest.raises(error):
        value_of(mx, text)
    if mlx is not None:
        with pytest.raises(error):
            value_of(mlx, text)


def test_reshape_is_a_view_where_strides_allow():
    a = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    rng = np.random.default_rng(0)
    for _ in range(300):
        order = rng.permutation(4)
        cut = tuple(slice(None, None, int(step)) for step in rng.choice([1, 1, 2, -1], 4))
        want, got = a.transpose(order)[cut], mx.transpose(mx.array(a), [int(i) for i in order])[cut]
        parts, rest = [], want.size
        while rest > 1:
            parts.append(int(rng.choice([d for d in range(2, rest + 1) if rest % d == 0])))
            rest //= parts[-1]
        parts.insert(0, 1)
        np.testing.assert_array_equal(np.array(mx.reshape(got, parts)), want.reshape(parts))


@pytest.mark.parametrize("dtype", ["bool_", "int8", "uint16", "int32", "float32", "bfloat16", "int64", "complex64"])
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (17, 33), (3, 1000)], ids=str)
def test_moves_of_every_width(dtype, shape):
    n = np.arange(np.prod(shape)).reshape(shape) % 100
    a = mx.array(n).astype(getattr(mx, dtype))
    want = n.astype(bool) if dtype == "bool_" else n
    for got, expected in [(mx.contiguous(a.T), want.T), (mx.pad(a, ((2, 1), (0, 3))), np.pad(want, ((2, 1), (0, 3)))),
                          (mx.concatenate([a, a[:, :1], a], 1), np.concatenate([want, want[:, :1], want], 1)),
                          (mx.tile(a, (2, 3)), np.tile(want, (2, 3))), (mx.flip(a), want[::-1, ::-1])]:
        assert got.dtype == a.dtype
        np.testing.assert_array_equal(np.array(got.tolist()), expected)


def test_what_a_constant_makes_is_its_own():
    a = mx.zeros((3, 4))
    view = np.asarray(memoryview(a))
    assert view.strides == (16, 4)
    assert (np.array(mx.broadcast_to(mx.array(2), (3,))) == 2).all()


def test_as_strided_stays_inside():
    a = mx.arange(6)
    for shape, strides, offset in [((7,), (1,), 0), ((2,), (6,), 0), ((2,), (-1,), 0), ((1,), (1,), 6),
                                   ((1,), (1,), -1),
                                   ((2, 2), (2**62, 2**62), 0)]:
        with pytest.raises((ValueError, OverflowError)):
            mx.as_strided(a, shape, strides, offset)


# ---- gradients and batches ----

DIFFERENTIABLE = {
    "reshape": lambda x: mx.reshape(mx.transpose(x), (4, 3)), "flatten": lambda x: mx.flatten(x),
    "squeeze": lambda x: mx.squeeze(x[None], 0), "unflatten": lambda x: mx.unflatten(x, 1, (2, 2)),
    "expand_dims": lambda x: mx.expand_dims(x, (0, 2)), "transpose": lambda x: mx.transpose(x),
    "broadcast_to": lambda x: mx.broadcast_to(x[:, None], (2, 3, 3, 4)), "slice": lambda x: x[1:, ::2],
    "backwards": lambda x: x[::-1, 3:0:-2], "moveaxis": lambda x: mx.moveaxis(x, 0, 1),
    "contiguous": lambda x: mx.contiguous(mx.transpose(x)), "concatenate": lambda x: mx.concatenate([x, x[:1], x * x]),
    "stack": lambda x: mx.stack([x, x * x], 1), "split": lambda x: mx.split(x, [1, 3], axis=1)[1],
    "unstack": lambda x: mx.unstack(x, axis=1)[2], "tile": lambda x: mx.tile(x, (2, 1)),
    "repeat": lambda x: mx.repeat(x, 2, 1), "flip": lambda x: mx.flip(x, 1), "roll": lambda x: mx.roll(x, 2),
    "pad": lambda x: mx.pad(x, ((1, 0), (2, 1))), "edge": lambda x: mx.pad(x, 2, mode="edge"),
    "reflect": lambda x: mx.pad(x, 2, mode="reflect"), "symmetric": lambda x: mx.pad(x, 3, mode="symmetric"),
    "diagonal": lambda x: mx.diagonal(x, 1), "lower diagonal": lambda x: mx.diagonal(x, -1, 1, 0),
    "diag": lambda x: mx.diag(x[0], -1), "trace": lambda x: mx.trace(x), "diff": lambda x: mx.diff(x, 2),
    "kron": lambda x: mx.kron(x, x[:, :2]), "tril": lambda x: mx.tril(x), "triu": lambda x: mx.triu(x, 1),
    "depends": lambda x: mx.depends([x * x, x], [x + 1])[0], "meshgrid": lambda x: mx.stack(mx.meshgrid(x[0], x[1])),
    "atleast": lambda x: mx.atleast_3d(x), "full": lambda x: mx.full((2, 3, 4), x),
    "swapaxes": lambda x: mx.swapaxes(x, 0, 1),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name):
    check_gradient(DIFFERENTIABLE[name], np.random.default_rng(3).uniform(0.3, 2.0, (3, 4)), second=False)


BATCHED = {"view": lambda x: mx.view(x, mx.int16), "as_strided": lambda x: mx.as_strided(x, (4, 3), (1, 2), 1),
           **DIFFERENTIABLE}


@pytest.mark.parametrize("name", BATCHED)
def test_vmap(name):
    check_vmap(BATCHED[name])


def test_vmap_of_mixed_batches():
    x, y = mx.arange(12.0).reshape(3, 4), mx.arange(4.0)
    got = mx.vmap(lambda a, b: mx.concatenate([a, b]), in_axes=(0, None))(x, y)
    np.testing.assert_array_equal(np.array(got), np.stack([np.concatenate([row, np.arange(4)]) for row in np.array(x)]))
    got = mx.vmap(lambda a, b: mx.full((2, 2), a) + b, in_axes=(0, None))(y, mx.array(1.0))
    np.testing.assert_array_equal(np.array(got), np.broadcast_to(np.arange(4.0)[:, None, None] + 1, (4, 2, 2)))


def test_pad_value_has_a_gradient_and_a_batch():
    x = mx.ones((2, 3))
    assert mx.grad(lambda v: (mx.pad(x, 1, constant_values=v) * 2).sum())(mx.array(3.0)).item() == 28
    got = mx.vmap(lambda v: mx.pad(x, 1, constant_values=v))(mx.array([3.0, 4.0]))
    for i, v in enumerate((3, 4)):
        np.testing.assert_array_equal(np.array(got[i]), np.pad(np.ones((2, 3)), 1, constant_values=v))


@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "complex64"])
def test_transposed_copies(dtype):
    # A cache line holds 64, 32, 16 or 8 of them: tiles that are whole, one short and one over.
    for rows, columns in ((1, 70), (7, 8), (8, 7), (15, 33), (16, 16), (31, 32), (64, 65), (65, 64), (129, 200)):
        a = mx.arange(2 * rows * columns).reshape(2, rows, columns).astype(getattr(mx, dtype))
        as_lists = a.astype(mx.float32).tolist()
        for moved, want in ((a.swapaxes(1, 2), [list(map(list, zip(*m))) for m in as_lists]),
                            (a[:, ::-1].swapaxes(1, 2), [list(map(list, zip(*m[::-1]))) for m in as_lists]),
                            (a[:, :, 1:].swapaxes(1, 2), [list(map(list, zip(*m)))[1:] for m in as_lists])):
            assert mx.contiguous(moved).astype(mx.float32).tolist() == want


def test_concatenated_pieces():
    # As one launch: more elements than one thread takes, pieces of nothing, other strides and dtypes among them.
    a, b = mx.arange(300 * 200).reshape(300, 200), mx.arange(300 * 77, dtype=mx.float32).reshape(77, 300).T
    got = mx.concatenate([a, mx.zeros((300, 0)), b, a[::-1]], axis=1)
    assert got.shape == (300, 477) and got.dtype == mx.float32
    assert got[:, :200].tolist() == a.tolist() and got[:, 200:277].tolist() == b.tolist()
    assert got[:, 277:].tolist() == a[::-1].tolist()


@pytest.mark.parametrize("mode", ["reflect", "symmetric"])
def test_mirrored_borders_go_on_as_numpys(mode):
    for n in range(1, 6):
        x = np.arange(1, n + 1, dtype=np.float32)
        for low in range(0, 13, 1):
            for high in (0, 1, 2, 5, 12):
                np.testing.assert_array_equal(np.array(mx.pad(mx.array(x), (low, high), mode=mode)),
                                              np.pad(x, (low, high), mode))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(np.array(mx.pad(mx.array(x), ((1, 8), (9, 2)), mode=mode)),
                                  np.pad(x, ((1, 8), (9, 2)), mode))


def test_border_values_are_weak():
    assert mx.pad(mx.array([1.0], mx.float64), 1, constant_values=0.1).tolist() == [0.1, 1, 0.1]
    for dtype, value in ((mx.int8, 200), (mx.uint8, -1), (mx.int32, 2**40)):
        with pytest.raises(ValueError, match="fit"):
            mx.pad(mx.array([1], dtype), 1, constant_values=value)
    assert mx.pad(mx.array([1]), 1, constant_values=2.7).tolist() == [2, 1, 2]
    assert mx.pad(mx.array([1], mx.int8), 1, constant_values=mx.array(7)).tolist() == [7, 1, 7]


def test_linspace_of_doubles():
    for start, stop, num in ((0, 0.1, 3), (0.1, 0.7, 7), (-1e300, 1e300, 5)):
        for endpoint in (True, False):
            got = mx.linspace(start, stop, num, dtype=mx.float64, endpoint=endpoint)
            np.testing.assert_allclose(np.array(got), np.linspace(start, stop, num, endpoint), rtol=1e-15, atol=1e-17)
            assert got[0].item() == start and (not endpoint or got[-1].item() == stop)
    assert mx.linspace(mx.array(0.1, mx.float64), 0.7, 2, dtype=mx.float64).tolist() == [0.1, 0.7]
    assert mx.linspace(0, 0.1, 3).dtype == mx.float32


def test_no_kronecker_product_of_nothing():
    for a, b in (((0,), (2,)), ((2,), (0,)), ((), (2, 0))):
        with pytest.raises(ValueError, match="kron"):
            mx.kron(mx.zeros(a), mx.zeros(b))
