"""Builds the fake driver (tests/cuda/fake_driver.c), which GOMLX_CUDA_DRIVER names in the place of NVIDIA's, with the
GPU's kernels as the host's compiler makes them (tests/cuda/emulate.h), and the file of kernels that goes with it."""
import functools
import importlib.util
import os
import platform
import re
import shlex
import shutil
import zlib

import pytest
from engine import Compiler, load_setup
from places import ROOT

# Compiling takes longer than all that is run of it, unless that is compiled with -O0.
FLAGS = ["-Og", "-g0", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off"]
CPLUSPLUS = ["-std=gnu++17", "-DGOMLX_EMULATED", "-Itests/cuda", "-Ikernels/cuda", "-Ikernels", "-x", "c++"]


def for_this_processor():
    """fmaf is a call of the C library where it is no instruction. What the processor can do is among the flags, for
    objects are kept by these."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        found = re.search(r"^flags\s*:(.*)$", file.read(), re.M)
    return ["-march=native", f"-DPROCESSOR=0x{zlib.crc32(found[1].encode()):08x}"] if found else []


def load_build():
    """kernels/cuda/build.py as a module."""
    spec = importlib.util.spec_from_file_location("cuda_build", os.path.join(ROOT, "kernels", "cuda", "build.py"))
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    return module


def compiler_of(variable, name):
    """The command of a compiler."""
    if platform.machine() != "x86_64":
        pytest.skip("the emulation of a GPU changes stacks as x86-64 does")
    command = shlex.split(os.environ.get(variable, name))
    if shutil.which(command[0]) is None:
        pytest.skip(f"no compiler: {command[0]}")
    return command


def emulated(sources, *flags):
    """Objects of kernels as the host's compiler makes them, and of what runs them. flags: those of sanitizers, which
    have nothing to look for in the latter."""
    command = [*compiler_of("CXX", "g++"), *FLAGS, *flags, *CPLUSPLUS, *for_this_processor()]
    compiler = Compiler(ROOT, command, load_setup(ROOT).JOBS)
    fibers = ("tests/cuda/fibers.cpp", "", ["-O3", "-fno-sanitize=address", f"-DSANITIZED={int(bool(flags))}"])
    return list(compiler.compile([*sources, fibers]).values())


def shared_library(source, objects, *command, flags=()):
    """The path of what the linker makes of a source, by a compiler, and other objects; once."""
    compiler = Compiler(ROOT, [*compiler_of("CC", "gcc"), *FLAGS, *flags], 1)
    objects = [*compiler.compile([source]).values(), *objects]
    return compiler.shared(objects, *command, *flags)


@functools.cache
def build_fake_driver(*flags, kernels=True):
    """The library's path. flags: those of sanitizers. Without kernels it has all but something to launch, and needs no
    C++."""
    command = compiler_of("CXX", "g++") if kernels else compiler_of("CC", "gcc")
    parts = emulated([f"kernels/cuda/{part}.cu" for part in load_build().parts()], *flags) if kernels else []
    return shared_library("tests/cuda/fake_driver.c", parts, *command, flags=flags)


@functools.cache
def build_fake_blaslt(*flags):
    """The library in cuBLASLt's place, for the fake driver. flags: those of sanitizers."""
    return shared_library("tests/cuda/fake_blaslt.c", [], *compiler_of("CC", "gcc"), flags=flags)


@functools.cache
def build_fake_nccl():
    """The library in NCCL's place, for the fake driver."""
    return shared_library("tests/cuda/fake_nccl.c", [], *compiler_of("CC", "gcc"))


def write_kernels(path, architectures=("sm_90a",)):
    """A file of kernels with nothing in it: those of the fake driver are its own."""
    build = load_build()
    build.write(str(path), list(architectures), [b""] * len(build.parts()))
    return str(path)


def environment(driver, kernels, **more):
    """Of a process for which the fake driver is NVIDIA's."""
    return {**os.environ, "GOMLX_DEVICE_LIBRARY": "", "GOMLX_DEVICE": "", "GOMLX_CUDA_DRIVER": driver,
            "GOMLX_CUDA_KERNELS": kernels, "GOMLX_CUDA_BLASLT": "/nothing.so", **more}
