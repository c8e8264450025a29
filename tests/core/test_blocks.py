"""fast.quantize_blocks and dequantize_blocks: GGUF's block formats against PyPI gguf; how well the fitted ones fit."""
import os
import subprocess
import sys

import checkpoints
import gguf
import numpy as np
import pytest

import gomlx.core as mx
from gomlx import _gomlx

pytestmark = pytest.mark.isa

EXACT = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"]     # rounded by a rule that every program has
FITTED = {"Q2_K": 0.274, "Q3_K": 0.149, "Q4_K": 0.0735, "Q5_K": 0.0365, "Q6_K": 0.0176, "IQ4_NL": 0.0775,
          "IQ4_XS": 0.0765}                          # relative error of normal values, a little above ours
FORMATS = [*EXACT, *FITTED]
READ = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "Q8_K"]    # not written


def values(rows=64, columns=512, seed=0):
    x = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    x[0], x[1], x[2] = 0, 1, -2.5                   # rows of one value
    x[3, ::2], x[4] = 0, np.abs(x[4])
    x[5] *= 1e-6
    x[6, :4] *= 100
    return x


@pytest.mark.parametrize("name", EXACT)
def test_simple_formats_have_the_bytes_of_gguf(name):
    x = values()
    want = gguf.quantize(x, gguf.GGMLQuantizationType[name])
    assert np.array_equal(np.array(mx.fast.quantize_blocks(mx.array(x), name)), want)


@pytest.mark.parametrize("name", FORMATS)
def test_dequantize_is_ggufs(name):
    blocks = mx.fast.quantize_blocks(mx.array(values()), name)
    want = gguf.dequantize(np.array(blocks), gguf.GGMLQuantizationType[name])
    assert np.array_equal(np.array(mx.fast.dequantize_blocks(blocks, name)), want)


@pytest.mark.parametrize("name", READ)
def test_dequantize_of_any_bits_is_ggufs(name):
    kind = gguf.GGMLQuantizationType[name]
    size = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = np.random.default_rng(2).integers(0, 256, (300, 5 * size), np.uint8)
    with np.errstate(all="ignore"):                 # scales may be infinite or no number
        want = checkpoints.block_values(blocks, kind)
    got = np.array(mx.fast.dequantize_blocks(mx.array(blocks), name))
    assert np.array_equal(got, want, equal_nan=True) and np.isfinite(want).mean() > 0.9
    number = np.isfinite(want)
    assert np.array_equal(got.view(np.uint32)[number], want.view(np.uint32)[number])


@pytest.mark.parametrize("name", READ)
def test_formats_that_are_only_read_are_named(name):
    with pytest.raises(ValueError, match=f"quantize_blocks: got format '{name}', expected one of Q4_0"):
        mx.fast.quantize_blocks(mx.array(values()), name)


@pytest.mark.parametrize("name", FITTED)
def test_fitted_formats_fit(name):
    x = np.random.default_rng(1).normal(size=(128, 512)).astype(np.float32)
    back = np.array(mx.fast.dequantize_blocks(mx.fast.quantize_blocks(mx.array(x), name), name))
    assert np.sqrt(((back - x) ** 2).sum() / (x ** 2).sum()) < FITTED[name]


@pytest.mark.parametrize("name", FITTED)
def test_fitted_formats_meet_simple_values(name):
    x = values()[:3]                                # one value: within what half a step of the scales' own codes allows
    back = np.array(mx.fast.dequantize_blocks(mx.fast.quantize_blocks(mx.array(x), name), name))
    np.testing.assert_allclose(back, x, rtol=2e-3)


@pytest.mark.parametrize("name", FITTED)
def test_values_of_a_format_come_back(name):
    """What a format holds exactly is not made worse by going through it again."""
    once = mx.fast.dequantize_blocks(mx.fast.quantize_blocks(mx.array(values()), name), name)
    twice = mx.fast.dequantize_blocks(mx.fast.quantize_blocks(once, name), name)
    a, b = np.array(once), np.array(twice)
    assert np.sqrt(((a - b) ** 2).sum() / (a ** 2).sum()) < 0.25 * FITTED[name]


@pytest.mark.parametrize("name", FORMATS)
def test_rows_stand_alone(name):
    x = values()
    whole = np.array(mx.fast.quantize_blocks(mx.array(x), name))
    for row in (0, 6, 63):
        assert np.array_equal(np.array(mx.fast.quantize_blocks(mx.array(x[row]), name)), whole[row])
    strided = mx.fast.quantize_blocks(mx.array(x)[::3], name)
    assert np.array_equal(np.array(strided), whole[::3])
    half = mx.array(x).astype(mx.bfloat16)
    assert mx.array_equal(mx.fast.quantize_blocks(half, name), mx.fast.quantize_blocks(half.astype(mx.float32), name))


HASHES = """
import hashlib, sys
import numpy as np
import gomlx.core as mx
x = mx.array(np.frombuffer(sys.stdin.buffer.read(), np.float32).reshape(64, 512))
print([hashlib.sha256(bytes(mx.fast.quantize_blocks(x, name))).hexdigest() for name in %r])
"""


def test_every_instruction_set_gives_the_same_bytes():
    found = set()
    for isa in {"generic", _gomlx.isa()}:
        done = subprocess.run([sys.executable, "-P", "-c", HASHES % FORMATS], input=values().tobytes(), check=True,
                              env=os.environ | {"GOMLX_ISA": isa}, capture_output=True)
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_values_that_are_not_finite_do_no_harm(name):
    x = values()
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = np.nan, np.inf, -np.inf, 3e38
    blocks = mx.fast.quantize_blocks(mx.array(x), name)
    assert np.array_equal(np.array(blocks)[4:], np.array(mx.fast.quantize_blocks(mx.array(x[4:]), name)))


def test_errors_say_what_was_expected():
    x = mx.zeros((2, 48))
    with pytest.raises(ValueError, match="multiple of 32 values"):
        mx.fast.quantize_blocks(x, "Q8_0")
    with pytest.raises(ValueError, match="expected one of Q4_0, Q4_1"):
        mx.fast.quantize_blocks(x, "Q3")
    with pytest.raises(ValueError, match="expected floating point"):
        mx.fast.quantize_blocks(mx.zeros((2, 32), dtype=mx.int32), "Q8_0")
    with pytest.raises(ValueError, match="multiple of 34 bytes"):
        mx.fast.dequantize_blocks(mx.zeros((2, 32), dtype=mx.uint8), "Q8_0")
    with pytest.raises(ValueError, match="expected uint8"):
        mx.fast.dequantize_blocks(mx.zeros((2, 34)), "Q8_0")
