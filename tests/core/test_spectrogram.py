"""fft.stft against frames transformed by NumPy; istft as its inverse."""
import numpy as np
import pytest

import gomlx.core as mx

SIGNAL = np.random.default_rng(0).standard_normal((2, 300)).astype("f4")
WINDOW = np.hanning(66)[1:-1].astype("f4")


@pytest.mark.parametrize("n_fft, hop, center", [(64, 16, True), (64, 10, False), (63, 21, True)])
def test_stft_is_the_transform_of_each_frame(n_fft, hop, center):
    window = WINDOW[:n_fft]
    x = np.pad(SIGNAL, [(0, 0), (n_fft // 2, n_fft // 2)], mode="reflect") if center else SIGNAL
    starts = range(0, x.shape[1] - n_fft + 1, hop)
    want = np.stack([np.fft.rfft(x[:, i:i + n_fft] * window) for i in starts], -1)
    got = np.array(mx.fft.stft(mx.array(SIGNAL), n_fft, hop, window=mx.array(window), center=center))
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=2e-5)


@pytest.mark.parametrize("n_fft, hop, onesided", [(64, 16, True), (63, 16, True), (64, 32, False)])
def test_istft_gives_the_signal_back(n_fft, hop, onesided):
    spectra = mx.fft.stft(mx.array(SIGNAL), n_fft, hop, onesided=onesided)
    back = np.array(mx.fft.istft(spectra, n_fft, hop, onesided=onesided, length=300))
    np.testing.assert_allclose(back[:, :280], SIGNAL[:, :280], atol=2e-5)


def test_refusals():
    x = mx.array(SIGNAL)
    for wrong in (lambda: mx.fft.stft(x, 640, center=False), lambda: mx.fft.stft(x, 64, 0),
                  lambda: mx.fft.stft(x, 64, win_length=65),
                  lambda: mx.fft.stft(x, 64, pad_mode="wrap"), lambda: mx.fft.istft(x, 64)):
        with pytest.raises(ValueError, match="stft"):
            wrong()
