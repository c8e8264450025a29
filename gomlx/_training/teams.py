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
from gomlx.core._flows import Flow

if TYPE_CHECKING:
    import numpy as np

    from gomlx.core._collectives import Link

    Numbers = np.ndarray[Any, np.dtype[np.float32]]

PIECES = 4              # of a row's numbers, each of which goes when it is there
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
        shares = RowShares(self._link, task)
        theirs, values, known = self._together(
            "gradients", lambda: shares.of(lambda: by_row(work, task, own, first, ready, shares.send)), 1,
            checksum(task.parameters))
        return named_parts(self._whole(in_order(theirs), task), task.parameters), values, known

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

    def _whole(self, part: Numbers, task: Task) -> Numbers:
        """The parts of all ranks, of which this is its own."""
        import numpy as np  # runs of one process do without it
        ends = ends_of(task, self._link.size)
        total = np.empty(ends[-1], np.float32)
        places = [total[ends[i]:ends[i + 1]] for i in range(self._link.size)]
        places[self.rank][:] = part
        mine = [bytes_of(places[self.rank])] * self._link.size
        self._link.swap("their sums", mine, [bytes_of(one) for one in places])
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


class RowShares:
    """What rows give to the numbers that each rank sums: it is sent as soon as it is there, while the earlier layers of
    the row, and the next rows, are computed."""

    def __init__(self, link: Link, task: Task) -> None:
        import numpy as np  # runs of one process do without it
        self._link, self._ends, self._rows, self._sent = link, ends_of(task, link.size), len(task.rows), 0
        self._pieces = pieces_of(task)
        own = self._ends[link.rank + 1] - self._ends[link.rank]
        counts = [bounds(self._rows, rank, link.size) for rank in range(link.size)]
        self._theirs = [np.zeros((end - begin, own), np.float32) for begin, end in counts]

    def of(self, compute: Callable[[], tuple[Numbers, list[float], Known]]) -> tuple[list[Numbers], list[float], Known]:
        """(what the rows of each rank give to this rank's numbers, what else compute gives). Where it fails the others
        get zeros for what is missing, so that all know where the group is, and the error is raised."""
        import numpy as np  # as above
        self._flow = Flow(self._link, "gradients of rows")
        try:
            for rank, place in enumerate(self._theirs):
                self._expect(rank, place)
            made, values, known = compute()
        except Exception:
            self._send_zeros(np.zeros(self._ends[-1], np.float32))
            self._flow.finish()
            raise
        except BaseException:
            self._flow.give_up()
            raise
        self._flow.finish()
        self._theirs[self._link.rank] = made[:, self._ends[self._link.rank]:self._ends[self._link.rank + 1]]
        return self._theirs, values, known

    def _expect(self, rank, place):
        if rank == self._link.rank:
            return
        for row in place:
            for _, begin, end in self._pieces:
                first, last = self._cut(self._link.rank, begin, end)
                self._flow.expect(rank, bytes_of(row[first - self._ends[self._link.rank]:
                                                     last - self._ends[self._link.rank]]))

    def _cut(self, rank, begin, end):
        """Of numbers begin to end those that the rank sums."""
        first = min(max(begin, self._ends[rank]), self._ends[rank + 1])
        return first, max(first, min(end, self._ends[rank + 1]))

    def send(self, row: Numbers, begin: int, end: int) -> None:
        """Numbers begin to end of a row are there."""
        self._sent += 1
        for rank in range(self._link.size):
            if rank != self._link.rank:
                first, last = self._cut(rank, begin, end)
                self._flow.give(rank, bytes_of(row[first:last]))

    def _send_zeros(self, row):
        begin, end = bounds(self._rows, self._link.rank, self._link.size)
        everything = [piece for _ in range(end - begin) for piece in self._pieces]
        for _, first, last in everything[self._sent:]:
            self.send(row, first, last)


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


def ends_of(task: Task, size: int) -> list[int]:
    """Of all numbers of the parameters, where the part that each rank sums begins, and the end."""
    n = sum(one.size for one in task.parameters.values())
    return [n * i // size for i in range(size + 1)]


def pieces_of(task: Task) -> list[tuple[list[str], int, int]]:
    """[(names, where their numbers begin among all, and end)]: parameters that follow each other, the last ones first,
    as a backward pass comes to them."""
    sizes = [one.size for one in task.parameters.values()]
    names, found, begin = list(task.parameters), [], 0
    for piece in range(PIECES):
        end = begin
        while end < len(sizes) and sum(sizes[:end]) * PIECES < sum(sizes) * (piece + 1):
            end += 1
        if end > begin:
            found.append((names[begin:end], sum(sizes[:begin]), sum(sizes[:end])))
        begin = end
    return found[::-1]


def by_row(work: Work, task: Task, rows: Sequence[Row], first: int, ready: Any,
           sent: Callable[[Numbers, int, int], None] | None = None) -> tuple[Numbers, list[float], Known]:
    """(float32 [rows, numbers]: what each row gives to all parameters; the parts of the loss; what else is known).
    sent: is told of a row's numbers, from one to another, as soon as they are there."""
    import numpy as np  # runs of one process do without it
    made = np.empty((len(rows), sum(one.size for one in task.parameters.values())), np.float32)
    pieces = pieces_of(task)
    values: list[float] = []
    known: Known = {}
    for i, row in enumerate(rows):
        def take(gradients: Mapping[str, mx.array], piece: int, numbers: Numbers = made[i]) -> None:
            names, begin, end = pieces[piece]
            at = begin
            for name in names:
                one = np.asarray(gradients[name]).reshape(-1)
                numbers[at:at + one.size] = one
                at += one.size
            if sent is not None:
                sent(numbers, begin, end)

        more, about = work.row_gradients(task, row, first + i, ready, [names for names, _, _ in pieces], take)
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
