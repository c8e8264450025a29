"""The build of the one extension, gomlx._gomlx; everything that is not about C stands in pyproject.toml.

The parts of the kernels are compiled for each instruction set with that set's own flags, and a set is chosen at run
time, so the rest of the code keeps to the platform's baseline and one wheel runs on every machine of its architecture.
"""
import glob
import importlib.util
import logging
import os
import platform
import re
import subprocess
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError
from setuptools.modified import newer_group

DEBUG = any(flag.startswith("-g") for flag in os.environ.get("CFLAGS", "").split())     # Python's own ask for it always
FLAGS = ["-std=c11", *([] if DEBUG else ["-g0"]), "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off",
         "-Wall", "-Wextra", "-Wshadow", "-Wconversion"]
# What makes the extension smaller, or its compressed form. Nothing unwinds through C; debuggers have -g's own tables.
# Functions sorted by name stand beside those of the other instruction sets that they are like.
SMALLER = ["-fno-asynchronous-unwind-tables", "-ffunction-sections"]
SORTED = ["-Wl,--sort-section=name"]
KERNELS = ("kernels/*.c", "kernels/cpu/*.c", "kernels/cuda/*.c")
PARTS = ("kernels/cpu/part_*.c", "csrc/text/fast/part_*.c")
INCLUDES = ["csrc", "kernels", "."]
CUDA = "kernels/cuda/"                  # code of the host alone; that of GPUs is a package of its own, built from there
LIBRARIES = ["cjson", "pcre2-8", "pthread", "dl", "m"]
# What shows in measurements of that which GCC adds to -O2 at -O3; other compilers have it at -O2 and other names for
# it.
LOOPS = ["-fvect-cost-model=dynamic", "-funswitch-loops", "-fipa-cp-clone", "-fpeel-loops"]
# Parts in which nothing of it shows: all their loops that matter are written with vectors. And those that need only the
# first of these flags: they are as fast with one form of each loop.
PLAIN = ("decoder", "gemm", "matrices")
ONE_FORM = ("blocks", "elements", "fft", "index", "linalg", "random", "reductions", "sort", "training")

def read_isas(machine):
    """The rows of kernels/cpu/isa.def for a machine, as platform.machine names it, the best last: (name, the set that
    it builds on or None, the parts that it has of its own, flags, names of the features that it needs)."""
    folder = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(folder, "kernels", "cpu", "isa.def"), encoding="utf-8") as file:
        text = file.read()
    macro = {"x86_64": "__x86_64__", "amd64": "__x86_64__", "aarch64": "__aarch64__", "arm64": "__aarch64__"}
    own_rows = re.search(rf"if defined\({macro.get(machine.lower())}\)$(.*?)^#", text, re.M | re.S)
    text = (own_rows[1] if own_rows else "") + text[text.index("#endif"):]
    row = re.compile(r'^ISA\((\w+),\s*(\w+),\s*([^,"]*),\s*([^,"]*),\s*"([^"]*)",\s*"[^"]*"\)$', re.M)
    found = {name: rest for name, *rest in reversed(row.findall(text))}
    isas, whole = [], {}
    for name, (base, parts, features, flags) in found.items():
        base_flags, base_needs = whole.get(base, ([], []))
        own, needs = (re.findall(r"\((\w+)\)", words) for words in (parts, features))
        whole[name] = [*base_flags, *flags.split()], [*base_needs, *needs]
        isas.append((name, None if base == name else base, tuple(own), *whole[name]))
    return tuple(isas)


ISAS = read_isas(platform.machine())
INSTALL = "sudo apt-get install gcc python3-dev libcjson-dev libpcre2-dev"
JOBS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def isas_to_build():
    """(sets, names of those that can be chosen) by GOMLX_ISAS: "all", for wheels that others run, or names with commas;
    unset: the best one that this machine runs. The generic one is always among them. A set that is there only because
    another builds on it cannot be chosen: just the parts that the other takes from it are compiled."""
    wanted = os.environ.get("GOMLX_ISAS") or best_here()
    by_name = {one[0]: one for one in ISAS}
    names = set(by_name) if wanted == "all" else {"generic", *(name.strip() for name in wanted.split(","))}
    if unknown := names - by_name.keys():
        raise SystemExit(f"GOMLX_ISAS={wanted}: {', '.join(sorted(unknown))} unknown; expected all, or some of "
                         f"{', '.join(by_name)}")
    needed = {one for name in names for one in lineage(name, ISAS)}
    return tuple(one for one in ISAS if one[0] in needed), names


