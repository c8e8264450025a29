"""Workers of Ray that compute the losses and gradients of a run's rows.

The run itself is here: its parameters go out with each step, what each row gives to them comes back through Ray's
object store, and is added in the order of rows. A worker keeps nothing between steps, so that another one can take the
place of one that is lost, and gives the same bits.
"""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._base.places import on_the_processor
from gomlx._training import teams
from gomlx._training.distillation import StoredTeacher
from gomlx._training.identity import IDENTITY, difference, identity_of
from gomlx._training.order import passes
from gomlx._training.work import Known, Task, Work
from gomlx.loading import load


@dataclasses.dataclass(frozen=True)
class ScalingOptions:
    """What Ray is asked for, in gomlx.train(..., ray=ScalingOptions(workers=4)).

    workers         how many, each with the model, which it loads from the path that it has here
    cpus            cores of each, and its threads
    load_options    more of gomlx.load() in a worker
    replacements    how many lost workers are replaced before the run ends with RuntimeError
    """
    workers: int
    cpus: int = 1
    load_options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    replacements: int = 8

    def __post_init__(self) -> None:
        for name, least in (("workers", 1), ("cpus", 1), ("replacements", 0)):
            arguments.integer(name, getattr(self, name), least, 2**20)
        arguments.mapping("load_options", self.load_options)


class Worker:
    """In a process of Ray: the model, and one share of a task after another. expected: the driver's identity."""

    def __init__(self, model: str, teacher: str | None, options: Mapping[str, Any], expected: Mapping[str, Any],
                 **about: Any) -> None:
        known: Any = None
        if teacher is not None:
            known = StoredTeacher(teacher) if teacher.endswith(".safetensors") else load(teacher, **options)
        self._work = on_the_processor(Work)(load(model, **options), teacher=known, **about)  # type: ignore[arg-type]
        self._other = difference(identity_of(self._work.model), expected)

    @on_the_processor
    def share(self, what: str, task: Task, rank: int, size: int, measured: list[float]) -> tuple[str, Any]:
        """("found", what Work gives) of a rank's rows, or ("error", why the run ends)."""
        if self._other:
            return "error", f"train: a worker is not what the driver is: {self._other}"
        rows, first = teams.share_of(task, rank, size)
        parts = passes(rows, self._work.settings)
        try:
            if what == "measure":
                return "found", self._work.measure(task, parts, first)
            ready = self._work.prepare(task, measured)
            if what == "losses":
                return "found", self._work.losses(task, parts, first, ready)
            return "found", teams.by_row(self._work, task, rows, first, ready)
        except _gomlx.Error as error:
            return "error", str(error)


class Workers:
    """A team of Ray's workers. They are there from the first step on, until the run is closed."""
    rank = 0

    def __init__(self, options: ScalingOptions) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError("train: ray= needs the package ray: pip install 'gomlx[ray]'") from None
        self._ray: Any = ray
        self._options = options
        self._workers: list[Any] = []
        self._expected: dict[str, Any] = {}
        self._lost = 0

    def check(self, work: Work) -> None:
        teams.check_shareable(work)

    def gradients(self, work: Work, task: Task) -> teams.Gradients:
        found = self._shares(work, "gradients", task, self._measured(work, task))
        total = teams.in_order([one for one, _, _ in found])
        values, known = map(teams.joined, zip(*((more, about) for _, more, about in found)))
        return teams.named_parts(total, task.parameters), values, known

    def losses(self, work: Work, task: Task) -> tuple[list[float], Known]:
        values, known = map(teams.joined, zip(*self._shares(work, "losses", task, self._measured(work, task))))
        return values, known

    def _measured(self, work, task):
        return teams.joined(self._shares(work, "measure", task, [])) if work.objective.measures else []

    def _shares(self, work: Work, what: str, task: Task, measured: list[float]) -> list[Any]:
        """What each worker finds of its rows, in their order."""
        ray = self._ray
        if not ray.is_initialized():
            ray.init(include_dashboard=False)
        size = self._options.workers
        while len(self._workers) < size:
            self._workers.append(self._new(work))
        stored = ray.put(task)
        found: dict[int, Any] = {}
        waiting = {self._workers[i].share.remote(what, stored, i, size, measured): i for i in range(size)}
        while waiting:
            [done], _ = ray.wait(list(waiting), num_returns=1)
            i = waiting.pop(done)
            try:
                found[i] = ray.get(done)
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                self._replace(work, i, error)
                waiting[self._workers[i].share.remote(what, stored, i, size, measured)] = i
        for i in range(size):
            if found[i][0] == "error":
                raise _gomlx.Error(f"{found[i][1]} (worker {i})")
        return [found[i][1] for i in range(size)]

    def _new(self, work):
        options = {"threads": self._options.cpus, "progress": False} | dict(self._options.load_options)
        teacher = work.teacher
        if teacher is not None:
            teacher = os.path.abspath(teacher.path if isinstance(teacher, StoredTeacher) else teacher.info["path"])
        kind = self._ray.remote(Worker).options(num_cpus=self._options.cpus)
        return kind.remote(os.path.abspath(work.model.info["path"]), teacher, options, adapter=work.adapter,
                           settings=work.settings, expected=self._expected)

    def _replace(self, work, i, error):
        self._lost += 1
        if self._lost > self._options.replacements:
            raise RuntimeError(f"train: worker {i} of {self._options.workers} is lost, after "
                               f"{self._options.replacements} that were replaced: {error}")
        self._workers[i] = self._new(work)

    def meet(self, known: Mapping[str, Any]) -> None:
        """Workers compare themselves with what is known of the driver when they have loaded, those that come later
        too."""
        self._expected = {name: known[name] for name in known if name in IDENTITY}

    def failed(self, error: BaseException) -> None:
        pass

    def close(self) -> None:
        for one in self._workers:
            self._ray.kill(one)
        self._workers = []
