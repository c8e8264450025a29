"""The house's own rules: who may include and call whom, what the library never calls, and what stands at the top."""
import contextlib
import os
import re
import shutil
import subprocess
import sysconfig

import order
import pytest
from catalogue import ROWS
from engine import Compiler, load_setup
from places import ROOT, TESTS

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
TOP = {".ci", ".clang-format", ".github", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in",
       "README.md", "SECURITY.md", "benchmarks", "csrc", "docs", "gomlx", "kernels", "notebooks", "pyproject.toml",
       "setup.py", "tests", "tools"}
FORBIDDEN = {"exit", "_exit", "_Exit", "quick_exit", "abort", "__assert_fail", "printf", "__printf_chk", "vprintf",
             "puts", "putchar", "fprintf", "__fprintf_chk", "vfprintf", "fputs", "fputc", "fwrite", "perror", "stdout",
             "stderr", "signal", "sigaction", "system"}


def folder_of(path):
    """The layer of a source file: its folder in csrc, or 'kernels'; 'gomlx.h' with its chapters."""
    parts = path.split("/")
    return "kernels" if parts[0] == "kernels" else parts[1] if len(parts) > 2 and parts[1] != "gomlx" else "gomlx.h"


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
            if target.startswith("kernels/cpu/") and not path.startswith("kernels/cpu/"):
                wrong.append(f"{path} includes {target}, which is the processor's own")
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


# Folders with files that call each other, and how many such groups there are. Less of it, never more.
CALLING_BACK = {"csrc/core": 1, "csrc/models": 3, "csrc/ops/index": 1, "csrc/ops/linalg": 1, "csrc/ops/shape": 1,
                "csrc/text": 1, "csrc/text/fast": 1}


def groups_that_call_back(calls):
    """The sets of files, of {file: files that it calls}, in which each file reaches each other one."""
    def reached(start):
        found, ahead = set(), [start]
        while ahead:
            new = calls[ahead.pop()] - found
            found |= new
            ahead += new
        return found

    after = {file: reached(file) for file in calls}
    return {frozenset(other for other in after[file] if file in after[other]) for file in calls if file in after[file]}


@pytest.mark.slow
def test_files_of_a_folder_call_one_way(linked):
    home = {name: source for source, (defined, _) in linked.items() for name in defined}
    found = {}
    for folder in sorted({os.path.dirname(source) for source in linked if "@" not in source}):
        own = [source for source in linked if os.path.dirname(source) == folder]
        calls = {source: {home[name] for name in linked[source][1] if home.get(name) in own} for source in own}
        for group in groups_that_call_back(calls):
            found.setdefault(folder, []).append(sorted(os.path.basename(source) for source in group))
    assert {folder: len(groups) for folder, groups in found.items()} == CALLING_BACK, found


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
    """By the text: names that look like the engine's and are called in py/ are declared in gomlx.h or the catalogue, or
    are py/'s own."""
    header = "".join(open(os.path.join(ROOT, path), encoding="utf-8").read() for path in tracked(".h")
                     if folder_of(path) == "gomlx.h")
    header += "".join(f" gm_{name} " for _, name, _ in ROWS)
    public, wrong = set(re.findall(r"\bgm_\w+", header)), []
    for path in tracked(".c", ".h"):
        if folder_of(path) == "py":
            text = open(os.path.join(ROOT, path), encoding="utf-8").read()
            text = re.sub(r"/\*.*?\*/|\"(?:\\.|[^\"\\])*\"", " ", text, flags=re.S)
            wrong += [f"{path}: {name}" for name in sorted(set(re.findall(r"\bgm_\w+(?!\w|\s*##)",
                                                                          text)) - public - {"gm_"})]
    assert not wrong, "\n".join(wrong)


# How work is cut, packed and laid out, which is the backend's matter.
CUTTING = re.compile(r"\b(?:GRAIN|PIECE_)\w*|\w*_FLOPS\b|\bkernels_(?:gemm|panel|packed)\w*|"
                     r"\bgroup_(?:arranged|column_units)\b|"
                     r"\bGM_(?:GEMM|SDPA_(?!DIM)|GROUP|QUERY_TILE|SCAN_BLOCK|DELTA_ROWS|CONV_CHANNELS|"
                     r"EXPERT_COLUMNS|DENSE)\w*|"
                     r"->(?:panel_rows|gemm_\w+|act_pairs)\b")
RECORDING = re.compile(r"\bqueue_launch\(|\bLAUNCH\(|\bengine_kernels\(")


def test_operations_leave_cutting_to_the_backend():
    found = {}
    for path in tracked(".c", ".h"):
        if folder_of(path) in {"core", "ops", "models", "transform", "nn", "train", "run"}:
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                text = re.sub(r"/\*.*?\*/", " ", file.read(), flags=re.S)
            names = {*CUTTING.findall(text), *(RECORDING.findall(text) if folder_of(path) != "core" else ())}
            if names:
                found[path] = sorted(names)
    assert not found, found


