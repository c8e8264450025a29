"""Products of tensors and convolutions against NumPy in float64, and their gradients against finite differences."""
import itertools

import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa


def f32(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4")


def close(got, want, tolerance=2e-5):
    got, want = np.array(got), np.asarray(want)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1, np.abs(want).max(initial=0)))


@pytest.mark.parametrize("subscripts, shapes", [
    ("ij,jk->ik", [(3, 4), (4, 5)]), ("ij,jk", [(3, 4), (4, 5)]), ("ij->ji", [(3, 4)]), ("ij->", [(3, 4)]),
    ("ii", [(4, 4)]),
    ("ii->i", [(4, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("...ij,...jk->...ik", [(2, 3, 4), (2, 4, 5)]),
    ("i,j->ij", [(3,), (4,)]), ("ij,kl->ijkl", [(2, 3), (4, 5)]), ("abc,cd,de->abe", [(2, 3, 4), (4, 5), (5, 6)]),
    ("ij,ij->i", [(3, 4), (3, 4)]), ("ijk,ilm,njm,nlk,abc->", [(2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 3, 4), (2, 2, 2)]),
    ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]), ("ij,j->i", [(3, 4), (4,)]),
    ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]),
])
def test_einsum(subscripts, shapes):
    values = [f32(*shape, seed=i) for i, shape in enumerate(shapes)]
    close(mx.einsum(subscripts, *map(mx.array, values)), np.einsum(subscripts, *(v.astype("f8") for v in values)))


@pytest.mark.parametrize("subscripts, shapes", [
    ("ij,jk->iz", [(2, 3), (3, 4)]), ("ij,jk->ik", [(2, 3)]), ("ij,jk->ikk", [(2, 3), (3, 4)]), ("i1->i", [(2, 3)]),
    ("ijk->ij", [(2, 3)]), ("ij,ij->ij", [(2, 3), (3, 3)])])
def test_einsum_refuses(subscripts, shapes):
    with pytest.raises(ValueError, match="einsum"):
        mx.einsum(subscripts, *(mx.array(f32(*shape)) for shape in shapes))


def test_einsum_path_is_cheaper_than_all_at_once():
    path, text = mx.einsum_path("ij,jk,kl->il", *(mx.array(f32(*s)) for s in ((2, 30), (30, 4), (4, 50))))
    assert path[0] == (0, 1) and "Optimized FLOP count" in text


@pytest.mark.parametrize("a, b, axes", [((2, 3, 4), (3, 4, 5), 2), ((2, 3), (4,), 0),
                                        ((2, 3, 4), (4, 3, 5), [[1, 2], [1, 0]]),
                                        ((3,), (3,), 1)])
def test_tensordot(a, b, axes):
    x, y = f32(*a), f32(*b, seed=1)
    close(mx.tensordot(mx.array(x), mx.array(y), axes), np.tensordot(x.astype("f8"), y.astype("f8"), axes))


def test_small_products():
    x, y, c = f32(3, 4), f32(5, 4, seed=1), f32(5, seed=2)
    close(mx.inner(mx.array(x), mx.array(y)), np.inner(x, y))
    close(mx.outer(mx.array(x), mx.array(c)), np.outer(x, c))
    close(mx.vecdot(mx.array(x), mx.array(x)), (x * x).sum(-1))
    close(mx.addmm(mx.array(c), mx.array(x), mx.array(y).T, 0.5, 2.0), 0.5 * x @ y.T + 2 * c)
    with pytest.raises(ValueError, match="addmm"):
        mx.addmm(mx.zeros((2, 3, 5)), mx.array(x), mx.array(y).T)