def lineage(name, isas):
    """The set, the one that it builds on, and so on to its family."""
    bases = {isa: base for isa, base, *_ in isas}
    found = [name]
    while bases[found[-1]]:
        found.append(bases[found[-1]])
    return found


def best_here():
    """The name of the last set whose features /proc/cpuinfo lists; "all" where nothing can be read."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = re.search(r"^(?:flags|Features)\s*:(.*)$", file.read(), re.M)
    except OSError:
        found = None
    if not found:
        return "all"
    here = set(found[1].split())
    return [name for name, _, _, _, needs in ISAS if here.issuperset(needs)][-1]


def files(*patterns):
    return sorted(path for pattern in patterns for path in glob.glob(pattern, recursive=True))


def sources(*patterns):
    """The C files that are compiled once: all but the parts of the kernels."""
    return [path for path in files(*patterns) if not is_part(path)]


def is_part(path):
    return os.path.basename(path).startswith("part_")


def parts(isas=ISAS, chosen=None):
    """(source, instruction set, flags) of each part of the kernels. chosen: as isas_to_build gives it; None: all."""
    names = {path: os.path.basename(path)[len("part_"):-len(".c")] for path in files(*PARTS)}
    has = {name: own for name, _, own, _, _ in isas}
    made = []
    for path, part in names.items():
        takers = set()
        for name in has if chosen is None else chosen:
            line = lineage(name, isas)
            takers.add(name if part == "table" else next((one for one in line if part in has[one]), line[-1]))
        for isa, base, _, flags, _ in isas:
            if isa in takers:
                family = lineage(isa, isas)[-1]
                defined = [f"-DKERNELS_SET={isa}", f"-DKERNELS_BASE={base or isa}", f"-DKERNELS_FAMILY={family}",
                           f"-DKERNELS_{family}"]
                made.append((path, isa, [*defined, *flags]))
    return made


# What runs while a model is loaded, for each new shape of a pass, or once a call: small is better than fast.
ONCE = ("csrc/io/", "csrc/models/", "csrc/py/", "csrc/text/load/", CUDA,
        *(f"csrc/ops/{family}/" for family in ("index", "layers", "linalg", "products", "shape")))


def level(source, isa=None, loops=LOOPS):
    """How much the compiler optimises. Kernels say themselves what is inlined and unrolled, so that little of -O3 is
    worth its time and size. Beside other sets the generic one is for old machines and for comparison: of it, only
    products with packed weights keep -O2, which halves the time of a 4-bit model's tokens."""
    if not is_part(source):
        return ["-Os" if source.startswith(ONCE) else "-O2"]
    part = os.path.basename(source)[len("part_"):-len(".c")]
    if isa == "generic" and len(ISAS) > 1:
        return ["-O2" if part == "matrices" else "-Os"]
    # Functions begin with a cache line: a loop's speed must not hang on what is linked before it.
    loops = [] if part in PLAIN else loops[:1] if part in ONE_FORM else loops
    return ["-O2", *loops, "-falign-functions=64"]


def own_flags(source):
    """What one file is compiled with: the module of GPUs' kernels knows by a digest which ones are of its source."""
    if source != CUDA + "module.c":
        return []
    spec = importlib.util.spec_from_file_location("gomlx_cuda_build", CUDA + "build.py")
    spec.loader.exec_module(build := importlib.util.module_from_spec(spec))
    return [f'-DCUDA_DIGEST="{build.digest()}"']


def version():
    with open("csrc/gomlx.h", encoding="utf-8") as header:
        return re.search(r'^#define GM_VERSION "([^"]+)"', header.read(), re.M)[1]


