"""Which processes of a group are there: connections to rank 0 that end with their process.

A message on the way says nothing of a process that has died. So each rank keeps a connection to rank 0, which tells all
others when one ends, or when a rank reports that it has failed.
"""
from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
import time

ENDED, LEFT = "its process has ended", "its program has come to its end"       # LEFT: as it should
MOST = 1 << 16          # bytes of a line
HELLO = 256             # bytes that a rank says as it connects
PATIENCE = 10           # seconds that a peer may leave what it is told unread, when there is no more room for it


class Watch:
    """failures: {rank: (cause, when it was noticed)}. Is filled by threads that only read from sockets."""

    def __init__(self) -> None:
        self.failures: dict[int, tuple[str, float]] = {}
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._peers: dict[int, socket.socket] = {}
        self._open: set[int] = set()            # peers whose connection has not ended
        self._telling = 0                       # news that is known here and not yet told on
        os.register_at_fork(after_in_child=self._leave)

    def note(self, rank: int, cause: str, tell: bool = False) -> None:
        """Remembers what is heard of a rank first. tell: and tells the other peers."""
        with self._lock:
            if rank in self.failures:
                return
            self.failures[rank] = cause, time.monotonic()
            self._telling += tell
        if tell:
            self._tell(rank, cause)
            with self._lock:
                self._telling -= 1

    def report(self, rank: int, cause: str) -> None:
        """This rank tells the others that it has failed."""
        self.note(rank, cause, True)

    def is_over(self, rank: int, size: int) -> bool:
        """Whether nothing more is to be heard of the others: all have ended, or one has failed. Nor is there anything
        to tell them: MPI's end may hold the GIL until they are at theirs."""
        with self._lock:
            if self._telling:
                return False
            others = [self.failures[one][0] for one in range(size) if one != rank and one in self.failures]
        return len(others) == size - 1 or any(one != LEFT for one in others)

    def peers(self) -> int:
        """How many connections there are."""
        return len(self._open)

    def leave(self, rank: int, size: int) -> None:
        """Says that this program is at its end, and waits for that of the others, who may hear of each other by it."""
        self.report(rank, LEFT)
        while self.peers() and not self.is_over(rank, size):
            time.sleep(0.002)

    def all_left(self) -> bool:
        """Whether nobody has failed."""
        with self._lock:
            return all(cause == LEFT for cause, _ in self.failures.values())

    def _tell(self, rank, cause):
        for peer in list(self._peers.values()):
            self._say(peer, rank, cause)

    def _say(self, peer, rank, cause):
        line = json.dumps({"rank": rank, "cause": cause[:2000]}).encode() + b"\n"
        try:
            with self._sending:                 # several readers may have news at once: a line is not torn
                peer.sendall(line)
        except OSError:                         # it has ended, or reads no more: its reader notes that
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _leave(self):
        """In a process that was forked off: the connections are its parent's, and end with that."""
        for peer in self._peers.values():
            os.close(peer.detach())
        self._peers, self._open = {}, set()

    def _read(self, peer, rank, others):
        """Takes lines of a peer until its connection ends. others: whether what it says is told on."""
        try:
            with peer.makefile("rb") as lines:
                for line in iter(lambda: lines.readline(MOST), b""):
                    said = json.loads(line)
                    self.note(said["rank"], said["cause"], others)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        self.note(rank, ENDED, others)
        self._open.discard(rank)

    def _follow(self, peer, rank, others):
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", PATIENCE, 0))
        with self._lock:
            self._peers[rank] = peer
            self._open.add(rank)
            known = [(one, cause) for one, (cause, _) in self.failures.items()] if others else []
        for one, cause in known:                # before it came
            self._say(peer, one, cause)
        threading.Thread(target=self._read, args=(peer, rank, others), daemon=True, name="gomlx watch").start()


def listen(here: bool) -> socket.socket:
    """Where the others connect. here: they are all on this host."""
    made = socket.socket()
    made.bind(("127.0.0.1" if here else "", 0))
    made.listen(1024)
    return made


def host(watch: Watch, listening: socket.socket, size: int, secret: str, timeout: float) -> None:
    """Rank 0 takes the connections of all others; those that do not know the secret are closed. TimeoutError names who
    is missing."""
    import hmac  # most programs are one process
    until = time.monotonic() + timeout
    with listening:
        while len(watch._peers) < size - 1:
            listening.settimeout(max(until - time.monotonic(), 0.001))
            try:
                peer, _ = listening.accept()
            except TimeoutError:
                missing = sorted(set(range(1, size)) - watch._peers.keys())
                raise TimeoutError(f"rank {missing[0]} has not connected to rank 0 in {timeout:g} s") from None
            try:
                peer.settimeout(5)
                said = _read_hello(peer).split(b" ")
                rank = int(said[1]) if hmac.compare_digest(said[0], secret.encode()) else -1
                if not 0 < rank < size or rank in watch._peers:
                    raise ValueError
                peer.settimeout(None)
                watch._follow(peer, rank, True)
            except (ValueError, IndexError, OSError):
                peer.close()


def _read_hello(peer):
    """What a rank says first, in however many pieces it comes."""
    found = b""
    while len(found) < HELLO:
        more = peer.recv(HELLO - len(found))
        if not more:
            raise ValueError
        found += more
    return found


def join(watch: Watch, addresses: list[str], port: int, rank: int, secret: str, timeout: float) -> None:
    """Another rank connects to rank 0."""
    failures = []
    for address in addresses:
        try:
            peer = socket.create_connection((address, port), timeout=min(timeout, 10))
            peer.sendall(f"{secret} {rank} ".encode().ljust(HELLO))
            peer.settimeout(None)
            watch._follow(peer, 0, False)
            return
        except OSError as error:
            failures.append(f"{address}: {error}")
    raise TimeoutError(f"rank {rank} cannot connect to rank 0 ({'; '.join(failures)})")
