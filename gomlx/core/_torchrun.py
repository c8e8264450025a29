"""Groups of processes that torchrun has started, or whoever sets its environment: TCP between every two of them."""
from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

from gomlx.core import _watch
from gomlx.core._collectives import Link

RECORD = 1024           # bytes of what a rank says at first, and of each rank's line in the answer
FRAME = struct.Struct("<IQ")                    # tag, bytes
TAGS = 8                # of a group; those of the next one follow
UNASKED = 1 << 30       # bytes that are kept of messages of one rank that nobody has asked for; more are not read
SILENT = 5              # seconds in which a connection says who it is
NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


class Messages:
    """Bytes over sockets, {rank: socket}: what is asked for moves on in finished. number: of the group among those over
    these sockets; numbers: the last one of this process."""

    def __init__(self, peers: dict[int, socket.socket]) -> None:
        self._peers = {rank: _Peer(peer) for rank, peer in peers.items()}
        self._number, self._numbers = 0, [0]

    def send(self, data: Any, rank: int, tag: int) -> list[Any]:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        made = _Request(view)
        head = FRAME.pack(self._number * TAGS + tag, len(view))
        self._peers[rank].outgoing.append((made, [memoryview(head), view]))
        return [made]

    def receive(self, data: Any, rank: int, tag: int) -> list[Any]:
        made = _Request(memoryview(data).cast("B") if len(data) else memoryview(b""))
        self._peers[rank].wanted.setdefault(self._number * TAGS + tag, []).append(made)
        return [made]

    def numbers(self) -> int:
        return self._numbers[0]

    def split(self, number: int, color: int, key: int, ranks: Sequence[int]) -> Messages:
        made = Messages({})
        made._peers = {i: self._peers[rank] for i, rank in enumerate(ranks) if rank in self._peers}
        self._numbers[0] = made._number = number + 1
        made._numbers = self._numbers
        return made

    def finished(self, requests: list[Any]) -> bool:
        for peer in self._peers.values():
            peer.move()
        return all(one.done for one in requests)

    def give_up(self, requests: list[Any]) -> None:
        """The group has failed: what is on the way of an operation cannot be told from the next one's."""
        if not all(one.done for one in requests):
            for peer in self._peers.values():
                peer.close()


class _Request:
    __slots__ = ("done", "view")

    def __init__(self, view):
        self.view, self.done = view, False


class _Peer:
    """One connection. A message that nobody has asked for yet is kept, or a long one left where it is."""

    def __init__(self, peer):
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket, self.outgoing, self.wanted, self.unasked = peer, [], {}, {}
        self._begun, self._kept, self._tag, self._request = b"", 0, None, None
        self._waiting, self._data, self._view = None, None, memoryview(b"")     # _waiting: bytes of what has no place

    def close(self):
        self.socket.close()
        self.outgoing, self.wanted = [], {}

    def move(self):
        """As much as goes without waiting. A connection that has ended says nothing: the watch tells of its process."""
        self._take()
        if self.socket.fileno() < 0:
            return
        try:
            while self.outgoing:
                request, parts = self.outgoing[0]
                while parts:
                    sent = self.socket.send(parts[0]) if len(parts[0]) else 0
                    parts[0] = parts[0][sent:]
                    if not len(parts[0]):
                        parts.pop(0)
                request.done = True
                self.outgoing.pop(0)
        except BlockingIOError:
            pass
        except OSError:
            self.socket.close()
            return
        try:
            while self._read():
                pass
        except BlockingIOError:
            pass
        except OSError:
            self.socket.close()
        self._take()

    def _take(self):
        """Gives those that ask what has come before."""
        for tag, kept in self.unasked.items():
            wanted = self.wanted.get(tag, [])
            while kept and wanted:
                data, request = kept.pop(0), wanted.pop(0)
                self._kept -= len(data)
                _fits(len(data), request)
                if data:                        # nothing cannot be written, even in memory of no bytes
                    request.view[:] = data
                request.done = True

    def _read(self):
        """One piece of a message; whether there may be more."""
        if self._tag is None:
            more = self.socket.recv(FRAME.size - len(self._begun))
            if not more:
                raise OSError("ended")
            self._begun += more
            if len(self._begun) < FRAME.size:
                return True
            (self._tag, self._waiting), self._begun = FRAME.unpack(self._begun), b""
        if self._waiting is not None and not self._start(self._waiting):
            return False
        if len(self._view):
            count = self.socket.recv_into(self._view)
            if not count:
                raise OSError("ended")
            self._view = self._view[count:]
        if not len(self._view):
            if self._request is None:
                self.unasked.setdefault(self._tag, []).append(self._data)
            else:
                self._request.done = True
            self._tag = self._request = self._data = None
        return True

    def _start(self, length):
        """Whether there is a place for the message whose head has come. Else it stays in the socket, and its sender
        waits, until it is asked for: so memory has a bound, whatever a rank sends before others are there."""
        self._take()
        wanted = self.wanted.get(self._tag, [])
        if wanted:
            self._request = wanted.pop(0)
            _fits(length, self._request)
            self._view = self._request.view
        elif self._kept + length > UNASKED:
            return False
        else:
            self._kept += length
            self._data = bytearray(length)
            self._view = memoryview(self._data)
        self._waiting = None
        return True


