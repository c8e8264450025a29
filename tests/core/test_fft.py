"""Fourier transforms against NumPy: every kind of length, axes, cutting and filling up, norms, gradients, batching."""
import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

LENGTHS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 15, 16, 17, 19, 30, 31, 49, 64, 97, 100, 121, 127, 128, 169, 210, 243,
           251, 256, 360, 511, 512, 1000, 1009, 1024, 1025, 2048, 2187, 3000, 4099, 8192]
NORMS = ["backward", "ortho", "forward"]


def values(*shape, dtype="float32", seed=0):
    r = np.random.default_rng(seed + sum(shape))
    a = r.standard_normal(shape)
    return (a + 1j * r.standard_normal(shape) if dtype == "complex64" else a).astype(dtype)


def near(got, want, dtype=None):
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape and got.dtype == (dtype or ("float32" if want.dtype.kind == "f" else "complex64"))
    # Sums are in float64: what is left is the rounding of the result.
    np.testing.assert_allclose(got, want, atol=3e-7 * max(1e-30, float(np.abs(want).max())), rtol=0)


@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n):
    real, z = values(2, n), values(2, n, dtype="complex64")
    wide = z.astype("complex128")
    near(mx.fft.fft(mx.array(z)), np.fft.fft(wide))
    near(mx.fft.ifft(mx.array(z)), np.fft.ifft(wide))
    near(mx.fft.rfft(mx.array(real)), np.fft.rfft(real.astype("float64")))
    half = np.fft.rfft(real.astype("float64"))
    half = half.astype("complex64")
    near(mx.fft.irfft(mx.array(half), n=n), np.fft.irfft(half.astype("complex128"), n))
    near(mx.fft.irfft(mx.array(z), n=n), np.fft.irfft(wide, n))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_axes_and_sizes(name, norm):
    a = values(4, 6, 10, dtype="float32" if name == "rfft" else "complex64")
    wide = a.astype("float64" if name == "rfft" else "complex128")
    for axis in (0, 1, 2, -1, -3):
        for n in (None, 1, 3, 7, 12):
            near(getattr(mx.fft, name)(mx.array(a), n, axis, norm), getattr(np.fft, name)(wide, n, axis, norm))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_several_axes(name, norm):
    a = values(4, 6, 10, dtype="float32" if name == "rfft" else "complex64")
    wide = a.astype("float64" if name == "rfft" else "complex128")
    for axes in (None, (0,), (1, 2), (2, 0), (-1, -2, 0)):
        near(getattr(mx.fft, name + "n")(mx.array(a), axes=axes, norm=norm),
             getattr(np.fft, name + "n")(wide, axes=axes, norm=norm))
    for s, axes in (((3, 12), (0, 1)), ((8, 4), (2, 1))):
        near(getattr(mx.fft, name + "n")(mx.array(a), s, axes, norm), getattr(np.fft, name + "n")(wide, s, axes, norm))
        near(getattr(mx.fft, name + "2")(mx.array(a), s, axes, norm), getattr(np.fft, name + "2")(wide, s, axes, norm))
    near(getattr(mx.fft, name + "2")(mx.array(a)), getattr(np.fft, name + "2")(wide))


def test_dtypes():
    for dtype in ("float16", "int32", "uint8", "bool", "float64"):
        a = (values(9) * 5).astype(dtype)
        near(mx.fft.fft(mx.array(a)), np.fft.fft(a.astype("float32").astype("float64")))
        assert mx.fft.rfft(mx.array(a)).dtype == mx.complex64 and mx.fft.irfft(mx.array(a)).dtype == mx.float32
    a = values(3, 4)
    assert mx.fft.fftn(mx.array(a), axes=[]).dtype == mx.float32
    near(mx.fft.rfft(mx.array(values(8, dtype="complex64"))), np.fft.rfft(values(8, dtype="complex64").real))


def test_empty_batches():
    a = mx.array(np.zeros((0, 4), "f4"))
    assert mx.fft.fft(a).shape == (0, 4) and mx.fft.rfft(a).shape == (0, 3)


