"""What is installed: one version, one abi3 extension, the model, and a build that says what it lacks."""
import fnmatch
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from importlib import metadata

import pytest
from engine import load_setup
from places import ROOT

import gomlx
from gomlx import _gomlx


def installed():
    try:
        return metadata.distribution("gomlx")
    except metadata.PackageNotFoundError:
        pytest.skip("gomlx is imported from a folder, not installed")


def test_there_is_one_version():
    with open(os.path.join(ROOT, "csrc", "gomlx.h"), encoding="utf-8") as header:
        version = re.search(r'#define GM_VERSION "(.+)"', header.read())[1]
    assert gomlx.__version__ == _gomlx.version == version == installed().version


def test_the_wheel_is_for_every_python_from_3_11():
    assert "Tag: cp311-abi3-" in installed().read_text("WHEEL")
    assert _gomlx.__file__.endswith(".abi3.so")


def test_the_extension_exports_one_name_and_binds_no_interpreter():
    if shutil.which("nm") is None:
        pytest.skip("nm is not installed")
    lines = subprocess.run(["nm", "-D", _gomlx.__file__], capture_output=True, text=True,
                           check=True).stdout.splitlines()
    defined = {line.split()[-1] for line in lines if line.split()[-2] in "TDBR"}
    undefined = {line.split()[-1].split("@")[0] for line in lines if line.split()[-2] == "U"}
    assert defined - {"_init", "_fini"} == {"PyInit__gomlx"}
    assert not {name for name in undefined if name.startswith("_Py")} - LIMITED, "not in the limited API"


# Names with an underscore that the limited API of 3.11 has, behind macros of its headers.
LIMITED = {"_Py_NoneStruct", "_Py_TrueStruct", "_Py_FalseStruct", "_Py_EllipsisObject", "_Py_NotImplementedStruct",
           "_Py_Dealloc", "_PyArg_ParseTuple_SizeT", "_PyArg_ParseTupleAndKeywords_SizeT", "_PyArg_Parse_SizeT",
           "_Py_BuildValue_SizeT", "_PyObject_CallFunction_SizeT", "_PyObject_CallMethod_SizeT", "_PyObject_GC_New",
           "_PyObject_New", "_PyObject_GC_NewVar", "_PyObject_NewVar", "_PyWeakref_RefType"}