def _fits(length, request):
    if length != len(request.view):
        raise RuntimeError(f"a message of {length} bytes came, expected {len(request.view)}")


def place() -> tuple[int, int, str, int] | None:
    """(rank, size, address, port) of torchrun's environment, or None where it is not there."""
    if any(name not in os.environ for name in NAMES):
        return None
    try:
        rank, size, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    except ValueError:
        raise ValueError("distributed: RANK, WORLD_SIZE and MASTER_PORT are expected to be numbers") from None
    if not 0 <= rank < size or not 0 < port < 65535:
        raise ValueError(f"distributed: RANK {rank} of WORLD_SIZE {size} at MASTER_PORT {port} is not possible")
    at_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"     # torchrun's own store has the port
    return rank, size, os.environ["MASTER_ADDR"], port + at_agent


def world(version: str, timeout: float, rank: int, size: int, address: str, port: int) -> Link:
    """The link to all processes; RuntimeError that names a rank that does not come."""
    watch, until = _watch.Watch(), time.monotonic() + timeout
    listening = socket.create_server(("", 0), backlog=1024)
    watching = _watch.listen(False) if rank == 0 else None
    mine = {"rank": rank, "version": version, "port": listening.getsockname()[1]}
    with listening:
        try:
            if watching is not None:
                first = {"port": watching.getsockname()[1], "secret": os.urandom(16).hex()}
                peers, table = _host(mine | first, size, port, until)
                _watch.host(watch, watching, size, first["secret"], timeout)
            else:
                peers, table = _join(mine, size, address, port, until)
                _watch.join(watch, [address], table[0]["port"], rank, table[0]["secret"], timeout)
                _mesh(peers, _reached(table, address), rank, listening, until)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RuntimeError(f"distributed: rank {rank}: {error}") from None
    atexit.register(_finish, watch, rank, size, os.getpid())
    return Link(Messages(peers), rank, range(size), watch, timeout)


def _finish(watch, rank, size, process):
    """A process that was forked off has no end of its own."""
    if os.getpid() == process:
        watch.leave(rank, size)


def _host(mine, size, port, until):
    """Rank 0 hears of all others, and tells them all."""
    peers, table = {}, {0: mine}
    with socket.create_server(("", port), backlog=1024) as meeting, \
            contextlib.closing(_heard(meeting, RECORD, until)) as heard:
        while len(peers) < size - 1:
            peer, host, text = next(heard, (None, "", b""))
            if peer is None:
                missing = sorted(set(range(size)) - table.keys())
                raise TimeoutError(f"rank {missing[0]} has not come to rank 0 at port {port}")
            try:
                said = json.loads(text)
                rank = int(said["rank"])
                if not 0 < rank < size or rank in peers:
                    raise ValueError("another rank")
                peers[rank], table[rank] = peer, said | {"host": host}
            except (ValueError, KeyError, TypeError, RecursionError):
                peer.close()
    line = json.dumps([table[rank] for rank in range(size)]).encode()
    for peer in peers.values():
        peer.sendall(line.ljust(RECORD * size))
    return peers, _checked([table[rank] for rank in range(size)])


