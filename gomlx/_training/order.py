"""The order in which a run goes through its rows: epochs, steps, passes."""
from __future__ import annotations

import math
import random
from collections.abc import Sequence

from gomlx._training.data import Dataset, Row
from gomlx._training.settings import Settings


class Order:
    """Rows in passes, of which `accumulate` are a step. An epoch's order is drawn from the seed and its number alone:
    there is no state to save. least: rows that a step has at least, for which it takes more passes."""

    def __init__(self, data: Dataset, settings: Settings, least: int = 1) -> None:
        self.data, self.settings, self.least = data, settings, least
        self._last: tuple[int, list[list[Row]]] = -1, []

    def passes_of(self, epoch: int) -> list[list[Row]]:
        """All passes of an epoch."""
        if self._last[0] != epoch:
            draw = random.Random(f"{self.settings.seed}:{epoch}").random
            keys = [draw() for _ in range(len(self.data))]
            order = sorted(range(len(keys)), key=keys.__getitem__)
            self._last = epoch, passes([self.data[i] for i in order], self.settings)
        return self._last[1]

    def step(self, epoch: int, position: int) -> tuple[list[list[Row]], int, int]:
        """(the passes of the step there, the epoch and the position after it). A step does not cross an epoch's end."""
        found = self.passes_of(epoch)
        end = self._end(found, position)
        return (found[position:end], epoch, end) if end < len(found) else (found[position:], epoch + 1, 0)

    def _end(self, found, position):
        """Where the step that begins there ends."""
        end = min(position + self.settings.accumulate, len(found))
        while end < len(found) and sum(map(len, found[position:end])) < self.least:
            end += 1
        return len(found) if sum(map(len, found[end:end + self.least])) < self.least else end

    def _steps_of(self, epoch, share):
        """How many steps an epoch has, or the first share of its passes."""
        found, position, made = self.passes_of(epoch), 0, 0
        while position < math.ceil(share * len(found)):
            position, made = self._end(found, position), made + 1
        return made

    def epochs(self, epoch: int, position: int) -> float:
        """How often the rows were gone through there."""
        return epoch + (position / len(self.passes_of(epoch)) if position else 0)

    @property
    def steps(self) -> int:
        """How many steps the settings make of the rows."""
        if self.settings.steps is not None:
            return self.settings.steps
        epochs = 1.0 if self.settings.epochs is None else self.settings.epochs
        whole = math.floor(epochs)
        last = self._steps_of(whole, epochs - whole) if epochs > whole else 0
        if self.settings.batch_tokens is None:                  # each epoch has passes of the same lengths
            return (whole * self._steps_of(0, 1) if whole else 0) + last
        return sum(self._steps_of(epoch, 1) for epoch in range(whole)) + last


def passes(rows: Sequence[Row], settings: Settings) -> list[list[Row]]:
    """Rows one after another in passes, of so many rows or of so many tokens."""
    most = settings.batch_tokens
    if most is None:
        return [list(rows[at:at + settings.batch]) for at in range(0, len(rows), settings.batch)]
    made: list[list[Row]] = []
    left = 0
    for row in rows:
        if not made or row.tokens > left:
            made.append([])
            left = most
        made[-1].append(row)
        left -= row.tokens
    return made
