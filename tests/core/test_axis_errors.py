"""An axis that an array does not have is one error everywhere: an IndexError and a ValueError, as in NumPy, for
programs of all versions of MLX expect the one or the other."""
import numpy as np
import pytest

import gomlx
import gomlx.core as mx

A, INDEX = mx.ones((2, 3)), mx.zeros((2, 3), mx.int32)
BY_AXIS = ("sum", "prod", "max", "min", "mean", "var", "std", "all", "any", "logsumexp", "argmax", "argmin", "cumsum",
           "cumprod", "cummax", "cummin", "logcumsumexp", "sort", "argsort", "squeeze", "flip", "softmax", "median",
           "count_nonzero", "unstack", "diff", "expand_dims")
CALLS = {
    **{name: lambda name=name, axis=5: getattr(mx, name)(A, axis=axis) for name in BY_AXIS},
    **{f"{name}, from the end": lambda name=name: CALLS[name](axis=-5) for name in BY_AXIS},
    "roll": lambda: mx.roll(A, 1, axis=5), "split": lambda: mx.split(A, 1, axis=5),
    "concatenate": lambda: mx.concatenate([A, A], axis=5), "stack": lambda: mx.stack([A, A], axis=5),
    "repeat": lambda: mx.repeat(A, 2, axis=5), "partition": lambda: mx.partition(A, 1, axis=5),
    "argpartition": lambda: mx.argpartition(A, 1, axis=5), "topk": lambda: mx.topk(A, 1, axis=5),
    "take": lambda: mx.take(A, INDEX, axis=5), "take_along_axis": lambda: mx.take_along_axis(A, INDEX, axis=5),
    "put_along_axis": lambda: mx.put_along_axis(A, INDEX, A, axis=5), "vecdot": lambda: mx.vecdot(A, A, axis=5),
    "moveaxis, source": lambda: mx.moveaxis(A, 5, 0), "moveaxis, destination": lambda: mx.moveaxis(A, 0, 5),
    "swapaxes": lambda: mx.swapaxes(A, 0, 5), "diagonal": lambda: mx.diagonal(A, 0, 0, 5),
    "trace": lambda: mx.trace(A, 0, 0, 5), "transpose": lambda: mx.transpose(A, (0, 5)),
    "unflatten": lambda: mx.unflatten(A, 5, (1, 2)), "tensordot": lambda: mx.tensordot(A, A, axes=([5], [0])),
    "fft": lambda: mx.fft.fft(A, axis=5), "fftn": lambda: mx.fft.fftn(A, axes=[5]),
    "fftshift": lambda: mx.fft.fftshift(A, axes=5), "ifftshift": lambda: mx.fft.ifftshift(A, axes=[5]),
    "cross": lambda: mx.linalg.cross(A, A, axis=5), "norm": lambda: mx.linalg.norm(A, axis=(0, 5)),
    "permutation": lambda: mx.random.permutation(A, axis=5), "categorical": lambda: mx.random.categorical(A, axis=5),
    "slice": lambda: mx.slice(A, mx.array([0]), [5], [1, 1]),
    "slice_update": lambda: mx.slice_update(A, A, mx.array([0]), [5]),
    "vmap, in": lambda: mx.vmap(lambda x: x, in_axes=5)(A), "vmap, out": lambda: mx.vmap(lambda x: x, out_axes=5)(A),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_axis_out_of_range_is_one_error(name):
    with pytest.raises(gomlx.AxisError, match=r"\b-?5\b.*\b[23] dimensions"):
        CALLS[name]()


def test_it_is_caught_as_either():
    for kind in (IndexError, ValueError):
        with pytest.raises(kind):
            mx.sum(A, axis=2)
    with pytest.raises(gomlx.AxisError, match="0 dimensions"):
        mx.vmap(lambda x: x)(mx.array(1.0))


@pytest.mark.parametrize("wrong", [set(), {0}, {}, {0: 1}, iter([0]), (i for i in [0]), "", b"", {0: 1}.keys()])
def test_what_is_no_sequence_is_neither_axis_nor_shape(wrong):
    x = mx.ones((2, 3))
    for call in (lambda: mx.sum(x, axis=wrong), lambda: mx.zeros(wrong), lambda: x.reshape(wrong),
                 lambda: mx.transpose(x, wrong), lambda: mx.roll(x, 1, axis=wrong)):
        with pytest.raises(TypeError):
            call()


def test_any_sequence_is_axis_and_shape():
    assert mx.zeros(range(2, 4)).shape == mx.zeros(mx.array([2, 3])).shape == mx.zeros(np.array([2, 3])).shape == (2, 3)
    assert mx.zeros([]).shape == ()
    for axis in (np.array([0]), np.array(0), np.int64(0), mx.array([0]), mx.array(0)):
        assert mx.ones((2, 3)).sum(axis=axis).tolist() == [2, 2, 2]
