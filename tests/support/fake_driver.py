"""Builds the fake driver (tests/cuda/fake_driver.c), which GOMLX_CUDA_DRIVER names in the place of NVIDIA's, with the
GPU's kernels as the host's compiler makes them (tests/cuda/emulate.h), and the file of kernels that goes with it."""
import importlib.util
import os
import platform
import shlex
import shutil

import pytest
from engine import Compiler, load_setup
from places import ROOT

FLAGS = ["-O1", "-g0", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
CPLUSPLUS = ["-std=gnu++17", "-DGOMLX_EMULATED", "-Itests/cuda", "-Ikernels/cuda", "-Ikernels", "-x", "c++"]


def load_build():
    """kernels/cuda/build.py as a module."""
    spec = importlib.util.spec_from_file_location("cuda_build", os.path.join(ROOT, "kernels", "cuda", "build.py"))
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def build_fake_driver(*flags, kernels=True):
    """The library's path. flags: those of sanitizers. Without kernels it has all but something to launch, and needs no
    C++."""
    cc, cxx = shlex.split(os.environ.get("CC", "gcc")), shlex.split(os.environ.get("CXX", "g++"))
    if platform.machine() != "x86_64":
        pytest.skip("the emulation of a GPU changes stacks as x86-64 does")
    for command in (cc, cxx) if kernels else (cc,):
        if shutil.which(command[0]) is None:
            pytest.skip(f"no compiler: {command[0]}")
    jobs = load_setup(ROOT).JOBS
    compiler = Compiler(ROOT, [*cc, *FLAGS, *flags], jobs)
    objects = list(compiler.compile(["tests/cuda/fake_driver.c"]).values())
    if kernels:
        parts = [f"kernels/cuda/{part}.cu" for part in load_build().parts()]
        device_code = Compiler(ROOT, [*cxx, *FLAGS, *flags, *CPLUSPLUS], jobs)
        objects += device_code.compile([*parts, "tests/cuda/fibers.cpp"]).values()
    _, path = compiler.find("tests/cuda/fake_driver.c", sorted(objects), ".so")
    if not os.path.exists(path):
        with compiler.locked(), compiler.written(path) as new:
            compiler.run([*(cxx if kernels else cc), "-shared", *flags, *objects, "-Wl,-z,defs", "-ldl", "-o", new])
    return path


def build_fake_blaslt(*flags):
    """The library in cuBLASLt's place, for the fake driver. flags: those of sanitizers."""
    return _build_library("tests/cuda/fake_blaslt.c", flags)


def build_fake_nccl():
    """The library in NCCL's place, for the fake driver."""
    return _build_library("tests/cuda/fake_nccl.c", ())


def _build_library(source, flags):
    cc = shlex.split(os.environ.get("CC", "gcc"))
    if shutil.which(cc[0]) is None:
        pytest.skip(f"no compiler: {cc[0]}")
    compiler = Compiler(ROOT, [*cc, *FLAGS, *flags], 1)
    objects = list(compiler.compile([source]).values())
    _, path = compiler.find(source, objects, ".so")
    if not os.path.exists(path):
        with compiler.locked(), compiler.written(path) as new:
            compiler.run([*cc, "-shared", *flags, *objects, "-ldl", "-o", new])
    return path


def write_kernels(path, architectures=("sm_90a",)):
    """A file of kernels with nothing in it: those of the fake driver are its own."""
    build = load_build()
    build.write(str(path), list(architectures), [b""] * len(build.parts()))
    return str(path)


def environment(driver, kernels, **more):
    """Of a process for which the fake driver is NVIDIA's."""
    return {**os.environ, "GOMLX_DEVICE_LIBRARY": "", "GOMLX_DEVICE": "", "GOMLX_CUDA_DRIVER": driver,
            "GOMLX_CUDA_KERNELS": kernels, "GOMLX_CUDA_BLASLT": "/nothing.so", **more}
