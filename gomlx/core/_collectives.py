"""What a group of processes does together, over messages between two of them, in one order of summation.

Of a sum each rank owns a part: it receives that part of all, adds in the order of ranks, in the array's own dtype, and
sends it round. So all have the same bits, whatever carries the messages. Every operation begins with a line that says
what it is; where the lines differ, every rank raises the same error. After an error a group does nothing more.
"""
from __future__ import annotations

import contextlib
import json
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gomlx.core._watch import ENDED, LEFT, Watch

if TYPE_CHECKING:
    from gomlx.core._nccl import Line, Moves

HEAD = 256              # bytes of the line before an operation
REMEMBERED = 1 << 12    # operations on GPUs of which a group knows the words
GRACE = 2.0             # seconds that messages of a process that has ended may take to arrive
MOST = 1 << 30          # bytes of one message
A_LOOK = 1 << 10        # bytes that a look moves at least, while the others are at it too
A_GPUS_LOOKS = 200      # about a millisecond, in which 64 MiB go from GPU to GPU
HEADS, DATA, SENT_HEADS, SENT_DATA, FLOWING = 1, 2, 3, 4, 5     # tags


class Carrier(Protocol):
    """What carries messages between two ranks, in order."""
    def send(self, data: Any, rank: int, tag: int) -> list[Any]: ...
    def receive(self, data: Any, rank: int, tag: int) -> list[Any]: ...
    def finished(self, requests: list[Any]) -> bool: ...
    def give_up(self, requests: list[Any]) -> None: ...
    def numbers(self) -> int:
        """How many groups this process has had over these connections."""
    def split(self, number: int, color: int, key: int, ranks: Sequence[int]) -> Carrier:
        """That of a new group of these ranks, in their order, which all of them make together."""


