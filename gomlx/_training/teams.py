"""Who computes the losses and gradients of a step: this process alone, or the ranks of a group.

A step's gradient is the sum of what its rows give, each summed by itself first, in the order of rows. So it does not
matter where a row is computed: each rank takes rows that follow each other, and what they give is added in their order,
whatever the number of ranks.
"""
from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._training.config import EMBEDDING, HEAD
from gomlx._training.data import Row
from gomlx._training.order import passes
from gomlx._training.work import Known, Task, Work, add_known

if TYPE_CHECKING:
    import numpy as np

    from gomlx.core._collectives import Link

    Numbers = np.ndarray[Any, np.dtype[np.float32]]

T = TypeVar("T")
Gradients = tuple[dict[str, mx.array], list[float], Known]


class Team(Protocol):
    """rank 0 writes what a run leaves behind."""
    rank: int

    def check(self, work: Work) -> None:
        """NotImplementedError for what this team does not train."""

    def gradients(self, work: Work, task: Task) -> Gradients:
        """As Work.gradients, of all rows of the task."""

    def losses(self, work: Work, task: Task) -> tuple[list[float], Known]:
        """As Work.losses."""

    def meet(self, known: Mapping[str, Any]) -> None:
        """All have begun, with the same of what is known; RuntimeError names who has not, and what differs."""

    def failed(self, error: BaseException) -> None:
        """This member does nothing more: the others are told why."""

    def close(self) -> None:
        """Gives back what is needed between steps alone."""


