"""Convolutions whose taps reach out of the image: what is there is passed over where weights are finite, which must not
show, against images that are padded beforehand, torch, and themselves in other batches and on other threads."""
import numpy as np
import pytest

import gomlx.core as mx
from gomlx import _gomlx

pytestmark = pytest.mark.isa

# image, filters, taps, stride, padding, dilation, groups: tiles of a line, tiles over several lines, read where they
# are or copied; pieces that begin within a chain; whole panels and parts of them; taps that nothing meets
CASES = [((1, 14, 14, 64), 40, (3, 3), 1, 1, 1, 1), ((2, 7, 56, 48), 33, (3, 3), 1, 1, 1, 1),
         ((3, 7, 7, 130), 20, (3, 3), 1, 1, 1, 1), ((1, 9, 29, 20), 64, (5, 3), 2, 2, 1, 1),
         ((1, 15, 13, 36), 34, (3, 3), 1, 4, 3, 1), ((2, 28, 9, 96), 64, (3, 2), 1, 1, 1, 2),
         ((1, 3, 70, 16), 3, (7, 7), 1, 3, 1, 1), ((1, 2, 90, 24), 12, (3, 3), 1, 5, 1, 1)]
DTYPES = ["float32", "float16", "bfloat16", "float64"]


def values(shape, dtype="float32", seed=0):
    a = np.random.default_rng([seed, *shape]).standard_normal(shape).astype("f4")
    return mx.array(a).astype(getattr(mx, dtype))


def operands(case, dtype="float32"):
    shape, filters, taps, _, _, _, groups = case
    return values(shape, dtype), values((filters, *taps, shape[-1] // groups), dtype, seed=1)


def padded_before(x, w, case):
    """All taps of all places meet an item: none is passed over."""
    _, _, _, stride, padding, dilation, groups = case
    around = [(0, 0), (padding, padding), (padding, padding), (0, 0)]
    return mx.conv2d(mx.pad(x, around), w, stride, 0, dilation, groups)


def bits(a):
    return np.array(a.view({2: mx.uint16, 4: mx.uint32, 8: mx.uint64}[a.itemsize]))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_padding_gives_what_zeros_give(case, dtype):
    x, w = operands(case, dtype)
    got = mx.conv2d(x, w, *case[3:])
    assert mx.array_equal(got, padded_before(x, w, case)).item()
    assert np.array_equal(bits(mx.conv2d(x[-1:], w, *case[3:])), bits(got)[-1:])
    for image in range(x.shape[0]):
        _gomlx.set_threads(image % 2 + 1)
        assert np.array_equal(bits(mx.conv2d(x, w, *case[3:])), bits(got))
    _gomlx.set_threads(_gomlx.default_threads())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("case", [case for case in CASES if case[-1] == 1])
def test_weights_that_are_not_finite_meet_the_padding(case, bad, dtype):
    """In any place: of the first panel or the last, the first tap or the last."""
    x, w = operands(case, dtype)
    last = tuple(n - 1 for n in w.shape)
    for place in ((0, 0, 0, 0), last, (w.shape[0] - 1, 0, w.shape[2] - 1, 5)):
        spoiled = np.array(w.astype(mx.float64))
        spoiled[place] = bad
        spoiled = mx.array(spoiled).astype(w.dtype)
        got, want = mx.conv2d(x, spoiled, *case[3:]), padded_before(x, spoiled, case)
        assert mx.array_equal(got, want, equal_nan=True).item()
        spoilt = mx.isnan(got).sum().item()
        assert spoilt == got.size // got.shape[-1] if np.isnan(bad) else spoilt > 0         # one filter, everywhere


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_images_that_are_not_finite_spoil_what_meets_them(case, dtype):
    x, w = operands(case, dtype)
    spoiled = np.array(x.astype(mx.float64))
    spoiled[0, 0, 0, 3] = spoiled[-1, -1, -1, 0] = np.nan
    spoiled[0, -1, 0, 1] = np.inf
    spoiled = mx.array(spoiled).astype(x.dtype)
    got = mx.conv2d(spoiled, w, *case[3:])
    assert mx.array_equal(got, padded_before(spoiled, w, case), equal_nan=True).item()
    assert 0 < mx.isfinite(got).sum().item() < got.size


@pytest.mark.parametrize("case", CASES)
def test_sums_that_underflow_have_one_zero(case):
    """A product too small for float32 leaves -0, to which a zero from beyond the edge would add +0: one image, whose
    weights are not looked at, has the bits of many all the same."""
    x, w = operands(case)
    x, w = mx.abs(x) * 1e-30, -mx.abs(w) * 1e-30
    many = mx.conv2d(mx.concatenate([x] * 5), w, *case[3:])
    assert (bits(many) == 0).all()
    assert (bits(mx.conv2d(x[:1, :3], w, *case[3:])) == 0).all()


@pytest.mark.parametrize("stride, padding, dilation", [(2, 0, 1), (2, 1, 1), (3, 2, 1), (1, 1, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_places_between_items_give_what_zeros_give(stride, padding, dilation, dtype):
    """A transposed convolution spreads its input: most taps meet nothing."""
    x, w = values((2, 9, 8, 32), dtype), values((40, 3, 3, 32), dtype, seed=1)
    wide = np.zeros((2, 8 * stride + 1, 7 * stride + 1, 32))
    wide[:, ::stride, ::stride] = np.array(x.astype(mx.float64))
    around = 2 * dilation - padding
    wide = np.pad(wide, [(0, 0), (around, around), (around, around), (0, 0)])
    want = mx.conv2d(mx.array(wide).astype(x.dtype), mx.contiguous(w[:, ::-1, ::-1]), 1, 0, dilation)
    assert mx.array_equal(mx.conv_transpose2d(x, w, stride, padding, dilation), want).item()


@pytest.mark.parametrize("case", CASES)
def test_beside_torch(case):
    torch = pytest.importorskip("torch")
    x, w = operands(case)
    first = [torch.from_numpy(np.array(a, dtype=np.float64)).permute(0, 3, 1, 2) for a in (x, w)]
    want = torch.nn.functional.conv2d(*first, None, *case[3:]).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(np.array(mx.conv2d(x, w, *case[3:])), want, rtol=1e-5, atol=1e-4)