def test_the_top_of_the_house():
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True,
                                check=True).stdout.split("\n")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    assert {name.split("/")[0] for name in listed if name} <= TOP


@pytest.mark.slow
def test_clang_does_not_warn():
    """Of the syntax. What gcc says, and its optimiser, is an error where the wheel is built: tools/build_wheel."""
    if shutil.which("clang") is None:
        pytest.skip("clang is not installed")
    build, python = load_setup(ROOT), sysconfig.get_paths()["include"]
    if not os.path.exists(os.path.join(python, "Python.h")):
        pytest.skip("Python.h is not installed")
    compiler = Compiler(ROOT, ["clang", *build.FLAGS, "-Werror", "-D_GNU_SOURCE", "-DPy_LIMITED_API=0x030B0000",
                               "-isystem", python, *(f"-I{folder}" for folder in build.INCLUDES)], build.JOBS)
    with contextlib.chdir(ROOT):
        units = [(path, build.own_flags(path)) for path in tracked(".c") if not build.is_part(path)]
        units += [(path, own) for path, _, own in build.parts()]
    said = compiler.warnings([(path, [*own, "-fsyntax-only"]) for path, own in units])
    assert not said, said


def test_files_that_take_long_begin_first(request):
    assert len(set(order.LONG)) == len(order.LONG)
    assert all(os.path.exists(os.path.join(TESTS, name)) for name in order.LONG)
    places = [order.place_of(item.path) for item in request.session.items]
    assert places == sorted(places)
    assert not request.config.getoption("loadscopereorder", False)      # by how many tests a file has


def test_objects_are_compiled_again_when_what_they_are_made_of_changes(tmp_path):
    """And only then; what was kept of an older state is there when that comes back."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    source, header = tmp_path / "a.c", tmp_path / "a.h"
    source.write_text('#include "a.h"\nint f(int x) { return x * FACTOR; }\n')

    def compiled(factor, *flags):
        header.write_text(f"#define FACTOR {factor}\n")
        before = os.listdir(tmp_path / "build" / "tests") if (tmp_path / "build").exists() else []
        obj, = Compiler(str(tmp_path), ["gcc"], 1).compile(["a.c"], *flags).values()
        return obj, os.path.basename(obj) not in before

    first, second = compiled(3), compiled(4)
    assert first[1] and second[1] and first[0] != second[0]
    assert compiled(4) == (second[0], False) and compiled(4, "-O1")[1]
    assert open(first[0], "rb").read() != open(second[0], "rb").read()
    source.write_text("#error none\n")
    with pytest.raises(AssertionError, match="#error none"):
        compiled(4)
    assert not [name for name in os.listdir(tmp_path / "build" / "tests") if "new" in name]
    source.write_text("int f(int x) { int unused; return x; }\n")
    for _ in range(2):                                  # what is said is said again
        assert "unused" in Compiler(str(tmp_path), ["gcc", "-Wall"], 1).warnings([("a.c", [])])


# ---- sizes ----
def code_only(text):
    """C without comments, preprocessor lines and what is in quotes; every line keeps its place."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'",
                  lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.S)
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*$", lambda found: re.sub(r"[^\n]", " ", found[0]), text, flags=re.M)


def functions(path):
    """(name, number of parameters, number of lines) of each function that a C file defines."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = code_only(file.read())
    for found in re.finditer(r"^[A-Za-z_][\w \t*]*?\b([a-z_]\w*)\(((?:[^;{}()]|\([^;{}()]*\))*)\)\s*\{", text, re.M):
        end = re.compile(r"^\}", re.M).search(text, found.end())
        one_line = text[found.end():text.find("\n", found.end())].rstrip().endswith("}")
        last = found.end() if one_line or end is None else end.start()
        parameters = re.sub(r"\([^()]*\)", "", found[2])
        yield found[1], parameters.count(",") + 1, text.count("\n", found.start(), last) + 1


# Loops that the compiler gives other registers when they are cut in two: fewer, never more.
LONG = {"kernels/cpu/gemm_tile.inc: gemm_singles",
        "kernels/cpu/group_matmul.inc: dot_rows"}
MANY_PARAMETERS = 10


def test_functions_are_short():
    """60 lines at most."""
    long = {f"{path}: {name}": lines for path in tracked(".c", ".h", ".inc") for name, _, lines in functions(path)
            if lines > 60}
    assert long.keys() <= LONG, long


def test_functions_take_few_parameters():
    """Seven positional ones; more are a struct. Outside the kernels; of these there may be fewer, never more."""
    many = {f"{path}: {name}": n for path in tracked(".c", ".h") if not path.startswith("kernels/")
            for name, n, _ in functions(path) if n >= 8}
    assert len(many) <= MANY_PARAMETERS, many