class Alone:
    """One process does everything."""
    rank = 0

    def check(self, work: Work) -> None:
        pass

    def gradients(self, work: Work, task: Task) -> Gradients:
        return work.gradients(task, task.passes, 0, prepared(work, task, lambda: work.measure(task, task.passes, 0)))

    def losses(self, work: Work, task: Task) -> tuple[list[float], Known]:
        return work.losses(task, task.passes, 0, prepared(work, task, lambda: work.measure(task, task.passes, 0)))

    def meet(self, known: Mapping[str, Any]) -> None:
        pass

    def failed(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        pass


class Ranks:
    """The ranks of a group, each of which computes its share of the rows, knows all gradients and moves the same
    parameters."""

    def __init__(self, link: Link) -> None:
        self._link, self.rank = link, link.rank
        self._agreed: BaseException | None = None       # an error that all ranks raise

    def check(self, work: Work) -> None:
        check_shareable(work)

    def gradients(self, work: Work, task: Task) -> Gradients:
        own, first = share_of(task, self.rank, self._link.size)
        ready = prepared(work, task, lambda: self._measured(work, task))
        mine, values, known = self._together("gradients", lambda: by_row(work, task, own, first, ready), 1,
                                             checksum(task.parameters))
        return named_parts(self._sum(mine, len(task.rows)), task.parameters), values, known

    def losses(self, work: Work, task: Task) -> tuple[list[float], Known]:
        own, first = share_of(task, self.rank, self._link.size)
        ready = prepared(work, task, lambda: self._measured(work, task))
        values, known = self._together("losses", lambda: work.losses(task, passes(own, work.settings), first, ready), 0)
        return values, known

    def _measured(self, work, task):
        own, first = share_of(task, self.rank, self._link.size)
        [values] = self._together("what is measured", lambda: [work.measure(task, passes(own, work.settings), first)],
                                  0)
        return values

    def _together(self, name: str, compute: Callable[[], Sequence[Any]], kept: int, state: int = 0) -> list[Any]:
        """What compute gives: the first `kept` of it this rank's own, lists and dicts of lists those of all ranks, one
        after another. state: a checksum of what has to be the same in all. An error of one rank is raised by all."""
        error: Exception | None = None
        found: Sequence[Any] = ()
        try:
            found = compute()
        except Exception as caught:
            error = caught
        said = {"error": f"{error}" if isinstance(error, _gomlx.Error) else f"{type(error).__name__}: {error}"} \
            if error is not None else {"found": list(found[kept:]), "state": state}
        everyone = [json.loads(one) for one in self._link.gather(name, json.dumps(said).encode())]
        for rank, one in enumerate(everyone):
            if "error" in one:
                self._agreed = error if rank == self.rank and error is not None else \
                    _gomlx.Error(f"{one['error']} (rank {rank})")
                raise self._agreed
            if one["state"] != everyone[0]["state"]:
                self._agreed = RuntimeError(f"train: the adapter of rank {rank} is no longer that of rank 0")
                raise self._agreed
        return [*found[:kept], *map(joined, zip(*(one["found"] for one in everyone)))]

    def _sum(self, mine: Numbers, rows: int) -> Numbers:
        """The sum over all rows in their order. mine: float32 [rows of this rank, numbers]."""
        import numpy as np  # runs of one process do without it
        size, n = self._link.size, mine.shape[1]
        ends = [n * i // size for i in range(size + 1)]
        parts = [np.ascontiguousarray(mine[:, ends[i]:ends[i + 1]]) for i in range(size)]
        theirs = [np.empty((bounds(rows, i, size)[1] - bounds(rows, i, size)[0], parts[self.rank].shape[1]), np.float32)
                  for i in range(size)]
        theirs[self.rank] = parts[self.rank]
        self._link.swap("gradients of rows", [bytes_of(one) for one in parts], [bytes_of(one) for one in theirs])
        total = np.empty(n, np.float32)
        places = [total[ends[i]:ends[i + 1]] for i in range(size)]
        places[self.rank][:] = in_order(theirs)
        self._link.swap("their sums", [bytes_of(places[self.rank])] * size, [bytes_of(one) for one in places])
        return total

    def meet(self, known: Mapping[str, Any]) -> None:
        said = {name: hashlib.blake2b(json.dumps(one, sort_keys=True, default=repr).encode(),
                                      digest_size=16).hexdigest() for name, one in known.items()}
        everyone = [json.loads(one) for one in self._link.gather("how a run begins", json.dumps(said).encode())]
        for rank, one in enumerate(everyone):
            for name in said:
                if one[name] != everyone[0][name]:
                    self._agreed = RuntimeError(f"train: rank {rank} has other {name} than rank 0")
                    raise self._agreed

    def failed(self, error: BaseException) -> None:
        if error is not self._agreed:
            self._link.end(f"distributed: rank {self._link.ranks[self.rank]} ended its run: {type(error).__name__}: "
                           f"{error}")

    def close(self) -> None:
        pass


# ---- what teams share ----

def check_shareable(work: Work) -> None:
    """NotImplementedError for gradients that are not summed row by row."""
    found = [name for name in (f"{EMBEDDING}.weight", HEAD) if name in work.adapter.full]
    if found:
        raise NotImplementedError(f"train: {found[0]} is trained as a whole, which several processes do not")


def prepared(work: Work, task: Task, measure: Callable[[], list[float]]) -> Any:
    return work.prepare(task, measure() if work.objective.measures else [])


def bounds(rows: int, rank: int, size: int) -> tuple[int, int]:
    """Of so many rows, where those of a rank begin and end."""
    return rows * rank // size, rows * (rank + 1) // size


def share_of(task: Task, rank: int, size: int) -> tuple[list[Row], int]:
    """(the rows of a task that a rank computes, the number of the first)."""
    rows = task.rows
    begin, end = bounds(len(rows), rank, size)
    return rows[begin:end], begin


def by_row(work: Work, task: Task, rows: Sequence[Row], first: int, ready: Any) -> tuple[Numbers, list[float], Known]:
    """(float32 [rows, numbers]: what each row gives to all parameters; the parts of the loss; what else is known)."""
    import numpy as np  # runs of one process do without it
    made = np.empty((len(rows), sum(one.size for one in task.parameters.values())), np.float32)
    values: list[float] = []
    known: Known = {}
    for i, row in enumerate(rows):
        gradients, more, about = work.gradients(task, [[row]], first + i, ready)
        at = 0
        for name in task.parameters:
            one = np.asarray(gradients[name]).reshape(-1)
            made[i, at:at + one.size] = one
            at += one.size
        values += more
        add_known(known, about)
    return made, values, known


def in_order(parts: Sequence[Numbers]) -> Numbers:
    """The sum of rows, one after another; parts: [rows, numbers], of which some, not all, may have none."""
    rows = [row for part in parts for row in part]
    total: Numbers = rows[0].copy()
    for row in rows[1:]:
        total += row
    return total


def checksum(parameters: Mapping[str, mx.array]) -> int:
    """Of the bits of all, in their order."""
    import numpy as np  # runs of one process do without it
    made = 0
    for one in parameters.values():
        made = zlib.crc32(np.ascontiguousarray(one.view(mx.uint8)).data, made)
    return made


def named_parts(total: Numbers, parameters: Mapping[str, mx.array]) -> dict[str, mx.array]:
    """A gradient for each parameter, of all their numbers one after another."""
    made, at = {}, 0
    for name, one in parameters.items():
        made[name] = mx.array(total[at:at + one.size]).reshape(one.shape)
        at += one.size
    return made


def joined(several: Sequence[Any]) -> Any:
    """Lists one after another; of dicts of lists by name."""
    if isinstance(several[0], list):
        return [one for part in several for one in part]
    made: Known = {}
    for part in several:
        add_known(made, part)
    return made


def bytes_of(values: Numbers) -> memoryview:
    return values.reshape(-1).view("u1").data if values.size else memoryview(bytearray())
