"""Communication between processes, with the names of mlx.core.distributed: over MPI where a launcher of MPI started
them (`gomlx launch -n 4 -- program.py`, mpirun, srun), over TCP in torchrun's environment, else a group of one process.
With the backend "nccl" arrays on GPUs go from GPU to GPU, each process with its own.

The operations are lazy as all others, and are carried out in the order in which each process evaluates them, which has
to be the same in all. One that cannot be ends with RuntimeError in every process of the group, which names the rank and
the cause: a process that has ended, another operation, shape or dtype, a wait longer than GOMLX_DISTRIBUTED_TIMEOUT
(seconds, 300).
"""
from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx.core import _collectives, _devices, _mpi, _nccl, _torchrun
from gomlx.core._transforms import custom_function

if TYPE_CHECKING:
    from gomlx._gomlx import Operand, StreamOrDevice

_BACKENDS = ("any", "mpi", "nccl", "jaccl", "ring")
_NAMES = ("all_sum", "all_max", "all_min", "all_gather", "sum_scatter", "send", "recv",
          "join", "shares", "whole")          # on GPUs alone
_LOCAL = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")   # numbers on a host
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK")       # MPI's launchers set one of them


class Group:
    """Processes that communicate; made by init."""

    __slots__ = ("_link", "_number", "_operations")

    def __init__(self, *_: object) -> None:
        raise TypeError("Group: made by init, not by calling")

    def rank(self) -> int:
        """The number of this process in the group."""
        return self._link.rank if self._link is not None else 0

    def size(self) -> int:
        """How many processes the group has."""
        return self._link.size if self._link is not None else 1

    def split(self, color: int, key: int = -1) -> Group:
        """The group of those that call this with the same color, not negative, in the order of their keys, of equal
        ones in that of their ranks. All processes of the group call it. A group of one process has none."""
        if self._link is None:
            raise RuntimeError("a group of one process cannot be split")
        if color < 0:
            raise ValueError(f"split: color must not be negative, got {color}")
        made = _group_of(_collectives.split(self._link, color, key)[0])
        if self._link.devices is not None and made._link is not None:
            _join_devices(made, self._link.devices.device)
        return made


_links: list[Any] = []                # by the number of their group
_serials = itertools.count()
_lock = threading.Lock()
_world: Group | None = None
_kind = ""                            # what carries its messages: "mpi" or "ring"


def _group_of(link):
    made = object.__new__(Group)
    made._link, made._number, made._operations = link, len(_links), {}
    if link is not None:
        _links.append(link)
    return made


_alone = _group_of(None)


def _carry(kind, group, peer, dtype, shape, x, out, line):
    _links[group].run(_NAMES[kind], peer, dtype, shape, x, out, line)


def is_available(backend: str = "any") -> bool:
    """Whether init can make a group of the backend. One of one process, which needs no partner, is a ring."""
    if backend == "nccl":
        return _gomlx._device_count()[0] > 0 and _nccl.is_found()
    return backend in ("any", "ring") or backend == "mpi" and importlib.util.find_spec("mpi4py") is not None


def init(strict: bool = False, backend: str = "any", *, all_gather_factory: Any = None) -> Group:
    """The group of all processes that were launched together, else of this one alone.

    backend     "mpi" (of a launcher of MPI), "ring" (TCP, in torchrun's environment: RANK, WORLD_SIZE, LOCAL_RANK,
                MASTER_ADDR, MASTER_PORT), "any" of these, or "nccl": any of these, and NCCL between GPUs. The GPU of
                number LOCAL_RANK, or the only one there is, becomes this thread's default device then; others' arrays
                go on being exchanged through the host. The library is looked for as GOMLX_CUDA_NCCL, among those that
                the process has loaded, in the package nvidia-nccl, and by the loader
    strict      there must be several processes, else RuntimeError

    ImportError where MPI started this process and mpi4py is missing. RuntimeError where the processes cannot meet, or
    where one has no GPU or no NCCL.
    """
    global _world, _kind
    if backend not in _BACKENDS:
        raise ValueError(f"distributed.init: backend is {backend!r}, expected one of {', '.join(_BACKENDS)}")
    with _lock:
        if _world is None:
            link, _kind = _launched(backend)
            if link is not None:
                _gomlx._set_carrier(_carry)
                _world = _group_of(link)
        if _world is not None and backend == "nccl" and _world._link.devices is None:
            _join_devices(_world, _local_device(_world._link))
    if _world is not None and backend in ("any", "nccl", _kind):
        return _world
    if strict:
        raise RuntimeError(f"distributed.init: there is no backend {backend!r} in this build, or nothing launched "
                           "several processes: `gomlx launch -n 2 -- program.py` does")
    return _alone