class BuildExt(build_ext):
    """Compiles what is older than its source or any header, two files at a time, each with its own flags."""

    def build_extension(self, ext):
        self.probe(ext)
        loops, (isas, chosen) = self.loops(), self.compilable(*isas_to_build())
        compile_one, link = self.compiler._compile, self.compiler.link_shared_object
        with ThreadPoolExecutor(JOBS) as pool:
            jobs, depends = [], list(ext.depends)
            device_code = files(CUDA + "*.cu*", CUDA + "build.py")

            def queue(obj, src, suffix, cc_args, postargs, pp_opts, own=(), isa=None):
                if self.force or newer_group([src, *depends, *(device_code if own_flags(src) else [])], obj):
                    flags = [*postargs, *level(src, isa, loops), *own, *own_flags(src)]
                    jobs.append(pool.submit(compile_one, obj, src, suffix, cc_args, flags, pp_opts))

            macros = [f"-D{name}" if value is None else f"-D{name}={value}" for name, value in ext.define_macros]
            includes = [f"-I{folder}" for folder in ext.include_dirs]
            ext.extra_objects = []
            for source, isa, flags in parts(isas, chosen):
                obj = os.path.join(self.build_temp, f"{source[:-2]}.{isa}.o")
                os.makedirs(os.path.dirname(obj), exist_ok=True)
                queue(obj, source, ".c", [*includes, "-c"], ext.extra_compile_args, macros, flags, isa)
                ext.extra_objects.append(obj)
            sets = ", ".join(sorted(chosen))
            ext.depends = [*depends, *device_code, self.stamp(sets, renew=bool(jobs))]

            def link_when_compiled(*args, **kwargs):
                for job in jobs:
                    job.result()
                link(*args, **kwargs)

            self.compiler._compile, self.compiler.link_shared_object = queue, link_when_compiled
            start = time.monotonic()
            self.announce(f"gomlx: compiling for {sets}, {JOBS} files at a time (a minute or two on two processors)",
                          logging.INFO)
            super().build_extension(ext)
            for job in jobs:            # where nothing is to be linked their failures would go unheard
                job.result()
            self.announce(f"gomlx: compiled in {time.monotonic() - start:.0f} s", logging.INFO)
        self.compiler._compile, self.compiler.link_shared_object = compile_one, link

    def stamp(self, sets, renew):
        """A file that is newer than the extension where that must be linked again: other sets, or new objects."""
        path = os.path.join(self.build_temp, "sets")
        if renew or not os.path.exists(path) or open(path, encoding="ascii").read() != sets:
            with open(path, "w", encoding="ascii") as file:
                file.write(sets)
        return path

    def knows(self, flags):
        command = [*self.compiler.compiler_so, *flags, "-fsyntax-only", "-x", "c", os.devnull]
        return subprocess.run(command, capture_output=True).returncode == 0

    def loops(self):
        """LOOPS where the compiler knows them."""
        return LOOPS if self.knows(LOOPS) else []

    def compilable(self, isas, chosen):
        """The same, with the set that it builds on in the place of one whose flags the compiler does not know."""
        chosen = set(chosen)
        for name, base, _, flags, _ in reversed(isas):
            if base and name in chosen and not self.knows(flags):
                self.announce(f"gomlx: the compiler does not know all of {' '.join(flags)}: without {name}",
                              logging.WARNING)
                chosen = chosen - {name} | {base}
        return tuple(one for one in isas if one[0] in {up for name in chosen for up in lineage(name, isas)}), chosen

    def probe(self, ext):
        """Stops with the line that installs what is missing, before a hundred compiler messages do."""
        if sysconfig.get_config_var("Py_GIL_DISABLED"):
            raise SystemExit("gomlx cannot be built for a free-threaded Python: it uses the limited API, which such "
                             "Pythons "
                             "have from 3.15 on. Use a Python with the GIL, from 3.11 on.")
        missing = []
        with tempfile.TemporaryDirectory() as folder:
            for header in ("stddef.h", "Python.h", "cjson/cJSON.h", "pcre2.h"):
                source = os.path.join(folder, "probe.c")
                with open(source, "w", encoding="ascii") as out:
                    out.write(f"#define PCRE2_CODE_UNIT_WIDTH 8\n#include <stddef.h>\n#include <{header}>\n")
                try:
                    self.compiler.compile([source], output_dir=folder, include_dirs=ext.include_dirs)
                except CompileError:
                    missing.append("a C compiler" if header == "stddef.h" else header)
        if missing:
            raise SystemExit(f"gomlx cannot be built: {', '.join(missing)} not found. Install with:\n    {INSTALL}")


if __name__ == "__main__":
    setup(
        version=version(),
        ext_modules=[Extension(
            "gomlx._gomlx",
            sources=sources("csrc/**/*.c", *KERNELS),
            depends=["setup.py", *files("csrc/**/*.h", "csrc/**/*.def", "csrc/**/*.inc", "kernels/**/*.h",
                                        "kernels/**/*.def", "kernels/**/*.inc", *PARTS)],
            include_dirs=INCLUDES,
            define_macros=[("_GNU_SOURCE", None), ("Py_LIMITED_API", "0x030B0000")],
            extra_compile_args=[*FLAGS, *SMALLER],
            extra_link_args=SORTED,
            libraries=LIBRARIES,
            py_limited_api=True,
        )],
        cmdclass={"build_ext": BuildExt},
        options={"bdist_wheel": {"py_limited_api": "cp311"}},
    )
