"""The tests in C: each tests/c/test_*.c is a program over the whole engine, compiled under ASan and UBSan, that prints
'N passed, N failed'. Programs that start the engine (gm_init) run once for each instruction set of this machine."""
import glob
import os
import re
import subprocess

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PROGRAMS = sorted(os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, "tests", "c", "test_*.c")))
STARTING = [path for path in PROGRAMS if "gm_init(" in open(os.path.join(ROOT, path), encoding="utf-8").read()]
ISAS = ("generic", "avx2", "avx512", "neon")


@pytest.fixture(scope="session")
def programs(engine):
    built = {}

    def get(source):
        if source not in built:
            built[source] = engine.link(source)
        return built[source]

    return get


def run(program, isa=None):
    environment = os.environ | ({"GOMLX_ISA": isa} if isa else {})
    return subprocess.run([program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=600)


def check(done):
    summary = re.search(r"(\d+) passed, (\d+) failed", done.stdout)
    assert done.returncode == 0 and summary, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(summary[1]) > 0 and summary[2] == "0", done.stdout[-4000:]


@pytest.mark.parametrize("source", [path for path in PROGRAMS if path not in STARTING])
def test_program(programs, source):
    check(run(programs(source)))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("source", STARTING)
def test_program_with_each_instruction_set(programs, usable_isas, source, isa):
    if isa not in usable_isas:
        pytest.skip(f"this machine or build cannot run {isa}")
    check(run(programs(source), isa))


@pytest.fixture(scope="session")
def usable_isas(engine, tmp_path_factory):
    """Those of ISAS with which gm_init succeeds here."""
    source = tmp_path_factory.mktemp("isa") / "probe_isa.c"
    source.write_text('#include "gomlx.h"\nint main(void) { return gm_init() == GM_OK ? 0 : 1; }\n')
    program = engine.link(str(source))
    return {isa for isa in ISAS if run(program, isa).returncode == 0}