def test_errors():
    a = mx.array(values(4, 6))
    for call in (lambda: mx.fft.fft(a, n=0), lambda: mx.fft.fft(a, n=-1), lambda: mx.fft.fft(a, norm="x"),
                 lambda: mx.fft.fft2(a, s=[3]), lambda: mx.fft.fftn(a, axes=[0, 0]), lambda: mx.fft.fftn(a, s=[3, 4]),
                 lambda: mx.fft.fftn(a, s=[3, 4], axes=[0]), lambda: mx.fft.irfft(a[:, :1]),
                 lambda: mx.fft.fftn(mx.array(1.0)), lambda: mx.fft.fft(mx.array([])), lambda: mx.fft.fftfreq(0),
                 lambda: mx.fft.rfftfreq(-1), lambda: mx.fft.fftfreq(5, 0)):
        with pytest.raises(ValueError):
            call()
    for call in (lambda: mx.fft.fft(a, axis=2), lambda: mx.fft.fft(a, axis=-3), lambda: mx.fft.fft(mx.array(1.0)),
                 lambda: mx.fft.fft2(mx.array([1.0])), lambda: mx.fft.fftshift(a, axes=[5])):
        with pytest.raises(IndexError):
            call()


@pytest.mark.parametrize("n", [1, 2, 5, 6, 33])
def test_frequencies_and_shifts(n):
    for d in (1.0, 0.1, 2.5):
        near(mx.fft.fftfreq(n, d), np.fft.fftfreq(n, d).astype("f4"))
        near(mx.fft.rfftfreq(n, d), np.fft.rfftfreq(n, d).astype("f4"))
    a = values(n, 4, 3)
    for axes in (None, 0, [1], [0, 2], []):
        for name in ("fftshift", "ifftshift"):
            np.testing.assert_array_equal(np.asarray(getattr(mx.fft, name)(mx.array(a), axes)),
                                          getattr(np.fft, name)(a, axes) if axes != [] else a)


def test_views_are_read_as_they_are():
    a = values(6, 8, 10)
    x = mx.transpose(mx.array(a), (2, 0, 1))[::2, 1:, ::-1]
    near(mx.fft.fft(x), np.fft.fft(np.transpose(a, (2, 0, 1))[::2, 1:, ::-1].astype("float64")))


REAL = {
    "fft": lambda x: mx.fft.fft(x), "ifft": lambda x: mx.fft.ifft(x), "rfft": lambda x: mx.fft.rfft(x),
    "irfft": lambda x: mx.fft.irfft(x), "irfft odd": lambda x: mx.fft.irfft(x, n=9),
    "rfft cut": lambda x: mx.fft.rfft(x, n=5),
    "rfft longer": lambda x: mx.fft.rfft(x, n=11), "fft cut": lambda x: mx.fft.fft(x, n=3),
    "irfft cut": lambda x: mx.fft.irfft(x, n=5),
    "fft longer": lambda x: mx.fft.fft(x, n=13, norm="ortho"), "fft along": lambda x: mx.fft.fft(x, axis=0),
    "rfftn": lambda x: mx.fft.rfftn(x), "irfftn": lambda x: mx.fft.irfftn(x),
    "fft2": lambda x: mx.fft.fft2(x, norm="forward"),
}


@pytest.mark.parametrize("name", REAL)
def test_gradients(name):
    """Linear in x: the gradient of a weighted sum is the same sum over what each unit vector gives."""
    f, x = REAL[name], values(3, 6)
    y = f(mx.array(x))
    weights = [mx.array(values(*y.shape, seed=k)) for k in (1, 2)]

    def value(x):
        y = f(x)
        total = mx.sum(mx.real(y) * weights[0])
        return total + mx.sum(mx.imag(y) * weights[1]) if y.dtype == mx.complex64 else total

    got = np.asarray(mx.grad(value)(mx.array(x)))
    want = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        unit = np.zeros_like(x)
        unit[i] = 1
        want[i] = value(mx.array(unit)).item()
    np.testing.assert_allclose(got, want, atol=1e-5 * max(1, np.abs(want).max()))


def test_vmap():
    a = values(5, 4, 6)
    for f in (mx.fft.fft, mx.fft.rfft, lambda x: mx.fft.irfft(x, axis=0), mx.fft.fft2):
        want = np.stack([np.asarray(f(mx.array(x))) for x in a])
        np.testing.assert_array_equal(np.asarray(mx.vmap(f)(mx.array(a))), want)
        np.testing.assert_array_equal(np.asarray(mx.vmap(f, in_axes=2)(mx.array(np.moveaxis(a, 0, 2)))), want)
