"""The house's own rules: who may include and call whom, what the library never calls, and what stands at the top."""
import contextlib
import os
import re
import shutil
import subprocess
import sysconfig

import pytest
from engine import Compiler, load_setup

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

# What each folder may see besides itself and gomlx.h: direct and indirect layers below it.
BASE = {"base", "kernels"}
CORE = BASE | {"core"}
FILES_AND_OPS = CORE | {"ops", "io"}
MAY_SEE = {
    "kernels": set(), "base": {"kernels"}, "core": BASE, "ops": CORE, "io": CORE, "text": BASE,
    "transform": FILES_AND_OPS, "nn": FILES_AND_OPS | {"transform"},
    "models": FILES_AND_OPS | {"transform", "nn"}, "train": FILES_AND_OPS | {"transform", "nn"},
    "run": FILES_AND_OPS | {"transform", "nn", "models", "train", "text"},
    "py": set(),
}
TOP = {".ci", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md",
       "SECURITY.md", "benchmarks", "csrc", "docs", "gomlx", "kernels", "notebooks", "pyproject.toml", "setup.py", "tests",
       "tools"}
FORBIDDEN = {"exit", "_exit", "_Exit", "quick_exit", "abort", "__assert_fail", "printf", "__printf_chk", "vprintf", "puts",
             "putchar", "fprintf", "__fprintf_chk", "vfprintf", "fputs", "fputc", "fwrite", "perror", "stdout", "stderr",
             "signal", "sigaction", "system"}


def folder_of(path):
    """The layer of a source file: its folder in csrc, or 'kernels'."""
    parts = path.split("/")
    return "kernels" if parts[0] == "kernels" else parts[1] if len(parts) > 2 else "gomlx.h"


def tracked(*suffixes):
    found = []
    for top in ("csrc", "kernels"):
        for where, _, names in os.walk(os.path.join(ROOT, top)):
            found += [os.path.relpath(os.path.join(where, name), ROOT) for name in names if name.endswith(suffixes)]
    return sorted(found)


def included(path):
    """The project's own files that a file includes, as paths."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', file.read(), re.M)
    for name in names:
        for base in (os.path.dirname(path), "csrc", "kernels", ""):
            candidate = os.path.normpath(os.path.join(base, name))
            if os.path.exists(os.path.join(ROOT, candidate)):
                yield candidate
                break
        else:
            raise AssertionError(f"{path} includes {name!r}, which is not a file of the project")


def test_every_folder_has_its_place():
    assert {folder_of(path) for path in tracked(".c", ".h", ".inc", ".def")} <= MAY_SEE.keys() | {"gomlx.h"}


def test_includes_point_down():
    wrong = []
    for path in tracked(".c", ".h", ".inc", ".def"):
        layer = folder_of(path)
        for target in included(path):
            allowed = MAY_SEE.get(layer, set()) | {layer}
            allowed |= set() if layer == "kernels" else {"gomlx.h"}
            if folder_of(target) not in allowed and not target.endswith("ops/ops.def"):
                wrong.append(f"{path} includes {target}")
    assert not wrong, "\n".join(wrong)


def symbols(obj):
    """(defined, undefined) global names of an object."""
    lines = subprocess.run(["nm", "-g", obj], capture_output=True, text=True, check=True).stdout.splitlines()
    words = [line.split() for line in lines if line.strip()]
    return ({word[-1] for word in words if word[-2] not in "Uwv"}, {word[-1] for word in words if word[-2] in "Uwv"})


@pytest.fixture(scope="module")
def linked(engine):
    """{source: (defined, undefined)} of the engine's objects."""
    return {source: symbols(obj) for source, obj in engine.objects.items()}


@pytest.mark.slow
def test_symbols_point_down(linked):
    home = {name: source for source, (defined, _) in linked.items() for name in defined}
    wrong = []
    for source, (_, undefined) in linked.items():
        layer = folder_of(source)
        for name in undefined & home.keys():
            if folder_of(home[name]) not in MAY_SEE[layer] | {layer}:
                wrong.append(f"{source} uses {name} of {home[name]}")
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.slow
def test_decoding_calls_one_way(linked):
    """A stream on its own calls its decoder, a decoder its streams, a stream its session: never back."""
    chain = [linked[f"csrc/run/{name}.c"] for name in ("single", "decoder", "stream", "session")]
    back = [below & above for i, (above, _) in enumerate(chain) for _, below in chain[i + 1:]]
    assert not any(back), back
    assert all(below & above for (_, below), (above, _) in zip(chain, chain[1:]))


