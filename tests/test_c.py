"""The tests in C: each tests/c/test_*.c is a program over the whole engine, compiled under ASan and UBSan, that prints
'N passed, N failed'. Programs that start the engine (gm_init) run once for each instruction set of this machine."""
import contextlib
import glob
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.slow

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "tests", "c", "test_*.c")))
STARTING = [path for path in PROGRAMS if "gm_init(" in open(os.path.join(ROOT, path), encoding="utf-8").read()]
# Fewer sizes of every packed format: one instruction set has all of them, in a test of its own.
ARGUMENTS = {"tests/c/test_kernels.c": ["quick"]}
ISAS = ("generic", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "neon", "neon_i8mm")


def run(program, *arguments, isa=None):
    environment = os.environ | ({"GOMLX_ISA": isa} if isa else {})
    return subprocess.run([program, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="session")
def runs(request, engine, usable_isas):
    """{(source, instruction set or None): the future of its run} for the tests that were asked for; as many at a time
    as there are processors."""
    asked = [(item.callspec.params["source"], item.callspec.params.get("isa")) for item in request.session.items
             if "runs" in item.fixturenames]
    asked = [(source, isa) for source, isa in asked if isa is None or isa in usable_isas]
    pool = ThreadPoolExecutor(os.cpu_count())
    built = {source: pool.submit(engine.link, source) for source in dict.fromkeys(source for source, _ in asked)}
    yield {one: pool.submit(lambda source, isa: run(built[source].result(), *ARGUMENTS.get(source, []), isa=isa), *one)
           for one in asked}
    pool.shutdown(cancel_futures=True)


def check(done):
    summary = re.search(r"(\d+) passed, (\d+) failed", done.stdout)
    assert done.returncode == 0 and summary, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(summary[1]) > 0 and summary[2] == "0", done.stdout[-4000:]


@pytest.mark.parametrize("source", [path for path in PROGRAMS if path not in STARTING])
def test_program(runs, source):
    check(runs[source, None].result())


def test_all_sizes_of_packed_formats(engine, usable_isas):
    """On the best set: what the others share with it is the same source."""
    check(run(engine.link("tests/c/test_kernels.c", name="all_sizes"), [isa for isa in ISAS if isa in usable_isas][-1]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", STARTING)
def test_program_with_each_instruction_set(runs, usable_isas, source, isa):
    if isa not in usable_isas:
        pytest.skip(f"this machine or build cannot run {isa}")
    check(runs[source, isa].result())


def test_avxvnni_in_the_encoding_of_avx512(engine, usable_isas, tmp_path):
    """The products of AVX-VNNI run on more machines than have it: AVX-512 has its instruction for the same registers.
    They take the place of avx2's, which nothing else of the table notices."""
    if "avx512vnni" not in usable_isas:
        pytest.skip("this machine has no AVX-512 VNNI")
    source = "kernels/cpu/part_matrices.c"
    with contextlib.chdir(ROOT):
        (flags,) = (flags for path, isa, flags in engine.build.parts() if (path, isa) == (source, "avx2"))
    flags = [*flags, "-mavx512f", "-mavx512vl", "-mavx512vnni"]
    own = engine.object(source, flags)
    if f"{source}@avx2" not in engine.objects:
        pytest.skip("GOMLX_ISAS leaves out avx2 here")
    objects = {**engine.objects, f"{source}@avx2": own}
    program = engine.link("tests/c/test_kernels.c", objects=objects, name="avxvnni_in_avx512")
    check(run(program, "quick", "avx2"))


@pytest.fixture(scope="session")
def usable_isas(engine, tmp_path_factory):
    """Those of ISAS with which gm_init succeeds here."""
    source = tmp_path_factory.mktemp("isa") / "probe_isa.c"
    source.write_text('#include "gomlx.h"\nint main(void) { return gm_init() == GM_OK ? 0 : 1; }\n')
    program = engine.link(str(source))
    return {isa for isa in ISAS if run(program, isa=isa).returncode == 0}
