"""Communication between processes, with the names of mlx.core.distributed, for a single process: a group
of size 1, whose collective operations return their arguments."""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx

if TYPE_CHECKING:
    from gomlx._gomlx import Operand, StreamOrDevice

_BACKENDS = ("any", "mpi", "nccl", "jaccl", "ring")


class Group:
    """Processes that communicate; made by init."""

    __slots__ = ()

    def __init__(self, *_: object) -> None:
        raise TypeError("Group: made by init, not by calling")

    def rank(self) -> int:
        """The number of this process in the group."""
        return 0

    def size(self) -> int:
        """How many processes the group has."""
        return 1

    def split(self, color: int, key: int = -1) -> Group:
        """Groups of those with the same color: a group of one process has none."""
        raise RuntimeError("a group of one process cannot be split")


_group = object.__new__(Group)


def is_available(backend: str = "any") -> bool:
    """Whether init can make a group of the backend. One of one process, which needs no partner, is a ring."""
    return backend in ("any", "ring")


def init(strict: bool = False, backend: str = "any", *, all_gather_factory: Any = None) -> Group:
    """The group of all processes: this one. With strict it must have several, which is an error."""
    if backend not in _BACKENDS:
        raise ValueError(f"distributed.init: backend is {backend!r}, expected one of {', '.join(_BACKENDS)}")
    if strict:
        raise RuntimeError(f"distributed.init: there is no backend {backend!r} in this build")
    return _group


def _identity(name, x, group, stream):
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"{name}: group must be a Group or None, not {type(group)!r}")
    _gomlx._check_stream(stream)
    return x if isinstance(x, _gomlx.array) else _gomlx.array(x)


def all_sum(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The sum over the processes."""
    return _identity("all_sum", x, group, stream)


def all_max(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The maximum over the processes."""
    return _identity("all_max", x, group, stream)


def all_min(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The minimum over the processes."""
    return _identity("all_min", x, group, stream)


def all_gather(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """The arrays of all processes, one after another along the first axis."""
    return _identity("all_gather", x, group, stream)


def sum_scatter(x: Operand, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """This process's share of the sum over the processes."""
    return _identity("sum_scatter", x, group, stream)


def _alone(name, x, group, stream):
    _identity(name, x, group, stream)
    raise ValueError(f"{name}: not possible in a group of one process")


def send(x: Operand, dst: int, *, group: Group | None = None, stream: StreamOrDevice = None) -> _gomlx.array:
    """Sends an array to another process."""
    return _alone("send", x, group, stream)


def recv(shape: Sequence[int], dtype: _gomlx.Dtype, src: int, *, group: Group | None = None,
         stream: StreamOrDevice = None) -> _gomlx.array:
    """Receives an array from another process."""
    return _alone("recv", 0, group, stream)


def recv_like(x: _gomlx.array, src: int, *, group: Group | None = None,
              stream: StreamOrDevice = None) -> _gomlx.array:
    """Receives an array of the shape and dtype of x from another process."""
    return _alone("recv_like", x, group, stream)


__all__ = ["Group", "all_gather", "all_max", "all_min", "all_sum", "init", "is_available", "recv", "recv_like", "send",
           "sum_scatter"]