@pytest.mark.slow
def test_every_shared_name_is_defined_once(linked):
    seen, twice = {}, []
    for source, (defined, _) in linked.items():
        for name in defined:
            if name.startswith(("__odr_asan", "__start_", "__stop_")):
                continue
            if name in seen:
                twice.append(f"{name} in {seen[name]} and {source}")
            seen[name] = source
    assert not twice, "\n".join(twice)


@pytest.mark.slow
def test_the_library_never_exits_aborts_or_prints(linked):
    wrong = [f"{source} uses {name}" for source, (_, undefined) in linked.items()
             for name in sorted(undefined & FORBIDDEN)]
    assert not wrong, "\n".join(wrong)


def test_the_binding_uses_only_the_public_header():
    """By the text: names that look like the engine's and are called in py/ are declared in gomlx.h or ops.def, or are
    py/'s own."""
    header = open(os.path.join(ROOT, "csrc", "gomlx.h"), encoding="utf-8").read()
    header += "".join(f" gm_{name} " for name in re.findall(
        r"^(?:UNARY|BINARY|REDUCE|HAND)\s*\((\w+)",
        open(os.path.join(ROOT, "csrc", "ops", "ops.def"), encoding="utf-8").read(),
        re.M))
    public, wrong = set(re.findall(r"\bgm_\w+", header)), []
    for path in tracked(".c", ".h"):
        if folder_of(path) == "py":
            text = open(os.path.join(ROOT, path), encoding="utf-8").read()
            text = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
            wrong += [f"{path}: {name}" for name in sorted(set(re.findall(r"\bgm_\w+(?!\w|\s*##)",
                                                                          text)) - public - {"gm_"})]
    assert not wrong, "\n".join(wrong)


# How work is cut, packed and laid out, which is the backend's matter. Where it still stands elsewhere: less of it, never more.
CUTTING = re.compile(r"\bGRAIN\w*|\w*_FLOPS\b|\bkernels_(?:gemm|panel|packed)\w*|\bgroup_(?:arranged|column_units)\b|"
                     r"\bGM_(?:GEMM|SDPA_(?!DIM)|GROUP|QUERY_TILE|SCAN_BLOCK|DELTA_ROWS|CONV_CHANNELS|EXPERT_COLUMNS|DENSE)\w*|"
                     r"->(?:panel_rows|gemm_\w+|act_pairs)\b")
RECORDING = re.compile(r"\bqueue_(?:kernels|launch)\(|\bLAUNCH\(|\bengine_kernels\(")
NOT_MOVED = {"csrc/ops/ops.h", "csrc/ops/product.c", "csrc/ops/conv_node.c"}


def test_operations_leave_cutting_to_the_backend():
    found = {}
    for path in tracked(".c", ".h"):
        if folder_of(path) in {"core", "ops", "models", "transform", "nn", "train"}:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
            names = {*CUTTING.findall(text), *(RECORDING.findall(text) if folder_of(path) != "core" else ())}
            if names:
                found[path] = sorted(names)
    assert found.keys() == NOT_MOVED, found


def test_the_top_of_the_house():
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                                check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in listed if name} <= TOP


def test_parts_export_the_kernels_under_their_name():
    """Tables of sets that build on another choose by part: a kernel elsewhere would come from the wrong set."""
    with open(os.path.join(ROOT, "kernels", "kernels.def"), encoding="utf-8") as file:
        sections = re.findall(r"^#define PART (\w+)\n(.*?)^#undef PART", file.read(), re.M | re.S)
    assert len(sections) == len(dict(sections)) > 0
    for part, lines in sections:
        with open(os.path.join(ROOT, "kernels", "cpu", f"part_{part}.c"), encoding="utf-8") as file:
            exported = re.findall(r"^EXPORT\((\w+)\)", file.read(), re.M)
        assert sorted(exported) == sorted(re.findall(r"^KERNEL\((\w+),", lines, re.M)), part


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_no_compiler_warns(name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    build, python = load_setup(ROOT), sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        pytest.skip("Python.h is not installed")
    compiler = Compiler(ROOT, [name, *build.FLAGS, "-Werror", "-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030B0000", "-isystem",
                               python, *(f"-I{folder}" for folder in build.INCLUDES)], build.JOBS)
    with contextlib.chdir(ROOT):
        units = [(path, []) for path in tracked(".c") if not build.is_part(path)]
        units += [(path, own) for path, _, own in build.parts()]
    # Some warnings need the optimiser; for the kernels, which take it minutes, the others must do.
    said = compiler.warnings([(path, [build.level(path)[0], *own,
                                      *(["-fsyntax-only"] if path.startswith("kernels/cpu/") else [])])
                              for path, own in units])
    assert not said, said
