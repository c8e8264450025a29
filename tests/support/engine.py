"""Compiles the engine for the tests in C and for the structural test, with the tables of setup.py.

Objects are kept between runs, and shared by the processes of pytest-xdist, in build/tests: each under the hash of its
compiler, its flags and the files that it was made of, so that a change compiles again just what it reaches."""
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
# Checks at each access to memory, which make compiling the vectors of the kernels three times as long; ASan does that
# work.
KERNELS_LESS = ["-fno-sanitize=null,alignment,object-size,pointer-overflow"]
# ASan's own checks as calls: the same checks, in little more than half the time that compiling them in line takes.
# Those of vectors are then made by VECTORS. In the generic kernels, which read number by number, they stay in line:
# calls would be half of what the tests of them take.
VECTORS = "tests/c/vector_accesses.c"
CALLS = ["--param", "asan-instrumentation-with-call-threshold=0"]
KEPT = 7 * 24 * 3600                    # seconds that an object is kept after its last use


class Compiler:
    """command: a C compiler and its flags. jobs: how many files at a time."""

    def __init__(self, root, command, jobs):
        self.root, self.command, self.jobs = root, command, jobs
        self.cache = os.path.join(root, "build", "tests")
        self.digests = {}
        os.makedirs(self.cache, exist_ok=True)
        self.version = self.run([command[0], "--version"])

    def compile(self, units, *flags):
        """{name: object} of units: a source, or (source, instruction set, flags), which is named source@set."""
        units = [unit if isinstance(unit, tuple) else (unit, "", []) for unit in units]
        with self.locked(), ThreadPoolExecutor(self.jobs) as pool:
            objects = pool.map(lambda unit: self.object(unit[0], [*unit[2], *flags]), units)
            return {f"{source}@{isa}" if isa else source: obj for (source, isa, _), obj in zip(units, objects)}

    def object(self, source, flags):
        path, said = self.made(source, flags, ".o")
        assert path, f"{shlex.join([*self.command, *flags])} {source}\n{said}"
        return path

    def warnings(self, units):
        """What the compiler says of units, (source, flags) each."""
        with self.locked(), ThreadPoolExecutor(self.jobs) as pool:
            return "".join(said for _, said in pool.map(lambda unit: self.made(*unit, ".quiet"), units))

    def made(self, source, flags, ending):
        """(where the result is of a source, what the compiler said); the former is None, and nothing is kept, where it
        failed, or said something of what ends in .quiet. Which files were read stands beside, under the hash of the
        command: so they need not be read through a preprocessor to know that none has changed."""
        command = [*self.command, *flags]
        names = os.path.join(self.cache, hash_of(self.version, *command, source) + ".d")
        path = self.place(names, ending)
        if path and os.path.exists(path):
            return path, ""
        with self.written(names) as new_names:
            new = new_names + ending
            done = subprocess.run([*command, "-c", source, "-o", new, "-MD", "-MF", new_names], cwd=self.root,
                                  capture_output=True)
            said = done.stderr.decode(errors="replace")
            if done.returncode or (said and ending == ".quiet"):
                for one in (new, new_names):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(one)
                return None, said or f"{source}: {done.returncode}"
            open(new, "ab").close()                     # -fsyntax-only writes nothing
            path = self.place(new_names, ending, names)
            os.replace(new, path)
        return path, said

    def place(self, names, ending, key=None):
        """Where the result is of what read the files that a rule of make names; None: one of them is no more. key: the
        name that the rule will have."""
        try:
            with open(names, encoding="utf-8") as file:
                read = file.read().replace("\\\n", " ").split(": ", 1)[1].split()
            found = hash_of(key or names, *map(self.digest, read))
        except FileNotFoundError:
            return None
        path = os.path.join(self.cache, found + ending)
        for one in (names, path):
            with contextlib.suppress(FileNotFoundError):
                os.utime(one)
        return path

    def digest(self, path):
        if path not in self.digests:
            with open(os.path.join(self.root, path), "rb") as file:
                self.digests[path] = hashlib.sha256(file.read()).hexdigest()
        return self.digests[path]

    def shared(self, objects, *command):
        """The path of the library that a linker makes of objects; once."""
        path = os.path.join(self.cache, hash_of(self.version, *command, *sorted(objects)) + ".so")
        if not os.path.exists(path):
            with self.locked(), self.written(path) as new:
                self.run([*command, "-shared", *objects, "-Wl,-z,defs", "-ldl", "-o", new])
        return path

    @contextlib.contextmanager
    def written(self, path):
        """A name to write to; what is there in the end becomes path."""
        new = f"{path}.{os.getpid()}.new"
        try:
            yield new
            if os.path.exists(new):
                os.replace(new, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(new)

    @contextlib.contextmanager
    def locked(self):
        """One process compiles; the others wait, and find its objects. Objects that nobody uses any more go."""
        with open(os.path.join(self.cache, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for entry in os.scandir(self.cache):
                if entry.stat().st_mtime < time.time() - KEPT:
                    os.unlink(entry)
            yield

    def run(self, command):
        done = subprocess.run(command, cwd=self.root, capture_output=True)
        assert done.returncode == 0, shlex.join(command) + "\n" + done.stderr.decode(errors="replace")
        return done.stdout.decode()


class Engine(Compiler):
    """objects: {source: object} of csrc (without py) and of the kernels that setup.py would build (GOMLX_ISAS), at -O1
    under ASan and UBSan. addresses: the flags of ASan alone. folder: where programs are linked."""

    def __init__(self, root, folder):
        command, self.folder = shlex.split(os.environ.get("CC", "gcc")), str(folder)
        if shutil.which(command[0]) is None:
            pytest.skip(f"no C compiler: {command[0]}")
        self.build = load_setup(root)
        self.sanitize = SANITIZE if self.compiles(command, "int main(void) { return 0; }", *SANITIZE) else []
        flags = [*self.build.FLAGS, "-D_GNU_SOURCE", "-DGOMLX_FAULT_INJECTION", "-g1", "-O1", *self.sanitize]
        calls = self.sanitize and self.compiles(command, "int main(void) { return 0; }", *SANITIZE, *CALLS)
        less = {isa: [*KERNELS_LESS, *(CALLS if calls and isa != "generic" else [])] if self.sanitize else []
                for isa, *_ in self.build.ISAS}
        self.addresses = ["-fsanitize=address", *(CALLS if calls else [])] if self.sanitize else []
        self.has_calls = calls
        super().__init__(root, [*command, *flags, *(f"-I{name}" for name in self.build.INCLUDES)], self.build.JOBS)
        with contextlib.chdir(root):
            sources = [(path, "", own) if (own := self.build.own_flags(path)) else path
                       for path in self.build.sources("csrc/**/*.c", *self.build.KERNELS)
                       if not path.startswith("csrc/py/")]
            parts = [(source, isa, [*own, *less[isa]])
                     for source, isa, own in self.build.parts(*self.build.isas_to_build())]
        # What takes long first: no processor waits for it in the end.
        self.objects = self.compile([*parts, *sources])

    def compiles(self, command, text, *flags):
        path = os.path.join(self.folder, "probe.c")
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return subprocess.run([*command, *flags, path, "-o", path + ".out"], capture_output=True).returncode == 0

    def link(self, source, *flags, objects=None, name=None):
        """A program of one file and the engine, or other objects in its place; returns its path."""
        program = os.path.join(self.folder, name or os.path.basename(source)[:-2])
        own = [self.object(source, flags)]
        own += [self.object(VECTORS, ["-O2", "-fno-sanitize=all"])] if self.has_calls else []
        libraries = [f"-l{name}" for name in self.build.LIBRARIES]
        self.run([*self.command, *self.sanitize, *own, *(objects or self.objects).values(), *libraries, "-o", program])
        return program


def hash_of(*words):
    return hashlib.sha256("\0".join(words).encode()).hexdigest()


def load_setup(root):
    """setup.py as a module: its tables of sources and flags."""
    spec = importlib.util.spec_from_file_location("gomlx_setup", os.path.join(root, "setup.py"))
    try:
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    except ImportError as error:
        pytest.skip(f"setup.py needs setuptools: {error}")
    return module
