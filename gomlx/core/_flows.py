"""Messages between the ranks of a group that travel while the processes compute."""
from __future__ import annotations

import threading
from typing import Any

from gomlx.core._collectives import FLOWING, Link

PAUSE = 5e-4            # seconds between two looks at what is on the way


class Flow:
    """Between its beginning, which all ranks come to, and finish() nobody else may use the group. What goes to a rank
    arrives in the places that it expects, in their order. A thread moves messages on meanwhile: it takes the
    processor for as long as they need."""

    def __init__(self, link: Link, name: str) -> None:
        link.begin(name)
        self._link, self._name = link, name
        self._requests: dict[int, list[Any]] = {rank: [] for rank in range(link.size) if rank != link.rank}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._move, daemon=True, name="gomlx flow")
        self._thread.start()

    def expect(self, rank: int, place: Any) -> None:
        """The next bytes of a rank come into this place, which has as many."""
        with self._lock:
            self._requests[rank] += self._link.carrier.receive(place, rank, FLOWING)

    def give(self, rank: int, data: Any) -> None:
        """Bytes for a rank, which stay as they are until finish."""
        with self._lock:
            self._requests[rank] += self._link.carrier.send(data, rank, FLOWING)

    def _move(self):
        while not self._over.wait(PAUSE):
            try:
                with self._lock:
                    self._link.carrier.finished([one for several in self._requests.values() for one in several])
            except BaseException as error:
                self._error = error
                return

    def _stop(self):
        self._over.set()
        self._thread.join()

    def finish(self) -> None:
        """Waits until all is through; RuntimeError as of operations."""
        self._stop()
        self._link.end_of(self._name, self._requests, self._error)

    def give_up(self) -> None:
        """This rank has nothing more for the others, which is for the caller to tell them."""
        self._stop()
        self._link.carrier.give_up([one for several in self._requests.values() for one in several])
