"""The package of kernels for NVIDIA GPUs (kernels/cuda/build.py): what is in it, and what its kernels need."""
import os
import stat
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_driver import load_build
from places import ROOT

import gomlx

# Writes an image, and says what the compiler says; GOMLX_TEST_ARGUMENTS keeps what it was asked for.
NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "release ${GOMLX_TEST_RELEASE:-13.0}"; exit; fi
echo "$@" >> "$GOMLX_TEST_ARGUMENTS"
while [ "$1" != -o ]; do shift; done
printf image > "$2"
echo "ptxas info    : Compiling entry function 'gm_copy_1' for 'sm_90a'"
echo "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
echo "ptxas info    : Used 20 registers, used 0 barriers"
"""


@pytest.fixture
def build(tmp_path, monkeypatch):
    """build.py, with an nvcc that compiles nothing, in a tree whose folder build is elsewhere."""
    path = tmp_path / "nvcc"
    path.write_text(NVCC)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("GOMLX_NVCC", str(path))
    monkeypatch.setenv("GOMLX_TEST_ARGUMENTS", str(tmp_path / "asked"))
    monkeypatch.delenv("GOMLX_CUDA_ARCHS", raising=False)
    return load_build()


def test_the_package(build, tmp_path, monkeypatch):
    monkeypatch.setenv("GOMLX_CUDA_ARCHS", "90a, compute_80")
    monkeypatch.setattr(build, "OUT", str(tmp_path / "out" / "kernels"))
    assert build.get_requires_for_build_wheel() == []
    name = build.build_wheel(str(tmp_path))
    assert name == f"gomlx_cuda13-{gomlx.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(tmp_path / name) as wheel:
        files = {path: wheel.read(path) for path in wheel.namelist()}
    info = f"gomlx_cuda13-{gomlx.__version__}.dist-info/"
    assert files.keys() == {"gomlx_cuda13/kernels", *(info + one for one in ("METADATA", "WHEEL", "RECORD",
                                                                             "licenses/LICENSE"))}
    assert f"Name: gomlx-cuda13\nVersion: {gomlx.__version__}\n" in files[info + "METADATA"].decode()
    record = dict(line.split(",")[:2] for line in files[info + "RECORD"].decode().splitlines())
    assert record.keys() == files.keys() and record["gomlx_cuda13/kernels"] == "sha256=" + build.checksum(
        files["gomlx_cuda13/kernels"])
    kernels = files["gomlx_cuda13/kernels"]
    assert kernels[:15] == build.MAGIC and kernels[16:80].decode() == build.digest()
    assert kernels[80:144].rstrip(b"\0") == b"sm_90a compute_80" and kernels.count(b"image") == len(build.parts())
    asked = (tmp_path / "asked").read_text()
    assert asked.count("-gencode=arch=compute_90a,code=sm_90a") == len(build.parts())
    assert asked.count("-gencode=arch=compute_80,code=compute_80") == len(build.parts())
    build.build_wheel(str(tmp_path))                    # what it is made of is as it was
    assert (tmp_path / "asked").read_text() == asked
    assert not [name for name in os.listdir(tmp_path / "out" / "images") if name.startswith("tmp")]


def test_images_are_kept_for_one_nvcc(build, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "parts", lambda: ["sort"])
    count = []
    for release in ("13.0", "13.1", "13.0"):
        build.version_of.cache_clear()
        monkeypatch.setenv("GOMLX_TEST_RELEASE", release)
        build.kernels(str(tmp_path / "kernels"), ["90a"])
        count.append(len((tmp_path / "asked").read_text().splitlines()))
    assert count == [1, 2, 2]


def test_a_compilation_that_fails_leaves_nothing(build, tmp_path, monkeypatch):
    path = tmp_path / "nvcc"
    path.write_text("#!/bin/sh\n[ \"$1\" = --version ] || { echo the reason; exit 1; }\n")
    with pytest.raises(SystemExit, match="the reason"):
        build.kernels(str(tmp_path / "kernels"), ["90a"])
    assert [name for name in os.listdir(tmp_path / "images") if not name.endswith(".lock")] == []


def test_what_is_being_compiled_is_waited_for(build, tmp_path, monkeypatch):
    path = tmp_path / "nvcc"
    path.write_text(NVCC.replace("printf image", "sleep 0.3; printf image"))
    monkeypatch.setattr(build, "parts", lambda: ["sort"])
    build.version_of(str(path))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda name: build.kernels(str(tmp_path / name), ["90a"]), ["kernels", "others"]))
    assert len((tmp_path / "asked").read_text().splitlines()) == 1
    assert (tmp_path / "kernels").read_bytes() == (tmp_path / "others").read_bytes()


def test_what_is_kept_is_there_whole_or_not_at_all(build, tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with pytest.raises(TypeError):
        build.keep(str(path), "no bytes")
    assert path.read_bytes() == b"before" and os.listdir(tmp_path).count("file") == 1
    build.keep(str(path), b"after")
    assert path.read_bytes() == b"after" and not [name for name in os.listdir(tmp_path) if name.startswith("tmp")]


def test_the_digest_is_of_all_that_kernels_are_made_of(build, monkeypatch):
    """Parameters are structs of several headers, formulas are the processor's."""
    made_of = {os.path.relpath(path, os.path.join(ROOT, "kernels")) for path in build.made_of("layers")}
    assert {"cuda/layers.cu", "cuda/vocabulary.cuh", "cuda/args.h", "contracts.h", "kernels.h", "quants.h", "unary.def",
            "cpu/simd_math.h"} <= made_of
    before, read = build.digest(), build.read
    for changed in ("quants.h", "cuda/kernels.def", "cuda/sort.cu"):
        path = os.path.join(ROOT, "kernels", changed)
        monkeypatch.setattr(build, "read", lambda *names: read(*names) + b" " * (os.path.join(*names) == path))
        assert build.digest() != before, changed


