"""What tests of operations share: arrays of every dtype beside what NumPy has, and comparison within the dtype's
precision."""
import numpy as np

import gomlx.core as mx

SIZES = [1, 7, 8, 17, 33, 1000]
FLOATS = ["float32", "float16", "bfloat16"]
INTS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
RTOL = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-14, "complex64": 4e-6}
ATOL = {"float32": 1e-6, "float16": 1e-4, "bfloat16": 1e-4, "float64": 1e-300, "complex64": 4e-6}
ALL_DTYPES = ["bool", *INTS, *FLOATS, "float64", "complex64"]


def dtype_of(name, module=mx):
    return getattr(module, "bool_" if name == "bool" else name)


def make(values, dtype):
    """An array of the dtype and what it holds, exactly, as NumPy sees it."""
    a = mx.array(np.asarray(values)).astype(dtype_of(dtype))
    return a, values_of(a)


def values_of(a):
    a = a.astype(mx.float32) if a.dtype in (mx.bfloat16, mx.float16) else a
    n = np.array(a)
    return n.astype(np.complex128 if n.dtype.kind == "c" else np.float64) if n.dtype.kind in "fc" else n


def name_of(dtype):
    return str(dtype).rpartition(".")[2]


def check(got, want, dtype):
    """got has the dtype and, within its precision, the values want."""
    assert name_of(got.dtype) == dtype
    assert got.shape == np.shape(want)
    got, want = values_of(got), np.asarray(want)
    if dtype in RTOL:
        if dtype in ("float16", "bfloat16"):       # what overflows there is infinite
            want = values_of(mx.array(want.astype(np.float32)).astype(dtype_of(dtype)))
        np.testing.assert_allclose(got, want, rtol=RTOL[dtype], atol=ATOL[dtype])
    else:
        np.testing.assert_array_equal(got, want.astype(got.dtype))
