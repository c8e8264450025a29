"""What tests of function transforms share: scalars, comparison, and how often a function is traced."""
from collections import namedtuple

import numpy as np

import gomlx.core as mx

Pair = namedtuple("Pair", "x y")


def scalar(value):
    return mx.array(float(value))


def close(got, want, rtol=1e-5):
    np.testing.assert_allclose(np.asarray(got), want, rtol=rtol, atol=1e-6)


def counted(fun):
    """(fun, the list of its calls): how often a compiled function is traced."""
    calls = []

    def wrapped(*args, **kwargs):
        calls.append(1)
        return fun(*args, **kwargs)
    return wrapped, calls
