"""Programs in C over the fake driver, under sanitizers: each contract of the kernels against the processor's, as the
host's compiler makes them (emulate.h), and the calls of a device."""
import functools
import os
import re
import subprocess

import pytest
from fake_driver import build_fake_blaslt, build_fake_driver, environment, write_kernels
from places import ROOT

with open(os.path.join(ROOT, "tests", "cuda", "test_kernels.c"), encoding="utf-8") as file:
    TABLE = file.read()
CONTRACTS = re.findall(r"^    \{\"(\w+)\", check_", TABLE, re.M)
# One case of what goes over all operations or formats, or many elements; all sizes of rows, up to what no block holds.
CASES = dict.fromkeys(["unary", "binary", "reduce", "scatter_sums", "pack", "embed", "packed_matmul", "packed_glu",
                       "experts"], "1") | dict.fromkeys(["softmax", "rms_norm", "layer_norm"], "12")


@pytest.fixture(scope="module")
def program(engine, kernels):
    """Runs a program of tests/cuda/*.c and gives how many checks passed."""
    driver = build_fake_driver(*engine.addresses)

    @functools.cache
    def linked(name):
        return engine.link(f"tests/cuda/{name}.c", "-Itests/cuda")

    def run(name, *arguments, **more):
        done = subprocess.run([linked(name), *arguments], cwd=ROOT, text=True,
                              env=environment(driver, kernels, **more), capture_output=True, timeout=900)
        summary = re.search(r"(\d+) passed, (\d+) failed$", done.stdout.strip())
        assert done.returncode == 0 and summary and summary[2] == "0", done.stdout[-4000:] + done.stderr[-4000:]
        return int(summary[1])

    return run


@pytest.mark.slow
@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_contract_equals_the_processor_s(program, contract):
    assert program("test_kernels", CASES.get(contract, "4"), contract) > 0


def test_each_check_has_a_contract():
    assert len(CONTRACTS) == TABLE.count(", check_") > 50 and CASES.keys() < set(CONTRACTS)


@pytest.mark.slow
def test_what_fits_the_memory_of_a_block(program, tmp_path):
    """99 KiB on some cards, whose products go by other steps of the tensor cores too."""
    card = {"GOMLX_FAKE_MAJOR": "8", "GOMLX_CUDA_KERNELS": write_kernels(tmp_path / "kernels", ["sm_80a"])}
    assert program("test_kernels", "12", "softmax", "rms_norm", "layer_norm", **card) > 60
    assert program("test_kernels", "1", "quantized_matmul", "scan", "sort", "scatter", "scatter_sums", **card) > 20
    assert program("test_kernels", "6", "product", "gather_product", **card) > 15
    assert program("test_kernels", "4", "attention", **card) > 20


@pytest.mark.slow
def test_products_by_cublaslt_equal_the_processor_s(program, engine):
    path = build_fake_blaslt(*engine.addresses)
    assert program("test_kernels", "20", "product", GOMLX_CUDA_BLASLT=path) == 40
    assert program("test_kernels", "6", "sdpa", GOMLX_CUDA_BLASLT=path) == 12
    assert program("test_kernels", "1", "large_prompts", GOMLX_CUDA_BLASLT=path) > 20
    assert program("test_kernels", "2", "quantized_matmul", "quantized_matmul_columns", GOMLX_CUDA_BLASLT=path) > 40


@pytest.mark.slow
@pytest.mark.parametrize("lost_at", ["", "1", "2", "3", "4", "5", "6", "7", "8", "12"])
def test_the_calls_of_a_device(program, lost_at):
    assert program("test_device", *([lost_at] if lost_at else [])) >= 6


@pytest.mark.slow
def test_memory_of_the_host_that_is_in_use(program):
    assert program("test_device", GOMLX_FAKE_LATE="1") >= 6
