"""The kernels for AArch64 on any machine: cross-compiled, and run in an emulator. The rest of the engine is compiled
for it too, but not linked: its libraries are here for the machine at hand only."""
import os
import re
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
from engine import load_setup

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMPILER, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
KERNELS = ["kernels/quants.c", "kernels/grids.c", "kernels/cpu/dispatch.c"]        # and the parts
# Quantised products of the generic kernels are the same C on every machine, and slow in an emulator.
PROGRAMS = {"tests/c/test_kernels.c": ["quick", "neon", "neon_i8mm"], "tests/c/test_float_kernels.c": ["quick"],
            "tests/c/test_row_kernels.c": ["quick"], "tests/c/test_draw_kernels.c": ["quick"]}


class Cross:
    """Compiles as setup.py does on AArch64."""

    def __init__(self, folder):
        self.folder, self.build = str(folder), load_setup(ROOT)
        self.flags = [*self.build.FLAGS, "-Werror", "-D_GNU_SOURCE", *(f"-I{name}" for name in self.build.INCLUDES),
                      "-idirafter", "/usr/include"]     # cJSON's and PCRE2's headers are the same for every machine

    def compile(self, sources, linked=True):
        """{source: object}, two at a time; what is not to be linked is only checked."""
        def one(unit):
            source, isa, own = unit if isinstance(unit, tuple) else (unit, "", [])
            obj = os.path.join(self.folder, source.replace("/", "_")[:-1] + isa + ".o")
            # The generic kernels are what others are held against: not worth the optimiser's half minute.
            level = "-O1" if isa == "generic" else "-fsyntax-only" if not linked else self.build.level(source)
            call([COMPILER, *self.flags, level, *own, "-c", source, "-o", obj])
            return (f"{source}@{isa}" if isa else source), obj

        with ThreadPoolExecutor(self.build.JOBS) as pool:
            return dict(pool.map(one, sources))


def in_root(cross):
    """The parts of the kernels for AArch64."""
    here = os.getcwd()
    os.chdir(ROOT)
    try:
        return [part for part in cross.build.parts(cross.build.ARM) if part[0].startswith("kernels/")]
    finally:
        os.chdir(here)


def call(command):
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, shlex.join(command) + "\n" + done.stderr


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
    kernels = cross.compile([*KERNELS, *in_root(cross)])
    objects = cross.compile(PROGRAMS)
    built = {source: objects[source][:-2] for source in PROGRAMS}
    for source, program in built.items():
        call([COMPILER, "-static", objects[source], *kernels.values(), "-lm", "-o", program])
    return built


@pytest.fixture(scope="module")
def results(programs):
    """{source: what it printed and returned}, all at the same time."""
    with ThreadPoolExecutor(len(PROGRAMS)) as pool:
        done = pool.map(lambda source: emulate("max", programs[source], *PROGRAMS[source]), PROGRAMS)
        return dict(zip(PROGRAMS, done))


@pytest.mark.parametrize("source", PROGRAMS)
def test_program(results, source):
    done = results[source]
    summary = re.search(r"^(\d+) passed, (\d+) failed", done.stdout, re.M)
    assert done.returncode == 0 and summary, done.stdout[-4000:] + done.stderr[-4000:]
    assert int(summary[1]) > 1000 and summary[2] == "0", done.stdout[-4000:]


@pytest.mark.parametrize("cpu, lacks", [("cortex-a72", ["neon", "neon_i8mm"]), ("neoverse-n1", ["neon_i8mm"])])
def test_a_cpu_does_not_get_what_it_lacks(programs, cpu, lacks):
    done = emulate(cpu, programs["tests/c/test_kernels.c"], *lacks)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(f"{isa}: skipped" in done.stdout for isa in lacks)


def test_the_engine_compiles(cross):
    sources = [path for path in cross.build.files(os.path.join(ROOT, "csrc/**/*.c")) if "/csrc/py/" not in path]
    assert len(cross.compile([os.path.relpath(path, ROOT) for path in sources], linked=False)) > 30