def _launched(backend):
    """(the link to all processes that were launched with this one or None, what carries its messages)."""
    if backend in ("any", "mpi", "nccl") and any(one in os.environ for one in _LAUNCHED):
        return _mpi.world(_gomlx.version, _timeout()), "mpi"
    place = _torchrun.place() if backend in ("any", "ring", "nccl") else None
    if place is None or place[1] == 1:
        return None, ""
    return _torchrun.world(_gomlx.version, _timeout(), *place), "ring"


def _local_device(link):
    """The number of this process's GPU. What is missing is told to the others."""
    try:
        count, why = _gomlx._device_count()
        if count == 0:
            raise RuntimeError(f"there is no GPU: {why}")
        local = next((int(os.environ[name]) for name in _LOCAL if os.environ.get(name, "").isdecimal()), 0)
        if count > 1 and local >= count:
            raise RuntimeError(f"its number on its host is {local}, and there are {count} GPUs")
        return 1 + (local if count > 1 else 0)
    except RuntimeError as error:
        return link.fail(f"distributed: rank {link.rank} has no GPU for NCCL: {error}")


def _join_devices(group, number):
    """All processes of the group meet on their GPUs. What is missing is told to the others."""
    try:
        library = _nccl.open_library()
    except RuntimeError as error:
        group._link.fail(f"distributed: rank {group._link.rank}: {error}")
    _devices.set_default_device(_devices.Device(_devices.gpu, number - 1))
    group._link.devices = _nccl.Moves(library, number)
    _gomlx.eval(_node("join", None, group, _gomlx.uint8, (1,), here=True))


def world() -> Group | None:
    """The group that init has made of several processes, or None."""
    return _world


def _timeout():
    text = os.environ.get("GOMLX_DISTRIBUTED_TIMEOUT", "300")
    try:
        seconds = float(text)
        if not 0 < seconds < 1e9:
            raise ValueError
    except ValueError:
        raise ValueError(f"GOMLX_DISTRIBUTED_TIMEOUT: expected seconds, got {text!r}") from None
    return seconds


def _asked(name, x, group, stream):
    """(the array, its group)."""
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"{name}: group must be a Group or None, not {type(group)!r}")
    _gomlx._check_stream(stream)
    return x if isinstance(x, _gomlx.array) else _gomlx.array(x), group or init()


def _node(name, x, group, dtype, shape, peer=-1, here=False):
    """here: on the GPU where the array is made, rather than on the processor."""
    given = None if x is None else _gomlx.contiguous(x)
    return _gomlx._exchange(given, _NAMES.index(name), group._number, peer, next(_serials), dtype, tuple(shape), here)


def _is_on_device(group):
    return group._link.devices is not None and _gomlx._current_device() > 0


def _on_device(name, x, group, shape):
    """A sum, or another reduction, on a GPU: each rank's part of all, combined there in the order of ranks."""
    link = group._link
    told, ends = link.number_of(name, tuple(x.shape)), link.bounds(x.size)
    shares = _node("shares", x, group, x.dtype, (link.size, ends[link.rank + 1] - ends[link.rank]), told, True)
    add = _gomlx.logical_or if x.dtype == _gomlx.bool_ else _gomlx.add
    combine = {"all_max": _gomlx.maximum, "all_min": _gomlx.minimum}.get(name, add)
    total = functools.reduce(combine, [shares[rank] for rank in range(link.size)])
    if name != "sum_scatter":
        total = _node("whole", total, group, x.dtype, (x.size,), told, True)
    return total.reshape(tuple(shape))


