"""Compiles the engine for the tests in C and for the structural test, with the tables of setup.py."""
import importlib.util
import os
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]


class Engine:
    """objects: {source: object} of csrc (without py) and kernels, at -O1 under ASan and UBSan."""

    def __init__(self, root, folder):
        self.root, self.folder = root, str(folder)
        self.compiler = shlex.split(os.environ.get("CC", "gcc"))
        if shutil.which(self.compiler[0]) is None:
            pytest.skip(f"no C compiler: {self.compiler[0]}")
        self.build = load_setup(root)
        self.sanitize = SANITIZE if self.compiles("int main(void) { return 0; }", *SANITIZE) else []
        sources = [path for path in self.relative("csrc/**/*.c", "kernels/*.c", "kernels/cpu/*.c")
                   if not path.startswith("csrc/py/")]
        self.objects = self.compile([*sources, *self.parts(self.build.ISAS)], "-O1", *self.sanitize)

    def parts(self, isas):
        """The parts of the kernels, as compile takes them."""
        here = os.getcwd()
        os.chdir(self.root)
        try:
            return self.build.parts(isas)
        finally:
            os.chdir(here)

    def relative(self, *patterns):
        """Sources by pattern, relative to the root, as setup.py finds them."""
        here = os.getcwd()
        os.chdir(self.root)
        try:
            return self.build.sources(*patterns)
        finally:
            os.chdir(here)

    def compiles(self, text, *flags):
        path = os.path.join(self.folder, "probe.c")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return subprocess.run([*self.compiler, *flags, path, "-o", path + ".out"], capture_output=True).returncode == 0

    def compile(self, sources, *flags):
        """{source: object}, two at a time; a part of the kernels, (source, instruction set, flags), as source@set."""
        includes = [f"-I{folder}" for folder in self.build.INCLUDES]

        def one(unit):
            source, isa, own = unit if isinstance(unit, tuple) else (unit, "", [])
            obj = os.path.join(self.folder, source.replace("/", "_")[:-1] + isa + ".o")
            self.run([*self.compiler, *self.build.FLAGS, "-D_GNU_SOURCE", "-DGOMLX_FAULT_INJECTION", "-g1", *includes,
                      *own,
                      *flags, "-c", source, "-o", obj])
            return (f"{source}@{isa}" if isa else source), obj

        with ThreadPoolExecutor(self.build.JOBS) as pool:
            return dict(pool.map(one, sources))

    def link(self, source, *flags, objects=None, name=None):
        """A program of one file and the engine, or other objects in its place; returns its path."""
        program = os.path.join(self.folder, name or os.path.basename(source)[:-2])
        (obj,) = self.compile([source], "-O1", *self.sanitize, *flags).values()
        libraries = [f"-l{name}" for name in self.build.LIBRARIES]
        self.run([*self.compiler, *self.sanitize, obj, *(objects or self.objects).values(), *libraries, "-o", program])
        return program

    def run(self, command):
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True)
        assert done.returncode == 0, shlex.join(command) + "\n" + done.stderr


def load_setup(root):
    """setup.py as a module: its tables of sources and flags."""
    spec = importlib.util.spec_from_file_location("gomlx_setup", os.path.join(root, "setup.py"))
    try:
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    except ImportError as error:
        pytest.skip(f"setup.py needs setuptools: {error}")
    return module
