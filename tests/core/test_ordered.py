"""median and unique against NumPy."""
import numpy as np
import pytest

import gomlx.core as mx


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_median(axis, keepdims):
    x = np.random.default_rng(0).standard_normal((3, 4, 5)).astype("f4")
    got = np.array(mx.median(mx.array(x), axis, keepdims))
    np.testing.assert_allclose(got, np.median(x, axis, keepdims=keepdims), rtol=1e-6)


def test_median_of_ints_nans_and_nothing():
    assert mx.median(mx.array([3, 1, 2, 5])).item() == 2.5 and mx.median(mx.array([True, False])).item() == 0.5
    assert np.isnan(mx.median(mx.array([3.0, np.nan, 1.0])).item())
    with pytest.raises(ValueError, match="median"):
        mx.median(mx.zeros((0,)))


def test_median_of_complex_numbers():
    """In the order of sort: by real, then by imaginary part."""
    for values, want in (([1 + 5j, 2 + 1j, 3j], 1 + 5j), ([1 + 5j, 2 + 1j, 3j, 4], 1.5 + 3j), ([1, 1 + 1j, 1 - 1j], 1)):
        got = mx.median(mx.array(np.array(values, "F")))
        assert got.dtype == mx.complex64 and got.item() == want
    got = mx.median(mx.array(np.array([[complex(0, np.nan), 1, 2], [1, 2, 3j]], "F")), axis=1)
    assert np.isnan(got[0].item()) and got[1].item() == 1


@pytest.mark.parametrize("size", [0, 1, 3, 20])
def test_unique(size):
    x = np.random.default_rng(0).integers(0, 9, (4, 5)).astype("i4")
    values, index, inverse, counts = map(np.array, mx.unique(mx.array(x), size, True, True, True))
    want, want_index, want_inverse, want_counts = np.unique(x, True, True, True)
    n = min(size, want.size)
    assert values.shape == (size,) and np.array_equal(values[:n], want[:n]) and np.array_equal(index[:n],
                                                                                               want_index[:n])
    assert np.array_equal(counts[:n], want_counts[:n]) and not counts[n:].any()
    assert (values[n:] == want[0]).all()
    if size >= want.size:
        assert np.array_equal(inverse, want_inverse.reshape(x.shape))


def test_unique_fills_and_refuses():
    assert mx.unique(mx.array([2, 1, 2]), 4, fill_value=7).tolist() == [1, 2, 7, 7]
    assert mx.unique(mx.array([], mx.int32), 2, fill_value=3).tolist() == [3, 3]
    with pytest.raises(ValueError, match="unique"):
        mx.unique(mx.array([], mx.int32), 2)
    with pytest.raises(ValueError, match="unique"):
        mx.unique(mx.array([1]), -1)
