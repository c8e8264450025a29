"""What several tests make arrays of, and how they compare them."""
import numpy as np

import gomlx.core as mx

NUMPY_DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32",
                "float64", "complex64"]


def named(name):
    """The dtype of this name."""
    return getattr(mx, "bool_" if name == "bool" else name)


def name_of(dtype):
    return str(dtype).rpartition(".")[2]


def f32(*shape, seed=0):
    """Normal samples."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(got, want, tol=1e-5):
    np.testing.assert_allclose(np.array(got), want, rtol=tol, atol=tol)


def check_vmap(function):
    """vmap of a function of a matrix is the stack of what it gives for each, along the first axis or the second."""
    x = mx.array(np.random.default_rng(4).uniform(0.3, 2.0, (5, 3, 4)).astype(np.float32))
    want = np.stack([np.array(function(x[i])) for i in range(5)])
    np.testing.assert_array_equal(np.array(mx.vmap(function)(x)), want)
    np.testing.assert_array_equal(np.array(mx.vmap(function, in_axes=1)(mx.moveaxis(x, 0, 1))), want)