@pytest.mark.parametrize("asked, names", [
    ("90a", ["90a"]), ("sm_80,89", ["80", "89"]), ("all", ["80", "86", "89", "90a", "100", "120", "compute_80",
                                                           "compute_90"])])
def test_architectures_that_are_asked_for(build, monkeypatch, asked, names):
    monkeypatch.setenv("GOMLX_CUDA_ARCHS", asked)
    assert build.architectures() == names


def test_architectures_of_the_cards_that_are_here(build, tmp_path, monkeypatch):
    assert build.architectures() == ["90a"] or build.cards()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nprintf '8.9\\n9.0\\n8.9\\n'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    assert build.architectures() == ["89", "90a"]
    program.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setenv("GOMLX_CUDA_ARCHS", "native")
    with pytest.raises(SystemExit, match="finds no card here"):
        build.architectures()


def test_an_architecture_that_is_none(build, monkeypatch):
    monkeypatch.setenv("GOMLX_CUDA_ARCHS", "90a,hopper")
    with pytest.raises(SystemExit, match="GOMLX_CUDA_ARCHS=90a,hopper: hopper unknown; expected native, all"):
        build.architectures()


def test_without_an_nvcc(build, tmp_path, monkeypatch):
    monkeypatch.setenv("GOMLX_NVCC", "/nothing")
    monkeypatch.setattr(build, "OUT", str(tmp_path / "out" / "kernels"))
    assert build.get_requires_for_build_wheel() == list(build.NVCC) and all("==" in one for one in build.NVCC)
    with pytest.raises(SystemExit, match="nvcc was not found: pip install nvidia-cuda-nvcc==13"):
        build.build_wheel(str(tmp_path))


def test_limits(build):
    log = ("Compiling entry function 'gm_copy_1' for 'sm_90a'\n 8 bytes stack frame, 4 bytes spill stores\n"
           "Used 20 registers\nCompiling entry function 'gm_copy_1' for 'sm_80'\n 0 bytes spill stores\n"
           "Used 255 registers\nCompiling entry function 'gm_copy_2' for 'sm_90a'\n 0 bytes spill stores\n"
           "Used 20 registers\n")
    assert build.beyond_limits(log) == ["copy_1: 20 registers and 4 bytes spilled, not 64 and 0"]


@pytest.fixture
def real():
    """build.py with an nvcc that compiles."""
    build = load_build()
    if not build.find_nvcc():
        pytest.skip(f"there is no nvcc: pip install {' '.join(build.NVCC)}")
    os.makedirs(os.path.join(os.path.dirname(build.OUT), "images"), exist_ok=True)
    return build


@pytest.mark.slow
def test_products_compile_for_cards_that_are_not_of_sm_90(real):
    """Where they have not the tensor cores' steps of sm_90a."""
    _, log = real.compile_part("product", ["80", "120"], os.path.join(os.path.dirname(real.OUT), "images"))
    assert all(log.count(b"'gm_product_bf16' for '%s'" % name) == 1 for name in (b"sm_80", b"sm_120"))


@pytest.mark.slow
def test_kernels_need_no_more_than_they_may(real):
    real.kernels(real.OUT, ["90a"])
    with open(real.OUT + ".log", encoding="utf-8") as file:
        log = file.read()
    assert real.beyond_limits(log) == []
    with open(os.path.join(ROOT, "kernels", "cuda", "table.def"), encoding="utf-8") as file:
        assert file.read().count("CUDA_HAS(") > 35 and len(real.needs(log)) > 400
