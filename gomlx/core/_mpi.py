"""Groups over MPI: Open MPI or MPICH, through the package mpi4py."""
from __future__ import annotations

import atexit
import json
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from gomlx.core import _watch
from gomlx.core._collectives import MOST, Link

RECORD = 1024           # bytes of what a rank says at first
SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")       # launchers tell how many they started


class Messages:
    """Bytes over a communicator."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi, self.comm = mpi, comm

    def send(self, data: Any, rank: int, tag: int) -> list[Any]:
        return [self.comm.Isend([part, self._mpi.BYTE], rank, tag) for part in parts(data)]

    def receive(self, data: Any, rank: int, tag: int) -> list[Any]:
        return [self.comm.Irecv([part, self._mpi.BYTE], rank, tag) for part in parts(data)]

    def finished(self, requests: list[Any]) -> bool:
        return self._mpi.Request.Testall(requests)

    def give_up(self, requests: list[Any]) -> None:
        for one in requests:
            if one != self._mpi.REQUEST_NULL:
                one.Cancel()

    def numbers(self) -> int:
        return 0                                # communicators are told apart by MPI

    def split(self, number: int, color: int, key: int, ranks: Sequence[int]) -> Messages:
        return Messages(self._mpi, self.comm.Split(color, key))


def parts(data):
    whole = memoryview(data)
    return [whole[at:at + MOST] for at in range(0, len(whole), MOST)]


def world(version: str, timeout: float) -> Link | None:
    """The link to all processes that were launched together; None where this is the only one. RuntimeError where they
    cannot make a group."""
    try:
        import mpi4py
    except ImportError:
        raise ImportError("distributed: this process was started by MPI, which needs the package mpi4py: "
                          "pip install 'gomlx[mpi]'") from None
    mpi4py.rc.finalize = False                  # after a failure it would wait for those that are gone
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(f"distributed: mpi4py cannot load an MPI library ({error}); set MPI4PY_MPIABI=openmpi or "
                          "MPI4PY_MPIABI=mpich, as the launcher, or MPI4PY_LIBMPI to the library's file") from None
    comm = MPI.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    launched = next((os.environ[name] for name in SIZES if name in os.environ), str(size))
    if launched != str(size):
        said = MPI.Get_library_version().split(",")[0].split("\n")[0]
        raise RuntimeError(f"distributed: the launcher started {launched} processes, but mpi4py's MPI ({said:.60}) "
                           f"knows {size}: it is not the launcher's. MPI4PY_MPIABI=mpich or openmpi names one")
    if size == 1:
        return None
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise RuntimeError("distributed: this MPI was begun without threads, expected MPI_THREAD_SERIALIZED")
    watch = _watch.Watch()
    own, request = comm.Idup()
    _await(request, rank, timeout)
    link = Link(Messages(MPI, own), rank, range(size), watch, timeout)
    _meet(MPI, link, watch, version)
    atexit.register(finish, MPI, watch, rank, size, os.getpid())    # without a meeting, MPI's end would wait for ever
    return link


def finish(mpi: Any, watch: _watch.Watch, rank: int, size: int, process: int) -> None:
    """Says that this program is at its end, and waits for that of the others. MPI's own end would wait for ever where
    one of them has failed. A process that was forked off has no end of its own."""
    if os.getpid() != process:
        return
    watch.leave(rank, size)
    if watch.all_left() and not mpi.Is_finalized():
        mpi.Finalize()


def _meet(mpi, link, watch, version):
    """All ranks say their version, and connect to rank 0."""
    boot = _read_boot_id()
    said = _exchange(mpi, link, {"version": version, "host": boot})
    for rank, one in enumerate(said):
        if one["version"] != said[0]["version"]:
            link.fail(f"distributed: rank {rank} has gomlx {one['version']}, rank 0 {said[0]['version']}")
    here = all(one["host"] == said[0]["host"] for one in said)
    secret, listening, mine = os.urandom(16).hex(), None, {}
    if link.rank == 0:
        listening = _watch.listen(here)
        mine = {"port": listening.getsockname()[1], "secret": secret,
                "addresses": ["127.0.0.1"] if here else _addresses()}
    first = _exchange(mpi, link, mine)[0]
    try:
        if listening is not None:
            _watch.host(watch, listening, link.size, secret, link.timeout)
        else:
            _watch.join(watch, first["addresses"], first["port"], link.rank, first["secret"], link.timeout)
    except TimeoutError as error:
        link.fail(f"distributed: {error}")


def _exchange(mpi, link, mine):
    """What each rank says, by rank."""
    data = json.dumps(mine).encode().ljust(RECORD)
    found = bytearray(RECORD * link.size)
    _await(link.carrier.comm.Iallgather([data, mpi.BYTE], [found, mpi.BYTE]), link.rank, link.timeout)
    return [json.loads(found[at:at + RECORD]) for at in range(0, len(found), RECORD)]


def _await(request, rank, timeout):
    until = time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > until:
            raise RuntimeError(f"distributed: rank {rank} waited {timeout:g} s for all ranks to call init")
        time.sleep(0.001)


def _read_boot_id():
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip() + os.uname().nodename
    except OSError:
        return os.uname().nodename


def _addresses():
    """Where other hosts may find this one."""
    name = socket.gethostname()
    try:
        found = [one[4][0] for one in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    except OSError:
        found = []
    return [one for one in [*found, name] if not str(one).startswith("127.")][:8]
