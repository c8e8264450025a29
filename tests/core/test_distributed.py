"""gomlx.core.distributed over several processes, which MPI or torchrun starts, and over one."""
import ctypes.util
import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time

import mpi_programs
import pytest
from mpi_programs import MPICH, needs_mpi
from places import ROOT
from rank_programs import environment as rank_environment
from rank_programs import free_port, ranked

import gomlx.core as mx
from gomlx import cli

PROGRAM, MANY_SUMS = (os.path.join(ROOT, "tests", "support", name) for name in ("ranks.py", "many_sums.py"))

def launched(n, case, **options):
    """What each rank said, {rank: text}."""
    return mpi_programs.launched(n, PROGRAM, case, **options)


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 5])
def test_sums_are_in_the_order_of_ranks(n):
    """Of every dtype, bit for bit NumPy's, with gathering, scattering, messages and groups."""
    assert launched(n, "sizes,groups,gradients,layers") == dict.fromkeys(range(n), "done")


@needs_mpi
def test_two_processes():
    assert launched(2, "gradients") == {0: "done", 1: "done"}


@needs_mpi
@pytest.mark.slow
def test_large_arrays():
    assert launched(2, "large") == {0: "done", 1: "done"}


@needs_mpi
@pytest.mark.slow
def test_many_sums_under_load():
    assert mpi_programs.launched(3, MANY_SUMS, "30") == dict.fromkeys(range(3), "30 sums")


@needs_mpi
@pytest.mark.slow
@pytest.mark.parametrize("case, words", [
    ("shape", r"rank 1 is at all_sum of float32\[3\], rank 0 at all_sum of float32\[2\]"),
    ("dtype", r"rank 1 is at all_sum of float16\[2\], rank 0 at all_sum of float32\[2\]"),
    ("operation", r"rank 1 is at all_max of float32\[2\], rank 0 at all_sum of float32\[2\]"),
    ("killed", "rank 1 is lost, its process has ended"),
    ("left", "rank 1 is lost, its program has come to its end"),
    ("late", "waited 2 s in all_sum.* for rank 1"),
    ("received", r"rank 1 expects float32\[4\] of rank 0, which sends float32\[3\]")])
def test_failures_are_told_to_all(case, words):
    """Each rank that is there ends with an error that names the rank and the cause; none hangs."""
    found = launched(3, case, GOMLX_DISTRIBUTED_TIMEOUT="60")
    there = {0, 2} if case in ("killed", "left") else {0, 1, 2}
    assert found.keys() >= there
    for rank in there:
        assert re.match(f"error .*{words}", found[rank]) and found[rank].endswith("|"), found


