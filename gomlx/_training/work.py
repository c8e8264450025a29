"""What is computed of the rows of a step or of an evaluation, whoever computes it."""
from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._training import losses
from gomlx._training.data import Row
from gomlx._training.distillation import Distillation, StoredTeacher
from gomlx._training.settings import Settings

if TYPE_CHECKING:
    from gomlx._generation.model import Model
    from gomlx._training.adapter import Adapter

Known = dict[str, list[float]]          # what is known of each row besides its loss, by name


@dataclass(frozen=True)
class Task:
    """Rows in passes, and what they are computed with. step: the one that they belong to, from 1 on. draw: of what is
    left out. total: what the loss is divided by."""
    parameters: dict[str, mx.array]
    passes: list[list[Row]]
    step: int
    draw: str
    total: float

    @property
    def rows(self) -> list[Row]:
        return [row for part in self.passes for row in part]


class Work:
    """A model and an adapter's form, which compute losses and gradients for any parameters. What it gives of a row does
    not depend on the rows beside it."""

    def __init__(self, model: Model, adapter: Adapter, settings: Settings,
                 teacher: Model | StoredTeacher | None) -> None:
        self.model, self.adapter, self.settings, self.teacher = model, adapter, settings, teacher
        self.forward = losses.Forward(model, adapter, settings.forward, settings.checkpoints)
        self.objective = objective(settings.loss, self.forward, model, teacher, settings.loss_options)

    def measure(self, task: Task, passes: Sequence[Sequence[Row]], first: int) -> list[float]:
        """What is computed of some of the task's rows, from row `first` on, before their losses."""
        return self.objective.measure(task.parameters, passes, task.rows[first - 1]) if passes else []

    def prepare(self, task: Task, measured: Sequence[float]) -> Any:
        """What losses and gradients need of all rows of the task, and of what was measured of them."""
        return self.objective.prepare(task.rows, measured)

    def losses(self, task: Task, passes: Sequence[Sequence[Row]], first: int, prepared: Any) -> tuple[list[float],
                                                                                                      Known]:
        """(the parts of the loss of some of the task's rows, what else is known of these)."""
        values: list[float] = []
        known: Known = {}
        for part in passes:
            found, more = self.objective.parts(task.parameters, part, first, prepared, None)
            _gomlx.eval_or_drop(found, more)
            values += found.tolist()
            add_known(known, {name: one.tolist() for name, one in more.items()})
            first += len(part)
        return values, known

    def gradients(self, task: Task, passes: Sequence[Sequence[Row]], first: int,
                  prepared: Any) -> tuple[dict[str, mx.array], list[float], Known]:
        """(float32 gradients of some of the task's rows, summed row by row in order; the parts of their loss; what else
        is known of them). gomlx.Error where a loss is not finite."""
        gradients: dict[str, mx.array] = {}
        values: list[float] = []
        known: Known = {}
        exact = exact_of(task)
        for part in passes:
            parts, more, gradients = self._graph(task, exact, part, first, prepared, gradients)
            _gomlx.eval_or_drop(parts, gradients, more)
            check_finite(task.step, parts.tolist(), part)
            values += parts.tolist()
            add_known(known, {name: one.tolist() for name, one in more.items()})
            first += len(part)
        return gradients, values, known

    def row_gradients(self, task: Task, row: Row, first: int, prepared: Any, pieces: Sequence[Sequence[str]],
                      take: Callable[[Mapping[str, mx.array], int], None]) -> tuple[list[float], Known]:
        """The same of one row, whose gradients are computed piece by piece, and taken when they are there: take(float32
        gradients, the number of the piece that has just come). pieces: names, the last layers' first."""
        parts, more, gradients = self._graph(task, exact_of(task), [row], first, prepared, {})
        for i, names in enumerate(pieces):
            _gomlx.eval_or_drop(parts, [gradients[name] for name in names], more)
            if i == 0:
                check_finite(task.step, parts.tolist(), [row])
            take(gradients, i)
        return parts.tolist(), {name: one.tolist() for name, one in more.items()}

    def _graph(self, task, exact, rows, first, prepared, sums):
        """(parts of the loss, what else is known, gradients), none of them computed yet."""
        self.forward.draw = task.draw
        scaled = functools.partial(self._scaled, rows=rows, first=first, prepared=prepared, total=task.total, sums=sums)
        (_, parts, more), gradients = mx.value_and_grad(scaled)(exact)
        return parts, more, gradients

    def _scaled(self, parameters, rows, first, prepared, total, sums):
        parts, known = self.objective.parts(parameters, rows, first, prepared, sums)
        return parts.sum() / total, parts, known


def exact_of(task: Task) -> dict[str, mx.array]:
    """Parameters in float32, as are sums of gradients."""
    return {name: one.astype(mx.float32) for name, one in task.parameters.items()}


def objective(name: str, forward: losses.Forward, model: Model, teacher: Model | StoredTeacher | None,
              options: Mapping[str, float]) -> losses.Objective:
    """The objective of a name; options are those of Settings, which are checked there."""
    check_teacher(name, teacher)
    if teacher is not None:
        return Distillation(forward, model, teacher, **options)
    return losses.OBJECTIVES[name](forward, **options)


def check_teacher(name: str, teacher: object) -> None:
    """ValueError unless there is a teacher where the loss of this name needs one."""
    if (teacher is not None) != (name == "distillation"):
        raise ValueError("loss='distillation' needs a teacher" if teacher is None else
                         f"a teacher belongs to loss='distillation', got {name!r}")


def check_finite(step: int, values: Sequence[float], rows: Sequence[Row]) -> None:
    """gomlx.Error with the rows whose loss is not a finite number."""
    wrong = [i for i, value in enumerate(values) if not math.isfinite(value)]
    if not wrong:
        return
    found: Sequence[Row] = rows
    if len(values) == sum(row.targets for row in rows):             # one value for each token that counts
        owners = [at for at, row in enumerate(rows) for _ in range(row.targets)]
        found = [rows[at] for at in dict.fromkeys(owners[i] for i in wrong)]
    elif len(values) == len(rows):
        found = [rows[i] for i in wrong]
    raise _gomlx.Error(f"step {step}: the loss is {values[wrong[0]]}; its rows: {named(found)}")


def named(rows: Sequence[Row]) -> str:
    return ", ".join(row.where for row in rows[:16]) + (f" and {len(rows) - 16} more" if len(rows) > 16 else "")


def add_known(known: Known, more: Mapping[str, Sequence[float]]) -> None:
    for name, one in more.items():
        known.setdefault(name, []).extend(one)


def means(known: Known) -> dict[str, float]:
    return {name: math.fsum(one) / len(one) for name, one in known.items()}