def _operation(name: str, group: Group) -> Callable[[_gomlx.array], _gomlx.array]:
    """A function of one array with MLX's rules: a gradient goes through a reduction as it is, for the other processes
    have their own; of what is gathered each takes its part."""
    if name in group._operations:
        return group._operations[name]
    rank, size = group.rank(), group.size()

    def shape_of(x):
        if name == "all_gather":
            return (size * x.shape[0], *x.shape[1:]) if x.ndim else (size,)
        return (x.shape[0] // size, *x.shape[1:]) if name == "sum_scatter" else x.shape

    @custom_function
    def made(x):
        if name != "all_gather" and _is_on_device(group):
            return _on_device(name, x, group, shape_of(x))
        return _node(name, x, group, x.dtype, shape_of(x), here=_is_on_device(group))

    @made.vjp
    def pull(x, cotangent, _):
        if name == "all_gather":
            n = x.shape[0] if x.ndim else 1
            return cotangent[rank * n:(rank + 1) * n].reshape(x.shape)
        return made_of("all_gather")(cotangent) if name == "sum_scatter" else cotangent

    @made.jvp
    def push(_, tangent):
        return made(tangent)

    @made.vmap
    def batch(x, axis):
        if name not in ("all_gather", "sum_scatter"):
            return made(x), axis
        last = _gomlx.moveaxis(x, axis, -1)     # the first axis is what is gathered or shared out
        return made(last if last.ndim > 1 else last.reshape(1, -1)), -1

    def made_of(other):
        return _operation(other, group)

    group._operations[name] = made
    return made


def _reduced(name, x, group, stream):
    x, group = _asked(name, x, group, stream)
    if group.size() == 1:
        return x
    with _entered(stream):
        return _operation(name, group)(x)


def _entered(stream):
    return contextlib.nullcontext() if stream is None else _devices.stream(stream)


def all_sum(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The sum over the processes, added in the order of their ranks in x's dtype: the same bits in all."""
    return _reduced("all_sum", x, group, stream)


def all_max(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The maximum over the processes."""
    return _reduced("all_max", x, group, stream)


def all_min(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The minimum over the processes."""
    return _reduced("all_min", x, group, stream)


def all_gather(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The arrays of all processes, one after another along the first axis."""
    return _reduced("all_gather", x, group, stream)


def sum_scatter(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """This process's share of the sum over the processes, along the first axis, which the group's size divides."""
    x, group = _asked("sum_scatter", x, group, stream)
    if group.size() > 1 and (x.ndim == 0 or x.shape[0] % group.size()):
        raise ValueError(f"sum_scatter: the first axis of {tuple(x.shape)} is not a multiple of {group.size()}, the "
                         "group's size")
    return _reduced("sum_scatter", x, group, stream)


def _with_peer(name, x, peer, group, stream):
    x, group = _asked(name, x, group, stream)
    if group.size() == 1:
        raise ValueError(f"{name}: not possible in a group of one process")
    if not 0 <= peer < group.size() or peer == group.rank():
        raise ValueError(f"{name}: expected another rank of a group of {group.size()}, got {peer}, this is rank "
                         f"{group.rank()}")
    return x, group


def send(x: Operand, dst: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The array itself, which is sent to process dst of the group when the result is evaluated."""
    x, group = _with_peer("send", x, dst, group, stream)
    with _entered(stream):
        return _node("send", x, group, x.dtype, x.shape, dst, _is_on_device(group))


def recv(shape: Sequence[int], dtype: _gomlx.Dtype, src: int, *, group: Group | None = None,
         stream: StreamOrDevice = None) -> _gomlx.array:
    """An array of this shape and dtype that process src of the group sends."""
    _, group = _with_peer("recv", 0, src, group, stream)
    with _entered(stream):
        return _node("recv", None, group, dtype, shape, src, _is_on_device(group))


def recv_like(x: _gomlx.array, src: int, *, group: Group | None = None,
              stream: StreamOrDevice = None) -> _gomlx.array:
    """An array of the shape and dtype of x that process src of the group sends."""
    _with_peer("recv_like", 0, src, group, stream)
    return recv(x.shape, x.dtype, src, group=group, stream=stream)


__all__ = ["Group", "all_gather", "all_max", "all_min", "all_sum", "init", "is_available", "recv", "recv_like", "send",
           "sum_scatter"]
