"""Python programs that tests run on a GPU, a fake device or a fake driver, each in a process of its own."""
import subprocess
import sys
import textwrap

from places import ROOT

BEGIN = """
import ctypes, faulthandler, os
faulthandler.enable()
import numpy as np
import gomlx
import gomlx.core as mx


def fails(function, *classes):
    try:
        function()
    except classes as error:
        return str(error)
    raise AssertionError(f"none of {classes}")


"""
FAKE = """
fake = ctypes.CDLL(os.environ[{library!r}])
fake.fake_count.restype = ctypes.c_long
fake.fake_fail.argtypes = [ctypes.c_char_p, ctypes.c_long]
fake.fake_used.restype = ctypes.c_size_t
"""
# The child has no GPU, and says so; the parent keeps it.
FORK = """
    x = mx.ones((1000,)) + 1
    mx.eval(x)
    pid = os.fork()
    if pid == 0:
        try:
            said = fails(lambda: (x + 1).sum().item(), RuntimeError)
            y = mx.add(mx.array([1, 2]), 1, stream=mx.cpu).tolist()
            os._exit(0 if "forked" in said and y == [2, 3] else 1)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert (x + 1).sum().item() == 3000
"""


def run_program(program, library, environment, timeout):
    """What the program prints. fails() is what an error says, `fake` the library that the variable `library` names;
    None: there is none, and the program has a real device."""
    text = BEGIN + (FAKE.format(library=library) if library else "") + textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-P", "-c", text], cwd=ROOT, text=True, env=environment,
                          capture_output=True, timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
