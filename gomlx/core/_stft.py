"""Short-time Fourier transforms: frames of a signal, windowed and transformed, and back."""
from __future__ import annotations

from typing import TYPE_CHECKING

from gomlx import _gomlx
from gomlx._gomlx import array

if TYPE_CHECKING:
    from gomlx._gomlx import StreamOrDevice

__all__ = ["istft", "stft"]


def _sizes(name, n_fft, hop_length, win_length, window):
    hop = n_fft // 4 if hop_length is None else hop_length
    given = window.shape[0] if isinstance(window, array) and window.ndim == 1 else n_fft
    width = given if win_length is None else win_length
    if n_fft < 1 or hop < 1 or not 1 <= width <= n_fft:
        raise ValueError(f"{name}: n_fft {n_fft}, hop_length {hop} and win_length {width}; expected positive numbers "
                         f"and a "
                         "window that is not longer than the transform")
    if window is None:
        window = _gomlx.ones([width])
    elif not isinstance(window, array) or window.shape != (width,):
        raise ValueError(f"{name}: the window must be an array of shape ({width},)")
    left = (n_fft - width) // 2
    return hop, _gomlx.pad(window, (left, n_fft - width - left))


def stft(x: array, n_fft: int = 2048, hop_length: int | None = None, win_length: int | None = None,
         window: array | None = None, center: bool = True, pad_mode: str = "reflect", norm: str = "backward",
         onesided: bool | None = None, stream: StreamOrDevice = None) -> array:
    """The Fourier transforms of overlapping frames of the last axis: complex64 [..., n_freq, n_frames]. Frames are
    n_fft long and hop_length (n_fft // 4) apart, times a window of win_length (n_fft) centred in them; with center both
    ends are padded by pad_mode ('reflect', 'constant', 'edge') so that frame i is centred at i * hop_length. onesided:
    only the frequencies that are not negative, for real input unless said otherwise."""
    if not isinstance(x, array) or x.ndim < 1:
        raise ValueError("stft: an array of at least one dimension is needed")
    hop, window = _sizes("stft", n_fft, hop_length, win_length, window)
    is_complex = x.dtype == _gomlx.complex64
    onesided = not is_complex if onesided is None else onesided
    if onesided and is_complex:
        raise ValueError("stft: complex input has all frequencies; onesided must be False")
    if pad_mode not in ("reflect", "constant", "edge"):
        raise ValueError(f"stft: pad_mode {pad_mode!r}, expected 'reflect', 'constant' or 'edge'")
    if center:
        x = _gomlx.pad(x, [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)], mode=pad_mode)
    if x.shape[-1] < n_fft:
        raise ValueError(f"stft: {x.shape[-1]} samples, but a frame has {n_fft}")
    frames = 1 + (x.shape[-1] - n_fft) // hop
    flat = _gomlx.contiguous(x).reshape([-1, x.shape[-1]])
    cut = _gomlx.as_strided(flat, [flat.shape[0], frames, n_fft], [flat.shape[1], hop, 1]) * window
    out = (_gomlx.fft.rfft if onesided else _gomlx.fft.fft)(cut, norm=norm)
    return out.swapaxes(1, 2).reshape([*x.shape[:-1], out.shape[-1], frames])


def istft(stft_matrix: array, n_fft: int | None = None, hop_length: int | None = None, win_length: int | None = None,
          window: array | None = None, center: bool = True, norm: str = "backward", onesided: bool | None = None,
          length: int | None = None, stream: StreamOrDevice = None) -> array:
    """The signal whose stft is given: frames transformed back, windowed, added where they overlap, and divided by the
    sum of the squared windows. n_fft is inferred from the number of frequencies (an even one); length cuts or pads the
    result."""
    if not isinstance(stft_matrix, array) or stft_matrix.ndim < 2:
        raise ValueError("istft: an array of at least two dimensions [..., n_freq, n_frames] is needed")
    onesided = True if onesided is None else onesided
    n_freq, frames = stft_matrix.shape[-2:]
    n_fft = (2 * (n_freq - 1) if onesided else n_freq) if n_fft is None else n_fft
    if n_freq != (n_fft // 2 + 1 if onesided else n_fft):
        raise ValueError(f"istft: {n_freq} frequencies do not fit a transform of {n_fft}")
    hop, window = _sizes("istft", n_fft, hop_length, win_length, window)
    lead = stft_matrix.shape[:-2]
    spectra = stft_matrix.reshape([-1, n_freq, frames]).swapaxes(1, 2)
    cut = _gomlx.fft.irfft(spectra, n=n_fft, norm=norm) if onesided else _gomlx.fft.ifft(spectra, norm=norm).real
    cut = cut * window
    total = n_fft + hop * (frames - 1)
    index = (_gomlx.arange(frames).reshape([-1, 1]) * hop + _gomlx.arange(n_fft)).reshape([-1])
    weight = _gomlx.zeros([total]).at[index].add(_gomlx.broadcast_to(window * window, [frames, n_fft]).reshape([-1]))
    flat = cut.reshape([cut.shape[0], -1]).swapaxes(0, 1)
    signal = _gomlx.zeros([total, cut.shape[0]], cut.dtype).at[index].add(flat).swapaxes(0, 1)
    signal = signal / _gomlx.where(weight > 1e-11, weight, 1.0)
    if center:
        signal = signal[:, n_fft // 2:]
        signal = signal if length is not None else signal[:, :max(total - 2 * (n_fft // 2), 0)]
    if length is not None:
        missing = max(0, length - signal.shape[1])
        signal = _gomlx.pad(signal[:, :length], [(0, 0), (0, missing)])
    return signal.reshape([*lead, signal.shape[1]])
