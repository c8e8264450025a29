"""Sums between GPUs over NCCL: over a library in its place (fake_nccl.c), with a driver in NVIDIA's (fake_driver.c)."""
import os
import re
import subprocess
import sys

import pytest
from fake_driver import build_fake_driver, build_fake_nccl, environment, write_kernels
from places import ROOT
from rank_programs import ranked

PROGRAM = os.path.join(ROOT, "tests", "support", "ranks.py")


@pytest.fixture(scope="module")
def cards(tmp_path_factory):
    """Of processes that have three GPUs each."""
    kernels = write_kernels(tmp_path_factory.mktemp("nccl") / "kernels")
    whole = environment(build_fake_driver(), kernels, GOMLX_FAKE_COUNT="3", GOMLX_CUDA_NCCL=build_fake_nccl(),
                        GOMLX_DISTRIBUTED_TIMEOUT="60", RANKS_BACKEND="nccl")
    return {name: value for name, value in whole.items() if os.environ.get(name) != value}


def test_two_gpus(cards):
    """Each process has the GPU of its number; averages are made there."""
    assert ranked(2, PROGRAM, "averages", **cards) == {0: "done", 1: "done"}


@pytest.mark.slow
@pytest.mark.parametrize("n, late", [(2, "1"), (3, "0")])
def test_sums_are_in_the_order_of_ranks(cards, n, late):
    """Of all dtypes of GPUs, bit for bit NumPy's but for which NaN, whether launches run at once or late."""
    cases = "sizes,groups,gradients" + ",layers" * (n == 2)
    assert ranked(n, PROGRAM, cases, **cards, GOMLX_FAKE_LATE=late) == dict.fromkeys(range(n), "done")


@pytest.mark.slow
@pytest.mark.parametrize("case, fake, words", [
    ("shape", "", r"rank 1 is at all_sum of float32\[3\], rank 0 at all_sum of float32\[2\]"),
    ("operation", "", r"rank 1 is at all_max of float32\[2\], rank 0 at all_sum of float32\[2\]"),
    ("killed", "", "rank 1 is lost, its process has ended"),
    ("killed", "dies", "rank 1 is lost, its process has ended"),            # in the middle of a sum
    ("left", "", "rank 1 is lost, its program has come to its end"),
    ("late", "", "waited 2 s in all_sum.* for rank 1"),
    ("stalls", "", r"(rank . waited 2 s in all_sum of float32\[2\] for rank|rank 1 failed in all_sum: )"),
    ("dies", "", "rank 1 is lost, its process has ended"),
    ("hangs", "hangs", r"rank . waited 2 s in all_sum of float32\[2\] for rank"),
    ("received", "", r"rank 1 expects float32\[4\] of rank 0, which sends float32\[3\]"),
    ("elsewhere", "", "the array is on gpu ., the group on gpu ."),
    ("averages", "refuses", r"rank 1 failed in join.*NCCL: unhandled system error \(2\); no way to meet")])
def test_failures_are_told_to_all(cards, case, fake, words):
    """Each rank that is there ends with an error that names the rank and the cause; none hangs."""
    found = ranked(3, PROGRAM, case, own={1: {"GOMLX_FAKE_NCCL": fake}}, **cards)
    there = {0, 2} if case in ("killed", "dies", "left") else {0, 1, 2}
    assert found.keys() >= there
    for rank in there:
        assert re.match(f"error .*{words}", found[rank]), found


@pytest.mark.parametrize("more, words", [
    ({"GOMLX_CUDA_NCCL": "/nothing.so"}, "no NCCL: pip install"),
    ({"GOMLX_FAKE_NCCL_VERSION": "21300"}, "is version 21300, expected 21400 or newer"),
    ({"GOMLX_FAKE_COUNT": "0"}, "rank . has no GPU for NCCL: there is no GPU")])
def test_what_is_missing(cards, more, words):
    found = ranked(2, PROGRAM, "averages", **cards | more)
    assert all(re.search(words, one) for one in found.values()) and len(found) == 2, found


def test_is_available(cards):
    def asked(**more):
        return subprocess.run([sys.executable, "-P", "-c", "import gomlx.core as mx\n"
                               "print(mx.distributed.is_available('nccl'))"], cwd=ROOT, env=os.environ | cards | more,
                              capture_output=True, text=True, check=True).stdout.strip()

    assert asked() == "True" and asked(GOMLX_CUDA_NCCL="/nothing.so") == asked(GOMLX_FAKE_COUNT="0") == "False"
