"""Builds the fake device (tests/cuda/fake_device.c), a library that stands in CUDA's place."""
import functools
import glob
import os
import shlex

from engine import Compiler, load_setup
from places import ROOT


@functools.cache
def build_fake_device():
    """The library's path: compiled once, and again when what it is made of has changed."""
    build = load_setup(ROOT)
    command = shlex.split(os.environ.get("CC", "gcc"))
    flags = [flag for flag in build.FLAGS if flag != "-fvisibility=hidden"]
    compiler = Compiler(ROOT, [*command, *flags, "-D_GNU_SOURCE", "-O1", "-fPIC", "-fvisibility=hidden",
                               *(f"-I{name}" for name in build.INCLUDES)], build.JOBS)
    sources = [os.path.relpath(path, ROOT) for path in sorted(glob.glob(os.path.join(ROOT, "kernels/cpu/launch_*.c")))]
    objects = compiler.compile(["tests/cuda/fake_device.c", "kernels/cpu/contracts.c", "kernels/quants.c", *sources])
    return compiler.shared(objects.values(), *command)
