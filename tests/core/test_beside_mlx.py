"""A few seconds of random programs beside the installed MLX: tests/fuzz/beside_mlx.py runs them for hours."""
import importlib.util
import os
import subprocess
import sys

import pytest
from places import ROOT, TESTS

sys.path.insert(0, os.path.join(TESTS, "fuzz"))

import beside_mlx  # noqa: E402
import functions  # noqa: E402
import known_differences  # noqa: E402
import programs  # noqa: E402

import gomlx.core as mx  # noqa: E402
import gomlx.nn as nn  # noqa: E402


def array(dtype, *values):
    import numpy as np
    return "array", dtype, (len(values),), np.array(values, dtype)


def test_programs_are_the_seed_s():
    first, again = (programs.Grower(5, mx, nn).grow(functions.TABLE, 4) for _ in range(2))
    assert programs.source(first) == programs.source(again) and len(first.steps) >= 1
    assert programs.source(first) != programs.source(programs.Grower(6, mx, nn).grow(functions.TABLE, 4))


def test_a_program_runs_from_its_source():
    for seed in range(40):
        program = programs.Grower(seed, mx, nn).grow(functions.TABLE, 3)
        if not program.counts[-1]:
            continue
        names = {"mx": mx, "nn": nn, "math": __import__("math"), "operator": __import__("operator")}
        exec(programs.source(program), names)
        last = beside_mlx.run(mx, nn, program, "eager", 0)[-1]
        total = len(program.inputs) + sum(program.counts)
        for i, want in enumerate(last):
            got = beside_mlx.outcome(mx, names[f"v{total - len(last) + i}"])
            assert got[:3] == want[:3], programs.source(program)


def test_what_differs_is_found():
    same = [[array("float32", 1.0, 2.0)]]
    assert beside_mlx.compare(same, same) is None
    assert beside_mlx.compare(same, [[array("float32", 1.0, 2.001)]])[0] == "value"
    infinite = [[array("float32", 1.0, float("inf"))]]
    assert beside_mlx.compare(same, infinite)[0] == beside_mlx.compare(infinite, same)[0] == "value"
    assert beside_mlx.compare(infinite, infinite) is None
    assert beside_mlx.compare(same, [[array("int32", 1, 2)]])[0] == "dtype"
    assert beside_mlx.compare(same, [[array("float32", 1.0)]])[0] == "shape"
    error = [beside_mlx.failure(ValueError("so"))]
    assert beside_mlx.compare(error, error) is None
    assert beside_mlx.compare(same, error)[0] == "MLX raises" and beside_mlx.compare(error, same)[0] == "gomlx raises"
    assert beside_mlx.compare([beside_mlx.failure(KeyError())], error)[0] == "error"
    moved = [[array("float32", 1.0, 2.5)]]          # what a change in the last place makes of it
    assert beside_mlx.compare(same, [[array("float32", 1.0, 2.001)]], spread=[moved]) is None


def test_a_known_difference_has_one_reason():
    program = programs.Program([], [("softmax", (), {})], [1])
    found = beside_mlx.Difference("dtype", "eager", "softmax", ("int32",), "float32 for int32", program)
    assert "softmax of integers" in known_differences.reason(found)
    assert known_differences.reason(beside_mlx.Difference("dtype", "eager", "softmax", ("float32",), "",
                                                          program)) is None
    reasons = [known.reason for known in known_differences.KNOWN]
    assert len(set(reasons)) == len(reasons)


@pytest.mark.skipif(importlib.util.find_spec("mlx") is None, reason="MLX is not installed")
def test_a_few_programs():
    done = subprocess.run([sys.executable, os.path.join(TESTS, "fuzz", "beside_mlx.py"), "--programs", "150", "--seed",
                           "1"],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_the_page_has_the_reasons_word_for_word():
    """What the comparison passes over is what users can read about, and the other way round."""
    with open(os.path.join(ROOT, "docs", "mlx-differences.md"), encoding="utf-8") as file:
        _, section = file.read().split("## What the comparison passes over\n")
    said = [" ".join(line.split()) for line in section.strip().removeprefix("- ").split("\n- ")]
    assert said == [known.reason for known in known_differences.KNOWN]
