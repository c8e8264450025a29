"""The kernels for AArch64 on any machine: cross-compiled, and run in an emulator. The rest of the engine is compiled
for it too, but not linked: its libraries are here for the machine at hand only."""
import contextlib
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import Compiler, load_setup
from places import ROOT

pytestmark = pytest.mark.slow

COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
KERNELS = ["kernels/quants.c", "kernels/grids.c", "kernels/cpu/dispatch.c"]        # and the parts
# Those that run longest first.
PROGRAMS = [f"tests/c/test_{name}.c" for name in ("packed_products", "dense_kernels", "float_kernels",
                                                  "attention_kernels", "packed_formats", "row_kernels",
                                                  "draw_kernels")]
SETS = ["neon", "neon_i8mm"]
# The generic kernels are the same C on every machine, and slow in an emulator: they are looked through, and what is
# linked is a table without any.
GENERIC = '#include "cpu/tables.h"\nconst gm_kernels kernels_generic = {.isa = "generic", .family = "generic"};\n'


class Cross(Compiler):
    """Compiles as setup.py does on AArch64. parts: the kernels' for SETS; generic: those without any."""

    def __init__(self, folder):
        self.folder, self.build = str(folder), load_setup(ROOT)
        flags = [*self.build.FLAGS, "-Werror", "-D_GNU_SOURCE", *(f"-I{name}" for name in self.build.INCLUDES),
                 "-idirafter", "/usr/include"]          # cJSON's and PCRE2's headers are the same for every machine
        super().__init__(ROOT, [COMPILER, *flags], self.build.JOBS)
        with contextlib.chdir(ROOT):
            parts = [one for one in self.build.parts(self.build.read_isas("aarch64")) if one[0].startswith("kernels/")]
            self.parts = [(source, isa, [*own, *self.build.level(source, isa)]) for source, isa, own in parts
                          if isa in SETS]
            self.generic = [(source, own) for source, isa, own in parts if isa == "generic"]


def emulate(cpu, *command):
    return subprocess.run([EMULATOR, "-cpu", cpu, *command], capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def cross(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aarch64")
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not installed (Debian: gcc-aarch64-linux-gnu)")
    probe = folder / "probe.c"
    probe.write_text("#include <math.h>\nint main(int n, char **v) { (void)v; return (int)sin(n); }\n")
    if subprocess.run([COMPILER, "-static", probe, "-lm", "-o", folder / "probe"], capture_output=True).returncode:
        pytest.skip(f"{COMPILER} has no C library (Debian: libc6-dev-arm64-cross)")
    return Cross(folder)


@pytest.fixture(scope="module")
def programs(cross):
    """{source: program}"""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"{EMULATOR} is not installed (Debian: qemu-user)")
    generic = os.path.join(cross.folder, "generic.c")
    with open(generic, "w", encoding="ascii") as file:
        file.write(GENERIC)
    kernels = {**cross.compile([*KERNELS, generic], "-O2"), **cross.compile(cross.parts)}
    objects = cross.compile(PROGRAMS, "-O2")
    built = {source: os.path.join(cross.folder, os.path.basename(source)[:-2]) for source in PROGRAMS}
    for source, program in built.items():
        cross.run([COMPILER, "-static", objects[source], *kernels.values(), "-lm", "-o", program])
    return built


@pytest.fixture(scope="module")
def results(programs):
    """{source: what it printed and returned}, as many at a time as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(lambda source: emulate("max", programs[source], "quick", *SETS), PROGRAMS)
        return dict(zip(PROGRAMS, done))


@pytest.mark.parametrize("source", PROGRAMS)
def test_program(results, source):
    done = results[source]
    summary = re.search(r"^(\d+) passed, (\d+) failed", done.stdout, re.M)
    assert done.returncode == 0 and summary, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(summary[1]) > 1000 and summary[2] == "0", done.stdout[-4000:]


@pytest.mark.parametrize("cpu, lacks", [("cortex-a72", ["neon", "neon_i8mm"]), ("neoverse-n1", ["neon_i8mm"])])
def test_a_cpu_does_not_get_what_it_lacks(programs, cpu, lacks):
    done = emulate(cpu, programs["tests/c/test_packed_formats.c"], *lacks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{isa}: skipped" in done.stdout for isa in lacks)


def test_the_engine_compiles(cross):
    with contextlib.chdir(ROOT):
        sources = [path for path in cross.build.files("csrc/**/*.c") if not path.startswith("csrc/py/")]
    assert len(sources) > 30 and len(cross.generic) > 10
    units = [*((source, []) for source in sources), *cross.generic]
    assert not cross.warnings([(source, [*own, "-O2", "-fsyntax-only"]) for source, own in units])