def test_abi3audit_finds_nothing():
    pytest.importorskip("abi3audit")
    done = subprocess.run([sys.executable, "-m", "abi3audit", "--assume-minimum-abi3", "3.11", _gomlx.__file__],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_package_carries():
    files = {str(file) for file in installed().files}
    assert {"gomlx/models/fable-Q8_0.gguf", "gomlx/models/fable.md", "gomlx/py.typed"} <= files
    assert any(file.endswith("LICENSE") for file in files)
    assert not any(file.startswith(("tests/", "csrc/", "benchmarks/")) for file in files)
    needs = [line for line in installed().requires if "extra" not in line]
    assert sorted(re.match(r"\w+", line)[0] for line in needs) == ["huggingface_hub", "jinja2", "numpy", "tqdm"]


def test_the_stubs_say_what_the_extension_and_gomlx_core_have():
    import make_stub
    made = make_stub.stubs()
    with open(os.path.join(ROOT, "pyproject.toml"), "rb") as file:
        carried = tomllib.load(file)["tool"]["setuptools"]["package-data"]["gomlx"]
    for name, text in made.items():
        with open(os.path.join(ROOT, "gomlx", name), encoding="utf-8") as file:
            assert file.read() == text, "python tests/make_stub.py gomlx"
        assert any(fnmatch.fnmatchcase(name, one) for one in carried), name
    core = os.listdir(os.path.join(ROOT, "gomlx", "core"))
    assert {"core/" + name for name in core if name.endswith(".pyi")} < made.keys()


@pytest.mark.parametrize("header", ["cjson/cJSON.h", "pcre2.h", "Python.h"])
def test_a_missing_header_stops_the_build_with_the_line_that_installs_it(tmp_path, header):
    """A compiler that does not know the header stands in for a machine without it."""
    pytest.importorskip("setuptools")
    real = shutil.which("gcc") or pytest.skip("gcc is not installed")
    fake = tmp_path / "gcc"
    fake.write_text('#!/bin/sh\nfor a in "$@"; do case $a in *.c) grep -q "<%s>" "$a" && exit 1;; esac; done\n'
                    'exec %s "$@"\n' % (header, real))
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    done = subprocess.run([sys.executable, "setup.py", "-q", "build_ext", "--build-temp", str(tmp_path / "temp"),
                           "--build-lib", str(tmp_path / "lib")], cwd=ROOT, env=os.environ | {"CC": str(fake)},
                          capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert f"{header} not found" in done.stderr
    assert "sudo apt-get install gcc python3-dev libcjson-dev libpcre2-dev" in done.stderr


def test_a_set_has_each_part_once_its_own_or_that_of_a_set_that_it_builds_on():
    build = load_setup(ROOT)
    own = {name: parts for name, _, parts, *_ in build.ISAS}
    for isa in own:
        line, found = build.lineage(isa, build.ISAS), {}
        for source, taken, flags in build.parts(chosen={isa}):
            assert source not in found and f"-DKERNELS_{line[-1]}" in flags and f"-DKERNELS_SET={taken}" in flags
            found[source] = taken
        assert found.keys() == {path for path, _, _ in build.parts()}
        for source, taken in found.items():
            part = os.path.basename(source)[len("part_"):-len(".c")]
            having = [one for one in line if part in own[one]]
            assert taken == (isa if part == "table" else having[0] if having else line[-1]), source


def test_a_set_whose_flags_the_compiler_does_not_know_gives_way_to_the_one_that_it_builds_on():
    build, said = load_setup(ROOT), []
    found = [one for one in build.ISAS if one[1]]
    if not found:
        pytest.skip("this architecture has no set that builds on another")
    name, base, _, flags, _ = found[-1]
    command = object.__new__(build.BuildExt)
    command.knows, command.announce = lambda given: given != flags, lambda text, level: said.append(text)
    isas, chosen = command.compilable(build.ISAS, {name, "generic"})
    assert chosen == {base, "generic"} and {one[0] for one in isas} == {*build.lineage(base, build.ISAS), "generic"}
    assert name in said[0] and flags[-1] in said[0]


def test_a_free_threaded_python_stops_the_build_with_a_sentence(tmp_path):
    """One variable of its configuration stands in for such a Python."""
    pytest.importorskip("setuptools")
    program = ("import runpy, sys, sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1; "
               "sys.argv = ['setup.py', '-q', 'build_ext', *sys.argv[1:]]; runpy.run_path('setup.py', "
               "run_name='__main__')")
    done = subprocess.run([sys.executable, "-c", program, "--build-temp", str(tmp_path / "temp"), "--build-lib",
                           str(tmp_path / "lib")], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "free-threaded" in done.stderr and "from 3.15 on" in done.stderr
    assert not list((tmp_path).rglob("*.o"))


# ---- the check of the whole project says what it left out ----
def check_functions():
    """The functions of .ci/run, which begin a line and end with a brace at one."""
    with open(os.path.join(ROOT, ".ci", "run"), encoding="utf-8") as file:
        return "".join(re.findall(r"^\w+\(\) \{.*?^\}\n", file.read(), re.M | re.S))


@pytest.mark.parametrize("script,status,said", [
    ("step one true; step two sh -c 'exit 77'; mapfile -t -O 1 not_tried < <(lacking false three; lacking true four)",
     0, ["not tried: [two] [tests that need three]\n", "all that was tried passed", "not tried: 2\n"]),
    ("{ echo beside; exit 3; } > said & step one joined $! said", 1, ["FAILED: [one]\n"]),
    ("step one true", 0, ["all that was tried passed", "not tried: 0\n"]),
    ("step one sh -c 'exit 3'; step two sh -c 'exit 77'", 1, ["not tried: [two]\n", "FAILED: [one]\n"])])
def test_the_whole_check_says_what_was_not_tried(script, status, said, tmp_path):
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    done = subprocess.run([bash, "-uc", f"{check_functions()}\nfailed=() not_tried=()\n{script}\nsummary"],
                          capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == status, done.stderr
    last = done.stdout[done.stdout.rindex("== "):]
    assert all(line in last for line in said), done.stdout
    assert ("beside" in script) == ("\nbeside\n" in done.stdout)


def test_packages_are_installed_one_by_one_where_one_of_them_is_missing(tmp_path):
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    install = tmp_path / "install"
    install.write_text('echo "$@"\nfor one in "$@"; do [ "$one" != missing ] || exit 1; done\n')
    for packages, tried, said in [("a 'b c'", "a b c\n", ""),
                                  ("a 'b missing' d", "a b missing d\na\nb missing\nd\n",
                                   "tests that need b missing\n")]:
        done = subprocess.run([bash, "-uc", f"{check_functions()}\nlacking 'bash {install}' {packages}"],
                              capture_output=True, text=True, check=True)
        assert (done.stderr, done.stdout) == (tried, said)


def test_a_bare_system_without_debootstrap_is_not_tried(tmp_path):
    bash = shutil.which("bash") or pytest.skip("bash is not installed")
    for name in ("realpath", "mktemp", "rm"):
        os.symlink(shutil.which(name), tmp_path / name)
    done = subprocess.run([bash, "tools/try_wheel_in_bare_system", "gomlx.whl"], cwd=ROOT, capture_output=True,
                          text=True, env={"PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (77, "debootstrap is not installed: not tried\n"), done.stderr


def test_a_wheel_that_the_compiler_warns_of_is_refused(tmp_path):
    """What it says of the project's own files counts, with whatever stands around it."""
    gcc = shutil.which("gcc") or pytest.skip("gcc is not installed")
    (tmp_path / "csrc").mkdir()
    log, tool = tmp_path / "log", os.path.join(ROOT, "tools", "refuse_warnings")
    for text, refused in (("int f(void) { int unused; return 1; }\n", True), ("int f(void) { return 1; }\n", False)):
        (tmp_path / "csrc" / "a.c").write_text(text)
        said = subprocess.run([gcc, "-Wall", "-c", "csrc/a.c", "-o", "a.o"], cwd=tmp_path, capture_output=True,
                              text=True, env=os.environ | {"LC_ALL": "C.UTF-8"}).stderr
        log.write_text("gcc -Wall -c csrc/a.c: 'warning'\n" + said + "/usr/lib/gcc/avx512fintrin.h:6: warning: so\n"
                       "kernels/cpu/gemm.inc:9:1: warning: 'x' may be used uninitialized [-Wmaybe-uninitialized]\n")
        done = subprocess.run([tool, log], capture_output=True, text=True)
        assert (done.returncode, "csrc/a.c:1:" in done.stdout) == (int(refused), refused), done.stdout


# ---- publishing ----
def publishing_check():
    """The script of the workflow's step before what was built is published."""
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    path = os.path.join(ROOT, ".github", "workflows", "wheels.yml")
    if not os.path.exists(path):
        pytest.skip("not a checkout")
    with open(path, encoding="utf-8") as file:
        steps = yaml.safe_load(file)["jobs"]["publish"]["steps"]
    publishes = next(i for i, step in enumerate(steps) if "gh-action-pypi-publish" in step.get("uses", ""))
    return next(step["run"] for step in steps[:publishes] if "run" in step)


@pytest.mark.parametrize("files, right", [
    (["gomlx-1.2.0.tar.gz", "gomlx-1.2.0-cp311-abi3-manylinux_2_28_x86_64.whl"], True),
    (["gomlx-1.2.0.tar.gz", "gomlx-1.2.1-cp311-abi3-manylinux_2_28_x86_64.whl"], False),
    (["gomlx-1.2.0.1.tar.gz"], False), (["gomlx-1.2.0rc1-cp311-abi3-any.whl"], False), ([], False)])
def test_nothing_is_published_under_the_tag_of_another_version(tmp_path, files, right):
    (tmp_path / "dist").mkdir()
    for name in files:
        (tmp_path / "dist" / name).write_bytes(b"")
    done = subprocess.run(["bash", "-e", "-c", publishing_check()], cwd=tmp_path, capture_output=True, text=True,
                          env=os.environ | {"GITHUB_REF_NAME": "v1.2.0"})
    assert (done.returncode == 0) is right and ("another version" in done.stderr) is not right