def test_products_of_chosen_matrices():
    a, b = f32(3, 4, 5), f32(6, 5, 7, seed=1)
    left, right = np.array([0, 2, 2, 1]), np.array([5, 0, 3, 3])
    close(mx.gather_mm(mx.array(a), mx.array(b), mx.array(left), mx.array(right)), a[left] @ b[right])
    close(mx.gather_mm(mx.array(a[0]), mx.array(b), None, mx.array(right)), a[0] @ b[right])
    x, y = f32(4, 10), f32(10, 3, seed=2)
    segments = np.array([[0, 3], [3, 3], [2, 10]])
    close(mx.segmented_mm(mx.array(x), mx.array(y), mx.array(segments)),
          np.stack([x[:, i:j] @ y[i:j] for i, j in segments]))
    p, q, mask = f32(64, 40), f32(40, 70, seed=3), np.array([[True, False, True], [False, True, True]])
    full = np.repeat(np.repeat(mask, 32, 0), 32, 1)[:, :70]
    close(mx.block_masked_mm(mx.array(p), mx.array(q), 32, mx.array(mask)), np.where(full, p @ q, 0))


def exact(a):
    """Its values as float64, which a GPU has not."""
    return np.array(a if a.dtype == mx.float64 else a.astype(mx.float32)).astype("f8")


def chosen_matrices(rows, dtype):
    """Forty to choose from, and five to multiply them by."""
    return [mx.array(v).astype(getattr(mx, dtype)) for v in (f32(40, rows, 70), f32(5, 70, 45, seed=1))]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_chosen_matrices_have_the_bits_of_each_alone(rows, dtype):
    a, b = chosen_matrices(rows, dtype)
    r = np.random.default_rng(2)
    for rhs in (np.sort(r.integers(0, 5, 40)), r.integers(0, 5, 40), np.zeros(40, int)):
        got = mx.gather_mm(a, b, None, mx.array(rhs))
        for i in (0, 17, 39):
            assert mx.array_equal(a[i] @ b[int(rhs[i])], got[i]).item()


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float16", 2e-3), ("bfloat16", 1e-2),
                                              ("float64", 1e-13)])