def _heard(meeting, length, until):
    """(connection, its host, the first bytes it says) of each that comes, until then. All are heard side by side, so
    that strangers who say nothing hold up nobody."""
    meeting.setblocking(False)
    with selectors.DefaultSelector() as ready:
        ready.register(meeting, selectors.EVENT_READ)
        try:
            while (left := until - time.monotonic()) > 0:
                for key, _ in ready.select(min(left, SILENT)):
                    if key.fileobj is meeting:
                        _accept(meeting, ready)
                    elif _hear(key.fileobj, key.data[1], length, ready):
                        yield key.fileobj, key.data[0], bytes(key.data[1])
                for peer in [one.fileobj for one in ready.get_map().values() if one.data is not None]:
                    if time.monotonic() > ready.get_key(peer).data[2]:
                        _close(peer, ready)
        finally:
            for peer in [one.fileobj for one in ready.get_map().values() if one.data is not None]:
                peer.close()


def _accept(meeting, ready):
    try:
        peer, (host, _) = meeting.accept()
    except (BlockingIOError, ConnectionError):      # it has gone again
        return
    peer.setblocking(False)
    ready.register(peer, selectors.EVENT_READ, (host, bytearray(), time.monotonic() + SILENT))


def _hear(peer, found, length, ready):
    """Whether a connection has said all of its first bytes."""
    try:
        more = peer.recv(length - len(found))
    except BlockingIOError:
        return False
    except OSError:
        more = b""
    found += more
    if len(found) == length:
        ready.unregister(peer)
        peer.settimeout(SILENT)
        return True
    if not more:
        _close(peer, ready)
    return False


def _close(peer, ready):
    ready.unregister(peer)
    peer.close()


def _join(mine, size, address, port, until):
    peer = _connect(address, port, 0, until)
    peer.sendall(json.dumps(mine).encode().ljust(RECORD))
    peer.settimeout(max(until - time.monotonic(), 0.001))
    return {0: peer}, _checked(json.loads(_whole(peer, RECORD * size)))


def _checked(table):
    for rank, one in enumerate(table):
        if one["version"] != table[0]["version"]:
            raise ValueError(f"rank {rank} has gomlx {one['version']}, rank 0 {table[0]['version']}")
    return table


def _reached(table, address):
    """With hosts at which every rank is reached from everywhere. One that comes to rank 0 over the loopback is on its
    host, which Debian calls 127.0.1.1 there: the others, to which that is themselves, take MASTER_ADDR for it."""
    return [one | {"host": address} if one.get("host", "127.").startswith("127.") else one for one in table]


def _mesh(peers, table, rank, listening, until):
    """Each rank connects to those before it, and is met by those after it."""
    for other in range(1, rank):
        peers[other] = _connect(table[other]["host"], table[other]["port"], other, until)
        peers[other].sendall(FRAME.pack(rank, 0))
    with contextlib.closing(_heard(listening, FRAME.size, until)) as heard:
        while len(peers) < len(table) - 1:
            peer, _, text = next(heard, (None, "", b""))
            if peer is None:
                missing = sorted(set(range(len(table))) - peers.keys() - {rank})
                raise TimeoutError(f"rank {missing[0]} has not come to rank {rank}")
            other = FRAME.unpack(text)[0]
            if rank < other < len(table) and other not in peers:
                peers[other] = peer
            else:
                peer.close()


def _connect(address, port, rank, until):
    """To a rank that may not listen yet."""
    while True:
        try:
            return socket.create_connection((address, port), timeout=max(min(until - time.monotonic(), 10), 0.001))
        except OSError as error:
            if time.monotonic() > until:
                raise TimeoutError(f"rank {rank} does not answer at {address}:{port} (ranks listen on IPv4 alone): "
                                   f"{error}") from None
            time.sleep(0.05)


def _whole(peer, length):
    found = b""
    while len(found) < length:
        more = peer.recv(length - len(found))
        if not more:
            raise ValueError("a rank has gone while the group was made")
        found += more
    return found