class Link:
    """This process in a group. ranks: of its members in the world. timeout: seconds that an operation may wait.
    devices: what carries bytes between GPUs, or None."""

    def __init__(self, carrier: Carrier, rank: int, ranks: Sequence[int], watch: Watch, timeout: float) -> None:
        self.carrier, self.rank, self.ranks, self.size = carrier, rank, list(ranks), len(ranks)
        self.timeout, self._watch, self._count, self._failure = timeout, watch, 0, ""
        self.lock = threading.RLock()
        self.devices: Moves | None = None
        self._told_of: dict[int, tuple[str, tuple[int, ...]]] = {}     # by number, what was used last at the end

    def run(self, name: str, peer: int, dtype: str, shape: tuple[int, ...], x: Any, out: Any,
            line: Line | None = None) -> None:
        """One operation, of bytes and into bytes, or from and into memory of the GPU that has the line; RuntimeError
        that names the rank and the cause."""
        with self.lock:
            if self._failure:
                raise RuntimeError(self._failure)
            try:
                if line is None:
                    self._run(name, peer, dtype, shape, x, out)
                else:
                    self._run_there(name, peer, dtype, shape, x, out, line)
            except BaseException as error:
                self.fail(self._told(self._own(name, peer, shape)[0], error))

    def fail(self, cause: str) -> None:
        """Ends the group here, and tells the others."""
        self.end(cause)
        raise RuntimeError(cause) from None

    def end(self, cause: str) -> None:
        """Tells the others why this rank does nothing more in the group."""
        self._failure = self._failure or cause
        self._watch.report(self.ranks[self.rank], cause)

    def swap(self, name: str, mine: Sequence[Any], theirs: Sequence[Any]) -> None:
        """Bytes mine[rank] to each other rank, and from each into theirs[rank], of as many bytes. RuntimeError as of
        operations; a KeyboardInterrupt stays one, and ends the group."""
        with self._tried(name):
            self._begin(name)
            self.wait(name, {rank: self.carrier.receive(theirs[rank], rank, DATA)
                             + self.carrier.send(mine[rank], rank, DATA) for rank in self._others()},
                      length=sum(map(len, theirs)))

    def begin(self, name: str) -> None:
        """All ranks are at what is called so, whose messages a flow moves; end_of() is its end."""
        with self._tried(name):
            self._begin(name)

    def end_of(self, name: str, requests: dict[int, list[Any]], error: BaseException | None) -> None:
        """Waits for the messages of a flow, in which this error has come up already."""
        with self._tried(name):
            if error is not None:
                self.carrier.give_up([one for several in requests.values() for one in several])
                raise error
            self.wait(name, requests)

    def _begin(self, name):
        self._count += 1
        self._agree(name, f"{self._count} {name}")

    @contextlib.contextmanager
    def _tried(self, name):
        """What fails inside ends the group; a KeyboardInterrupt stays one."""
        with self.lock:
            if self._failure:
                raise RuntimeError(self._failure)
            try:
                yield
            except KeyboardInterrupt:
                self.end(f"distributed: rank {self.ranks[self.rank]} was interrupted in {name}")
                raise
            except BaseException as error:
                self.fail(self._told(name, error))

    def gather(self, name: str, data: bytes) -> list[bytes]:
        """The bytes of all ranks, of any lengths."""
        lengths = [bytearray(8) for _ in range(self.size)]
        lengths[self.rank][:] = len(data).to_bytes(8, "little")
        self.swap(f"the lengths of {name}", [bytes(lengths[self.rank])] * self.size, lengths)
        found = [bytearray(int.from_bytes(one, "little")) for one in lengths]
        found[self.rank][:] = data
        self.swap(name, [data] * self.size, found)
        return [bytes(one) for one in found]

    def _told(self, name, error):
        return f"distributed: {error}" if isinstance(error, Failed) else \
            f"distributed: rank {self.ranks[self.rank]} failed in {name}: {type(error).__name__}: {error}"

    def _run(self, name, peer, dtype, shape, x, out):
        if name in ("send", "recv"):
            self._between(name, peer, f"{dtype}{list(shape)}", x, out)
            return
        what = f"{name} of {dtype}{list(shape)}"
        self._count += 1
        self._agree(what, f"{self._count} {what}")
        if name == "all_gather":
            self._gather(what, x, out, len(x))
        elif name == "sum_scatter":
            self._reduce(what, "all_sum", dtype, x, out, scatter=True)
        else:
            self._reduce(what, name, dtype, x, out)

    def number_of(self, name: str, shape: tuple[int, ...]) -> int:
        """By which the parts of an operation on GPUs say what it is: the same in all ranks, whatever these remember."""
        number = zlib.crc32(f"{name} {shape}".encode()) >> 1
        with self.lock:
            self._told_of.pop(number, None)
            self._told_of[number] = name, shape
            if len(self._told_of) > REMEMBERED:
                del self._told_of[next(iter(self._told_of))]
        return number

    def _own(self, name, peer, shape):
        """(an operation's name, its shape as text). Of parts those of the whole, as far as it is remembered."""
        if name not in ("shares", "whole"):
            return name, str(list(shape))
        if peer not in self._told_of:           # a compiled function may be older than what is remembered
            return "a reduction", f" number {peer}"
        own, shape = self._told_of[peer] = self._told_of.pop(peer)
        return own, str(list(shape))

    def bounds(self, n: int) -> list[int]:
        """Of n elements, where each rank's part begins, and the end."""
        return [n * i // self.size for i in range(self.size + 1)]

    def _run_there(self, name, peer, dtype, shape, x, out, line):
        """On a GPU: sums come as two operations, of shares and of the whole, with an addition of the GPU between."""
        moves = self.devices
        if moves is None:
            raise Failed(f"rank {self.ranks[self.rank]} has an array on a GPU, but this group has no NCCL")
        if name in ("send", "recv"):
            self._between_there(name, peer, f"{dtype}{list(shape)}", x, out, line)
            return
        own, told = self._own(name, peer, shape)
        what = f"{own} of {dtype}{told}"
        self._count += 1
        self._agree(what, f"{self._count} {what}", f"{self._count} {dtype} {peer}" if peer >= 0 else "")
        if name == "join":
            first = self.gather("NCCL's identity", moves.identity() if self.rank == 0 else b"")[0]
            self._wait_there(what, moves.join(first, self.rank, self.size))
            return
        to, of = self._places(name, dtype, (0, 0) if x is None else x, out)
        self._wait_there(what, moves.move(line, to, of))

    def _places(self, name, dtype, x, out):
        """({rank: (address, bytes) to send}, the same of what is received), this rank among both."""
        whole = x if name == "shares" else out
        item = kind_of(dtype, "all_sum")[0].itemsize
        ends = [end * item for end in self.bounds(whole[1] // item)]
        parts = {rank: (whole[0] + ends[rank], ends[rank + 1] - ends[rank]) for rank in range(self.size)}
        if name != "shares":
            return dict.fromkeys(range(self.size), x), parts
        length = parts[self.rank][1]
        return parts, {rank: (out[0] + rank * length, length) for rank in range(self.size)}

    def _wait_there(self, what, requests, peers=None):
        others = self._others() if peers is None else peers
        self.wait(what, dict.fromkeys(others, requests), self.devices, A_GPUS_LOOKS * A_LOOK)

    def wait(self, what: str, requests: dict[int, list[Any]], carrier: Any = None, length: int = 0) -> None:
        """Until messages are through. requests: {rank: of these}; length: bytes that are certain to be on their way, so
        that it is worth to look often: some transports move a few kilobytes at each look."""
        until, pause, turns = time.monotonic() + self.timeout, 0.0, 0
        carrier = self.carrier if carrier is None else carrier
        everything = [one for several in requests.values() for one in several]
        try:
            while not carrier.finished(everything):
                turns += 1
                if turns % 16 == 0:
                    self._check(what)
                    if time.monotonic() > until:
                        late = [self.ranks[rank] for rank, several in requests.items()
                                if not carrier.finished(several)]
                        raise Failed(f"rank {self.ranks[self.rank]} waited {self.timeout:g} s in {what} for "
                                     f"rank {', '.join(map(str, late))}")
                time.sleep(pause)
                if turns > 20 + length // A_LOOK:       # others may need the processor to get there
                    pause = min(pause + 1e-5, 5e-4)
        except BaseException:
            carrier.give_up(everything)         # the memory that they would fill is about to be another's
            raise

    def _check(self, what):
        for rank in self.ranks:
            cause, when = self._watch.failures.get(rank, ("", 0.0))
            if cause in (ENDED, LEFT) and time.monotonic() - when > GRACE:
                raise Failed(f"rank {rank} is lost, {cause}: rank {self.ranks[self.rank]} waited for it in {what}")
            if cause not in ("", ENDED, LEFT):
                raise Failed(cause.removeprefix("distributed: "))

    def _others(self):
        return [(self.rank + i) % self.size for i in range(1, self.size)]

    def _agree(self, what, line, key=""):
        """All say what they are about to do; Failed unless it is the same. key: says so too where a rank has forgotten
        the words."""
        mine = f"{key}\n{line}".encode()[:HEAD].ljust(HEAD)
        heads = {rank: bytearray(HEAD) for rank in self._others()}
        self.wait(what, {rank: self.carrier.receive(head, rank, HEADS) + self.carrier.send(mine, rank, HEADS)
                         for rank, head in heads.items()})
        heads[self.rank] = bytearray(mine)
        said = [heads[rank].decode(errors="replace").split("\n", 1) for rank in range(self.size)]
        keys, lines = zip(*said, strict=True)
        for rank in range(1, self.size):
            if lines[rank] != lines[0] and (not keys[0] or keys[rank] != keys[0]):
                said, first = (lines[i].strip().split(" ", 1) for i in (rank, 0))
                if said[1:] == first[1:]:
                    said, first = ["", f"operation {said[0]}"], ["", f"operation {first[0]}"]
                raise Failed(f"rank {self.ranks[rank]} is at {said[-1]}, rank {self.ranks[0]} at {first[-1]}")

    def _gather(self, what, x, out, length):
        out[self.rank * length:(self.rank + 1) * length] = x
        self.wait(what, {rank: self.carrier.receive(out[rank * length:(rank + 1) * length], rank, DATA)
                         + self.carrier.send(x, rank, DATA) for rank in self._others()}, length=len(out))

    def _reduce(self, what, name, dtype, x, out, scatter=False):
        import numpy as np  # groups of one process do without it
        item, combine = kind_of(dtype, name)
        values = np.frombuffer(x, item)
        ends = self.bounds(len(values))
        mine = np.empty((self.size, ends[self.rank + 1] - ends[self.rank]), item)
        mine[self.rank] = values[ends[self.rank]:ends[self.rank + 1]]
        self.wait(what, {rank: self.carrier.receive(bytes_of(mine[rank]), rank, DATA)
                         + self.carrier.send(bytes_of(values[ends[rank]:ends[rank + 1]]), rank, DATA)
                         for rank in self._others()}, length=len(x))
        total = mine[0]
        for rank in range(1, self.size):
            total = combine(total, mine[rank])
        made = np.frombuffer(out, item)
        if scatter:
            made[:] = total
            return
        made[ends[self.rank]:ends[self.rank + 1]] = total
        total = np.ascontiguousarray(total)
        self.wait(what, {rank: self.carrier.receive(bytes_of(made[ends[rank]:ends[rank + 1]]), rank, DATA)
                         + self.carrier.send(bytes_of(total), rank, DATA) for rank in self._others()}, length=len(x))

    def _between(self, name, peer, what, x, out):
        """A message from one rank to another, after a line that says what it is."""
        said = f"{name} of {what}"
        if name == "send":
            mine = what.encode()[:HEAD].ljust(HEAD)
            self.wait(said, {peer: self.carrier.send(mine, peer, SENT_HEADS) + self.carrier.send(
                x, peer, SENT_DATA)})
            out[:] = x
            return
        self._expect(said, peer, what)
        self.wait(said, {peer: self.carrier.receive(out, peer, SENT_DATA)})

    def _between_there(self, name, peer, what, x, out, line):
        said = f"{name} of {what}"
        if name == "send":
            mine = what.encode()[:HEAD].ljust(HEAD)
            self.wait(said, {peer: self.carrier.send(mine, peer, SENT_HEADS)})
            to, of = {peer: x, self.rank: x}, {self.rank: out}
        else:
            self._expect(said, peer, what)
            to, of = {}, {peer: out}
        self._wait_there(said, self.devices.move(line, to, of), [peer])

    def _expect(self, said, peer, what):
        """The line before a message: Failed unless it says what is expected."""
        head = bytearray(HEAD)
        self.wait(said, {peer: self.carrier.receive(head, peer, SENT_HEADS)})
        theirs = head.decode(errors="replace").strip()
        if theirs != what:
            raise Failed(f"rank {self.ranks[self.rank]} expects {what} of rank {self.ranks[peer]}, which sends "
                         f"{theirs}")


def split(link: Link, color: int, key: int) -> tuple[Link | None, list[int]]:
    """(the link to those with the same color, or None for one alone; their ranks in the group that is split)."""
    said = [json.loads(one) for one in link.gather("split", json.dumps([color, key, link.carrier.numbers()]).encode())]
    members = sorted((said[rank][1], rank) for rank in range(link.size) if said[rank][0] == color)
    ranks = [rank for _, rank in members]
    with link.lock:
        carrier = link.carrier.split(max(one[2] for one in said), color, key, ranks)
    if len(ranks) == 1:
        return None, ranks
    return Link(carrier, ranks.index(link.rank), [link.ranks[rank] for rank in ranks], link._watch,
                link.timeout), ranks


class Failed(RuntimeError):
    """An operation that cannot go on: its text names the rank."""


def bytes_of(values: Any) -> memoryview:
    return memoryview(values.view("u1")) if values.size else memoryview(bytearray())


def kind_of(dtype: str, name: str) -> tuple[Any, Callable[[Any, Any], Any]]:
    """(NumPy's dtype, how two arrays are combined): of bfloat16, which NumPy has not, in float32, rounded each time."""
    import numpy as np  # as above
    combine = {"all_sum": np.add, "all_max": np.maximum, "all_min": np.minimum}[name]
    if dtype != "bfloat16":
        return np.dtype("bool" if dtype == "bool_" else dtype), combine

    def rounded(a, b):
        with np.errstate(all="ignore"):
            made = combine(*((one.astype("u4") << 16).view("f4") for one in (a, b)))
        bits = made.view("u4")
        even = (bits + (0x7fff + (bits >> 16 & 1)).astype("u4")) >> 16
        return np.where(np.isnan(made), bits >> 16 | 0x40, even).astype("u2")

    return np.dtype("u2"), rounded