@pytest.mark.parametrize("rows", [1, 3, 50])
def test_chosen_matrices_where_they_lie(rows, dtype, tolerance):
    """Against NumPy: by runs of one matrix or not, transposed, of strided stacks."""
    a, b = chosen_matrices(rows, dtype)
    x, y = exact(a), exact(b)
    flipped = mx.contiguous(b.swapaxes(1, 2)).swapaxes(1, 2)
    r = np.random.default_rng(2)
    for rhs in (np.sort(r.integers(0, 5, 40)), r.integers(0, 5, 40), np.zeros(40, int)):
        got = mx.gather_mm(a, b, None, mx.array(rhs))
        close(exact(got), x @ y[rhs], tolerance)
        for w in (flipped, mx.stack([b, b])[1]):
            assert mx.array_equal(mx.gather_mm(a, w, None, mx.array(rhs.astype(np.uint32)), sorted_indices=True),
                                  got).item()
    lhs, rhs = r.integers(0, 40, (4, 1)), r.integers(0, 5, (3,))
    close(exact(mx.gather_mm(a, b, mx.array(lhs), mx.array(rhs))), x[lhs] @ y[rhs], tolerance)
    close(exact(mx.gather_mm(a[::2], b[::-1], mx.array(lhs // 2), mx.array(rhs))), x[::2][lhs // 2] @ y[::-1][rhs],
          tolerance)


def test_gradients_and_batches_of_chosen_matrices():
    a, b, rhs = mx.array(f32(6, 2, 5)), mx.array(f32(3, 5, 4, seed=1)), mx.array([2, 0, 0, 1, 2, 2])
    gathered = lambda a, b: mx.gather_mm(a, b, None, rhs)                               # noqa: E731
    for got, want in zip(mx.grad(lambda a, b: gathered(a, b).square().sum(), (0, 1))(a, b),
                         mx.grad(lambda a, b: (a @ b[rhs]).square().sum(), (0, 1))(a, b)):
        close(got, np.array(want))
    many = mx.stack([a, 2 * a])
    close(mx.vmap(gathered, in_axes=(0, None))(many, b), np.array(many @ b[rhs]))
    close(mx.gather_mm(a[0, 0], b, None, rhs), np.array(a[0, 0] @ b[rhs]))
    with pytest.raises(ValueError, match="gather_mm"):
        mx.gather_mm(a, b, None, mx.array([0.5] * 6))
    with pytest.raises(ValueError, match="gather_mm"):
        mx.gather_mm(a, b.swapaxes(1, 2), None, rhs)


@pytest.mark.parametrize("n", [1, 2, 8, 12, 40, 56, 64])
def test_hadamard_is_orthogonal(n):
    h = np.array(mx.hadamard_transform(mx.eye(n)))
    np.testing.assert_allclose(h @ h.T, np.eye(n), atol=1e-5)
    np.testing.assert_allclose(np.abs(h), 1 / np.sqrt(n), rtol=1e-5)
    with pytest.raises(ValueError, match="hadamard"):
        mx.hadamard_transform(mx.zeros((2, 7)))


def convolution(x, w, stride, low, high, dilation, spread, groups, flip):
    """The definition, item by item."""
    n = x.ndim - 2
    wide = np.zeros([x.shape[0], *((s - 1) * d + 1 for s, d in zip(x.shape[1:-1], spread)), x.shape[-1]])
    wide[(slice(None), *(slice(None, None, d) for d in spread))] = x
    wide = np.pad(wide, [(0, 0), *((max(a, 0), max(b, 0)) for a, b in zip(low, high)), (0, 0)])
    wide = wide[(slice(None), *(slice(max(-a, 0), s + min(b, 0)) for a, b, s in zip(low, high, wide.shape[1:-1])))]
    if flip:
        w = np.flip(w, tuple(range(1, n + 1)))
    sizes = [(wide.shape[i + 1] - dilation[i] * (w.shape[i + 1] - 1) - 1) // stride[i] + 1 for i in range(n)]
    out = np.zeros([x.shape[0], *sizes, w.shape[0]])
    per, filters = x.shape[-1] // groups, w.shape[0] // groups
    for place in itertools.product(*map(range, sizes)):
        at = tuple(slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, d,
                   k in zip(place, stride, dilation, w.shape[1:-1]))
        window = wide[(slice(None), *at)]
        for g in range(groups):
            part = window[..., g * per:(g + 1) * per].reshape(x.shape[0], -1)
            out[(slice(None), *place, slice(g * filters,
                                            (g + 1) * filters))] = part @ w[g * filters:(g + 1) * filters].reshape(
                filters, -1).T
    return out


CASES = [dict(n=1), dict(n=1, groups=4, filters=4, low=2),
         dict(n=2, groups=4, filters=4, stride=2, low=1, high=2, spread=2),
         dict(n=3, groups=4, filters=8), dict(n=2, low=-1, high=-2),
         dict(n=2, spread=3, dilation=2, low=3, high=1, stride=2),
         dict(n=1, stride=2, low=1, high=1), dict(n=1, dilation=2, groups=2), dict(n=2),
         dict(n=2, stride=2, low=1, high=1),
         dict(n=2, low=2, high=0, spread=2, flip=True), dict(n=2, groups=2, dilation=2, low=1, high=2),
         dict(n=3, low=1, high=1)]


@pytest.mark.parametrize("case", CASES)
def test_convolution(case):
    n, groups, flip = case["n"], case.get("groups", 1), case.get("flip", False)
    stride, low, high, dilation, spread = ([case.get(k, d)] * n for k,
                                           d in (("stride", 1), ("low", 0), ("high", 0), ("dilation", 1),
                                                                           ("spread", 1)))
    x, w = f32(2, *[7, 6, 5][:n], 4), f32(case.get("filters", 6), *[3, 2, 3][:n], 4 // groups, seed=1)
    got = mx.conv_general(mx.array(x), mx.array(w), stride, (low, high), dilation, spread, groups, flip)
    close(got, convolution(x.astype("f8"), w.astype("f8"), stride, low, high, dilation, spread, groups, flip))


@pytest.mark.parametrize("n, stride, padding, dilation, output_padding",
                         [(1, 1, 0, 1, 0), (1, 2, 1, 1, 1), (2, 2, 1, 2, 0), (3, 2, 0, 1, 1)])
def test_transposed_convolution_is_the_adjoint(n, stride, padding, dilation, output_padding):
    """<conv(y), x> = <y, conv_transpose(x)> for weights with their channels exchanged."""
    conv, transposed = getattr(mx, f"conv{n}d"), getattr(mx, f"conv_transpose{n}d")
    x, w = mx.array(f32(2, *[4, 5, 3][:n], 3)), mx.array(f32(6, *[3, 2, 3][:n], 3, seed=1))
    out = transposed(x, w, stride, padding, dilation, output_padding)
    y = mx.array(f32(*out.shape, seed=2))
    back = conv(y, mx.swapaxes(w, 0, n + 1), stride, padding, dilation)
    assert back.shape == x.shape
    assert abs((back * x).sum().item() - (out * y).sum().item()) < 1e-3 * np.sqrt(y.size)


# More channels, taps and places than a tile, a panel or a chunk of the sum takes; in the image's edges and out of them.
@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float16", 2e-3), ("bfloat16", 1e-2),
                                              ("float64", 1e-13)])
@pytest.mark.parametrize("shape, filters, taps, groups",
                         [((2, 9, 13, 70), 35, (3, 3), 1), ((1, 6, 7, 96), 96, (3, 2), 96),
                                                          ((3, 5, 5, 40), 50, (1, 1), 1),
                                                          ((1, 20, 30, 3), 17, (5, 7), 1),
                                                          ((1, 4, 5, 66), 44, (3, 3), 2),
                                                          # tiles that go on from tap to tap where the image has them
                                                          ((2, 7, 41, 40), 70, (3, 3), 1),
                                                          ((1, 6, 33, 112), 64, (2, 3), 2),
                                                          # taps of a line by threes, and what is left of them
                                                          ((1, 7, 27, 64), 64, (2, 4), 64),
                                                          ((1, 9, 26, 64), 64, (2, 7), 64),
                                                          ((1, 8, 25, 96), 96, (2, 5), 96),
                                                          # groups of a few channels: 4 and 4, 2 and 4, 8 and 8, 1 and 2
                                                          ((2, 9, 21, 24), 24, (3, 3), 6),
                                                          ((1, 7, 19, 20), 40, (3, 2), 10),
                                                          ((1, 8, 23, 64), 64, (2, 3), 8),
                                                          ((1, 6, 30, 12), 24, (3, 3), 12)])
def test_larger_convolutions(shape, filters, taps, groups, dtype, tolerance):
    x = mx.array(f32(*shape)).astype(getattr(mx, dtype))
    w = mx.array(f32(filters, *taps, shape[-1] // groups, seed=1)).astype(getattr(mx, dtype))
    exact = [np.array(a.astype(mx.float64)) for a in (x, w)]
    for stride, pad, dilation in ((1, 1, 1), (2, 3, 1), (1, 4, 2)):
        if taps == (1, 1) and pad != 1:
            pad = 0
        got = mx.conv2d(x, w, stride, pad, dilation, groups)
        want = convolution(*exact, [stride] * 2, [pad] * 2, [pad] * 2, [dilation] * 2, [1, 1], groups, False)
        assert got.dtype == x.dtype
        close(got.astype(mx.float64), want, tolerance)
        turned = mx.contiguous(x.transpose(0, 3, 2, 1)).transpose(0, 3, 2,
                                                                  1)               # the same values, channels apart
        assert mx.array_equal(mx.conv2d(turned, w, stride, pad, dilation, groups), got).item()
        alone = mx.conv2d(x[-1:], w, stride, pad, dilation, groups)
        # a batch gives the bits of one
        assert mx.array_equal(alone, got[-1:]).item()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("channels, filters, taps, groups",
                         [(24, 40, (3, 3), 1), (70, 7, (3, 3), 1), (300, 5, (1, 2), 1), (40, 1, (1, 1), 1),
                          (130, 3, (1, 1), 1), (96, 12, (2, 3), 3), (64, 64, (5, 5), 64), (16, 32, (3, 4), 8)])
def test_a_convolution_of_a_view_has_the_bits_of_its_copy(channels, filters, taps, groups, dtype):
    """Whether channels, places or lines lie side by side decides how an image is read, not the order of adding."""
    x = mx.array(f32(2, 18, 34, 2 * channels)).astype(getattr(mx, dtype))
    w = mx.array(f32(filters, *taps, channels // groups, seed=1)).astype(getattr(mx, dtype))
    for view in (x[..., :channels], x[:, ::2, :, channels:], x[:, :, 1::2, :channels], x[:, ::-1, ::3, 1:channels + 1],
                 mx.broadcast_to(x[:1, :1, :, :channels], (2, 18, 34, channels)), x[..., ::2]):
        for stride, pad, dilation in ((1, 1, 1), (1, 0, 1), (2, 2, 2)):
            pad = 0 if taps == (1, 1) else pad
            got = mx.conv2d(view, w, stride, pad, dilation, groups)
            assert mx.array_equal(got, mx.conv2d(mx.contiguous(view), w, stride, pad, dilation, groups)).item()


@pytest.mark.parametrize("case", CASES)
def test_gradients_and_batches_of_convolutions(case):
    """The gradients are linear in the other operand and adjoint to it: <y, conv(x, w)> = <dx, x> = <dw, w>."""
    n, groups, flip = case["n"], case.get("groups", 1), case.get("flip", False)
    sizes = [[case.get(k, d)] * n for k, d in (("stride", 1), ("low", 0), ("high", 0), ("dilation", 1), ("spread", 1))]
    x, w = f32(2, *[7, 6, 5][:n], 4), f32(case.get("filters", 6), *[3, 2, 3][:n], 4 // groups, seed=1)
    conv = lambda x, w: mx.conv_general(x, w, sizes[0], (sizes[1], sizes[2]), sizes[3], sizes[4], groups,
                                        flip)  # noqa: E731
    x, w = mx.array(x), mx.array(w)
    y = mx.array(f32(*conv(x, w).shape, seed=2))
    value = (conv(x, w) * y).sum().item()
    dx, dw = mx.grad(lambda x, w: (conv(x, w) * y).sum(), (0, 1))(x, w)
    assert dx.shape == x.shape and dw.shape == w.shape
    for gradient, operand in ((dx, x), (dw, w)):
        assert abs((gradient * operand).sum().item() - value) < 2e-4 * (1 + abs(value))
    other_x, other_w = mx.array(f32(*x.shape, seed=3)), mx.array(f32(*w.shape, seed=4))
    assert abs((dx * other_x).sum().item() - (conv(other_x, w) * y).sum().item()) < 2e-3
    assert abs((dw * other_w).sum().item() - (conv(x, other_w) * y).sum().item()) < 2e-3
    xs, ws = mx.stack([x, other_x]), mx.stack([w, other_w])
    for axes, want in (((0, None), [conv(x, w), conv(other_x, w)]), ((None, 0), [conv(x, w), conv(x, other_w)]),
                       ((0, 0), [conv(x, w), conv(other_x, other_w)])):
        got = mx.vmap(conv, in_axes=axes)(xs if axes[0] == 0 else x, ws if axes[1] == 0 else w)
        close(got, np.stack([np.array(one) for one in want]))


@pytest.mark.parametrize("channels, filters", [(1, 1), (1, 2), (2, 2), (3, 4), (4, 4), (8, 8)])
def test_groups_meet_only_their_own_channels(channels, filters):
    """Each group alone, as a convolution of its own, gives what it gives among others, whatever lane it falls to."""
    groups = 24
    x, w = f32(1, 5, 37, groups * channels), f32(groups * filters, 3, 3, channels, seed=1)
    x[0, 2, 3, 5] = np.inf
    got = np.asarray(mx.conv2d(mx.array(x), mx.array(w), padding=1, groups=groups))
    assert np.isfinite(got[..., 5 // channels * filters + filters:]).all()
    for group in (0, 5, 23):
        alone = mx.conv2d(mx.array(x[..., group * channels:][..., :channels]),
                          mx.array(w[group * filters:][:filters]), padding=1)
        np.testing.assert_allclose(got[..., group * filters:][..., :filters], alone, rtol=1e-5, atol=1e-5)


def test_gradients_of_a_convolution():
    x, w = mx.array(f32(1, 5, 6, 2)), mx.array(f32(3, 3, 2, 2, seed=1))
    loss = lambda x, w: mx.conv2d(x, w, stride=(2, 1), padding=1).square().sum()    # noqa: E731
    for i, g in enumerate(mx.grad(loss, argnums=(0, 1))(x, w)):
        direction = mx.array(f32(*(x, w)[i].shape, seed=3))
        step = [0 * x, 0 * w]
        step[i] = direction * 1e-2
        slope = (loss(x + step[0], w + step[1]) - loss(x - step[0], w - step[1])).item() / 2e-2
        assert abs((g * direction).sum().item() - slope) < 2e-2 * max(1, abs(slope))


@pytest.mark.parametrize("groups", [1, 3])
def test_a_weight_without_taps(groups):
    out = mx.conv2d(mx.ones((1, 4, 4, 3)), mx.ones((3, 0, 2, 3 // groups)), groups=groups)
    assert out.shape == (1, 5, 3, 3) and not np.array(out).any()


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolve(mode):
    for a, v in ((7, 3), (3, 7), (8, 4), (1, 1)):
        x, y = f32(a), f32(v, seed=1)
        close(mx.convolve(mx.array(x), mx.array(y), mode), np.convolve(x, y, mode))


def test_refusals():
    x, w = mx.zeros((2, 8, 3)), mx.zeros((4, 3, 3))
    for wrong in (lambda: mx.conv1d(x, mx.zeros((4, 3, 2))), lambda: mx.conv1d(x, w, stride=0),
                  lambda: mx.conv1d(x, w, groups=2),
                  lambda: mx.conv1d(x, mx.zeros((4, 13, 3))), lambda: mx.conv2d(x, w),
                  lambda: mx.conv1d(x.astype(mx.int32), w)):
        with pytest.raises(ValueError, match="conv"):
            wrong()
    with pytest.raises(TypeError, match="conv2d"):
        mx.conv2d(mx.zeros((1, 5, 5, 2)), mx.zeros((2, 3, 3, 2)), stride=(1, 2, 3))


def test_vecdot_broadcasts_no_axis_that_it_sums():
    a = mx.array(f32(2, 3))
    for b, axis, error in ((mx.zeros((2, 1)), -1, ValueError), (mx.zeros((1, 3)), 0, ValueError),
                           (mx.zeros((3,)), -1, ValueError), (mx.zeros((4, 2, 3)), 1, ValueError),
                           (mx.zeros((2, 3)), 2, IndexError), (mx.zeros((5, 3)), -1, ValueError),
                           (mx.array(1.0), -1, ValueError)):
        with pytest.raises(error, match="vecdot"):
            mx.vecdot(a, b, axis=axis)
    with pytest.raises(ValueError, match="vecdot"):
        mx.vecdot(mx.array(1.0), mx.array(2.0))
    close(mx.vecdot(a, mx.array(f32(1, 3))), (f32(2, 3) * f32(1, 3)).sum(-1))
    z = (f32(3) + 1j * f32(3, seed=1)).astype("F")
    close(mx.vecdot(mx.array(z), mx.array(z)), np.vdot(z, z))


@pytest.mark.parametrize("subscripts", ["ii", "ii->i", "iij->j", "iji->j"])
def test_a_diagonal_is_of_a_square(subscripts):
    shape = [1 if c == "i" else 3 for c in subscripts.split("->")[0]]
    shape[[k for k, c in enumerate(subscripts) if c == "i"][1]] = 2
    with pytest.raises(ValueError, match="einsum"):
        mx.einsum(subscripts, mx.ones(shape))


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64", "float64"])
def test_factors_of_zero_take_operands_away(dtype):
    """As in BLAS: NaN and infinities are not looked at."""
    nan, dtype = float("nan"), getattr(mx, dtype)
    for shape in ((3, 5), (5,), (1,)):
        c, a, b = (mx.array(x).astype(dtype) for x in (np.full(shape, nan), np.ones((3, 4)), np.ones((4, 5))))
        for beta in (0, 0.0):
            got = mx.addmm(c, a, b, 0.5, beta)
            assert got.dtype == dtype and got.tolist() == [[2] * 5] * 3
        assert mx.addmm(mx.ones(shape).astype(dtype), a * nan, b, 0, 2).tolist() == [[2] * 5] * 3
    assert mx.addmm(mx.full((5,), nan), mx.ones((4,)), mx.ones((4, 5)), 1, 0).tolist() == [4] * 5
    gradients = mx.grad(lambda c, a: mx.addmm(c, a, mx.ones((4, 5)), 1, 0).sum(), argnums=(0, 1))(mx.full((5,), nan),
                                                                                                  mx.ones((3, 4)))
    assert gradients[0].tolist() == [0] * 5 and gradients[1].tolist() == [[5] * 4] * 3
    with pytest.raises(ValueError, match="addmm"):
        mx.addmm(mx.zeros((2, 5)), mx.ones((3, 4)), mx.ones((4, 5)), 1, 0)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolve_of_complex(mode):
    for n, m in ((7, 3), (3, 7), (1, 1), (33, 8)):
        x, y = ((f32(k, seed=s) + 1j * f32(k, seed=s + 5)).astype("F") for k, s in ((n, 1), (m, 2)))
        close(mx.convolve(mx.array(x), mx.array(y), mode=mode), np.convolve(x, y, mode).astype("F"))
        close(mx.convolve(mx.array(x), mx.array(y.real.copy()), mode=mode), np.convolve(x, y.real, mode).astype("F"))
        close(mx.convolve(mx.array(x.real.copy()), mx.array(y), mode=mode), np.convolve(x.real, y, mode).astype("F"))


@pytest.mark.parametrize("transposed", [False, True])
def test_the_arrays_say_how_many_axes_conv1d_has(transposed):
    name = "conv_transpose" if transposed else "conv"
    for n in (2, 3):
        x, w = mx.array(f32(1, *[5] * n, 4)), mx.array(f32(6, *[2] * n, 2, seed=1))
        for options in ({}, {"stride": 2, "padding": 1}):
            want = getattr(mx, f"{name}{n}d")(x, w, groups=2, **options)
            assert mx.array_equal(getattr(mx, f"{name}1d")(x, w, groups=2, **options), want).item()
    for x, w in ((mx.ones((1, 4, 4, 1)), mx.ones((1, 2, 1))), (mx.ones((1, 2)), mx.ones((1, 2))),
                 (mx.ones((1, 2, 2, 2, 2, 1)), mx.ones((1, 2, 2, 2, 2, 1)))):
        with pytest.raises(ValueError, match=f"{name}1d"):
            getattr(mx, f"{name}1d")(x, w)
    with pytest.raises(ValueError, match=f"{name}3d"):
        getattr(mx, f"{name}3d")(mx.ones((1, 4, 4, 1)), mx.ones((1, 2, 2, 1)))


def test_convolve_of_complex_numbers_that_are_not_finite():
    a, v = np.complex64([1 + 2j, complex(1, np.inf), 2, complex(0, 3e38)]), np.complex64([1 + 0j, 2, 10])
    with np.errstate(all="ignore"):
        want = np.convolve(a, v)
    found = np.asarray(mx.convolve(mx.array(a), mx.array(v)))
    np.testing.assert_array_equal(found.view(np.float32), want.view(np.float32))


def test_prod_of_complex_numbers_over_several_axes():
    random = np.random.default_rng(0)
    x = (random.standard_normal((3, 4, 5)) + 1j * random.standard_normal((3, 4, 5))).astype(np.complex64)
    for axes in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
        want = np.prod(x.astype(complex), axis=axes)
        np.testing.assert_allclose(np.asarray(mx.prod(mx.array(x), axis=axes)), want, rtol=2e-6)
