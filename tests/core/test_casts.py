"""Floats to integers: the same on every machine and under every instruction set."""
import numpy as np
import pytest

import gomlx.core as mx

pytestmark = pytest.mark.isa

INTEGERS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
WILD = [0.0, -0.0, 0.9, -0.9, 1.5, -1.5, 127.5, -129.0, 255.0, 300.0, -300.0, 65504.0, 7e4, -7e4, 2.0**31 - 128,
        2.0**31, 3e9, -2.0**31, -2.0**31 - 256, -3e9, 5e9, -5e9, 2.0**53, 2.0**63 - 2.0**39, 2.0**63, 1e19, -1e19,
        2.0**64, 1e30, -1e30, np.inf, -np.inf, np.nan]


def converted(x, name):
    """What x86 makes of a float, and NumPy there: towards zero where the dtype can hold it; else the least int32 or
    int64; 8 and 16 bits are cut from int32, uint32 from int64; uint64 is 0 from 2**64 on, else that int64's bits."""
    bits = np.iinfo(name).bits
    via = 64 if bits == 64 or name == "uint32" else 32
    whole = int(x) if np.isfinite(x) else None
    if name == "uint64" and not np.isnan(x) and x >= 2.0**63:
        value = whole if x < 2.0**64 else 0
    else:
        value = whole if whole is not None and -2**(via - 1) <= whole < 2**(via - 1) else -2**(via - 1)
    value %= 1 << bits
    return value - (1 << bits) if name.startswith("int") and value >> bits - 1 else value


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_floats_become_integers_as_on_x86(source, name):
    floats = mx.array(np.array(WILD * 40 + WILD[::-1]), mx.float64).astype(getattr(mx, source))
    values = (mx.real(floats) if source == "complex64" else floats).astype(mx.float64).tolist()
    want = [converted(x, name) for x in values]
    assert floats.astype(getattr(mx, name)).tolist() == want
    assert floats[::3].astype(getattr(mx, name)).tolist() == want[::3]
    fused = mx.compile(lambda x: (x + 0).astype(getattr(mx, name)))
    assert fused(floats).tolist() == want


@pytest.mark.parametrize("name", INTEGERS)
def test_numbers_become_integers_as_arrays_do(name):
    for x in (np.nan, np.inf, 5e9, -5e9, 1e19, 300.7, -1.5):
        assert mx.array(x, getattr(mx, name)).item() == converted(x, name)
        assert mx.array([x], getattr(mx, name)).item() == converted(float(np.float32(x)), name)