@needs_mpi
@pytest.mark.slow
@pytest.mark.skipif(not MPICH or not ctypes.util.find_library("mpich"), reason="needs MPICH")
def test_mpich(tmp_path):
    library = next((path for path in ("/usr/lib/x86_64-linux-gnu/libmpich.so.12", "/usr/lib/aarch64-linux-gnu/"
                                      "libmpich.so.12") if os.path.exists(path)), None)
    if library is not None:                     # Debian's name of libmpi.so.12, which the package mpi4py looks for
        (tmp_path / "libmpi.so.12").symlink_to(library)
    environment = {"LD_LIBRARY_PATH": f"{tmp_path}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    assert launched(3, "sizes", mpirun=MPICH, **environment) == dict.fromkeys(range(3), "done")
    found = launched(3, "shape", mpirun=MPICH, **environment)
    assert all("rank 1 is at all_sum of float32[3]" in one for one in found.values()) and len(found) == 3


@needs_mpi
@pytest.mark.skipif(not MPICH, reason="needs MPICH beside Open MPI")
def test_a_launcher_of_another_mpi():
    """Processes that each believe to be alone would all do the whole work."""
    said = subprocess.run([MPICH, "-n", "2", sys.executable, "-P", "-c",
                           "import gomlx.core as mx; mx.distributed.init()"], cwd=ROOT, text=True,
                          env=os.environ | {"MPI4PY_MPIABI": "openmpi"}, capture_output=True, timeout=60, check=False)
    assert "the launcher started 2 processes" in said.stdout + said.stderr


@pytest.mark.skipif(not importlib.util.find_spec("mpi4py"), reason="needs the package mpi4py")
def test_no_library_of_mpi():
    """SLURM's srun says nothing from which mpi4py could tell whose MPI it is."""
    said = subprocess.run([sys.executable, "-P", "-c", "import gomlx.core as mx; mx.distributed.init()"], cwd=ROOT,
                          env=os.environ | {"PMIX_RANK": "0", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}, text=True,
                          capture_output=True, timeout=60, check=False)
    assert "mpi4py cannot load an MPI library" in said.stderr and "MPI4PY_MPIABI=openmpi" in said.stderr


# ---- in torchrun's environment, over TCP ----

def test_processes_of_torchrun():
    assert ranked(3, PROGRAM, "gradients") == dict.fromkeys(range(3), "done")


@pytest.mark.slow
def test_torchrun_sums():
    assert ranked(3, PROGRAM, "sizes,groups,layers") == dict.fromkeys(range(3), "done")


@pytest.mark.slow
@pytest.mark.parametrize("case, words", [
    ("shape", r"rank 1 is at all_sum of float32\[3\], rank 0 at all_sum of float32\[2\]"),
    ("killed", "rank 1 is lost, its process has ended"), ("left", "rank 1 is lost, its program has come to its end"),
    ("late", "waited 2 s in all_sum.* for rank 1"),
    ("received", r"rank 1 expects float32\[4\] of rank 0, which sends float32\[3\]")])
def test_torchrun_failures_are_told_to_all(case, words):
    found = ranked(3, PROGRAM, case)
    for rank in {0, 2} if case in ("killed", "left") else {0, 1, 2}:
        assert re.match(f"error .*{words}", found[rank]) and found[rank].endswith("|"), found


@pytest.mark.parametrize("more, words", [
    ({"MASTER_PORT": "many"}, "are expected to be numbers"), ({"RANK": "2"}, "RANK 2 of WORLD_SIZE 2"),
    ({"GOMLX_DISTRIBUTED_TIMEOUT": "0.2"}, "rank 1 has not come to rank 0")])
def test_torchrun_environments_that_are_wrong(more, words):
    said = subprocess.run([sys.executable, "-P", "-c", "import gomlx.core as mx; mx.distributed.init()"], cwd=ROOT,
                          env=rank_environment(0, 2, free_port()) | more, capture_output=True, text=True, check=False)
    assert said.returncode and words in said.stderr


def test_another_version_is_refused():
    """Rank 1 is a program that says to be of another version."""
    port = free_port()
    said = subprocess.Popen([sys.executable, "-P", "-c", "import gomlx.core as mx; mx.distributed.init()"], cwd=ROOT,
                            env=rank_environment(0, 2, port), stderr=subprocess.PIPE, text=True)
    with connected(port) as peer:
        peer.sendall(json.dumps({"rank": 1, "version": "0.0", "port": 1}).encode().ljust(1024))
        assert "rank 1 has gomlx 0.0, rank 0 " in said.communicate(timeout=60)[1]


def connected(port):
    """To a program that may not listen yet."""
    until = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.02)


def test_mpi4py_is_asked_for(monkeypatch):
    said = subprocess.run([sys.executable, "-P", "-c", "import sys; sys.modules['mpi4py'] = None\n"
                           "import gomlx.core as mx; mx.distributed.init()"], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PMI_SIZE": "2"}, check=False)
    assert "ImportError" in said.stderr and "pip install 'gomlx[mpi]'" in said.stderr


def test_one_process():
    group = mx.distributed.init()
    assert (group.rank(), group.size()) == (0, 1)
    assert mx.distributed.all_sum(3).item() == 3
    with pytest.raises(RuntimeError, match="gomlx launch"):
        mx.distributed.init(strict=True)
    with pytest.raises(RuntimeError, match="cannot be split"):
        group.split(0)
    with pytest.raises(ValueError, match="group of one process"):
        mx.distributed.send(mx.array(1), 0)


@pytest.mark.parametrize("arguments, words", [
    (["-n", "2"], "expected -- PROGRAM"), (["-n", "0", "--", "a.py"], "expected 1 or more"),
    (["-n", "2", "--mpirun", "no-such", "--", "a.py"], "there is no no-such"),
    (["-n", "2", "--mpirun", "echo", "--", "a.py"], "neither Open MPI's nor MPICH's")])
def test_launch_says_what_is_missing(arguments, words, capsys):
    assert cli.main(["launch", *arguments]) == 1
    assert words in capsys.readouterr().err
