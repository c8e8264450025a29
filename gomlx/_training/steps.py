"""TrainingRun: steps that can be stopped, looked at, evaluated and resumed.

 (1) A step is all or nothing: parameters, optimiser and place in the data change together, after all is computed.
 (2) What a step does depends on the settings, the data and the state before it alone, so that a run that goes on from a
     saved state has the bits of one that was never stopped.
 (3) Sequences stand in a pass one after another, ragged: there is no padding, and none sees another.
"""
from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import gomlx.core as mx
from gomlx import _gomlx, optimizers
from gomlx._base import bars, notebook
from gomlx._base.places import on_the_processor
from gomlx._files import adapters
from gomlx._training import losses
from gomlx._training.adapter import Adapter
from gomlx._training.boards import Boards
from gomlx._training.config import with_parameters
from gomlx._training.data import Dataset, load_data
from gomlx._training.distillation import StoredTeacher
from gomlx._training.identity import identity_of
from gomlx._training.order import Order, passes
from gomlx._training.runs import STATE, RunFolder, flat_state, tree_state
from gomlx._training.settings import Evaluation, Settings, Step, new_optimizer
from gomlx._training.stored import SAME_MODEL, checked_arrays
from gomlx._training.teams import Alone, Team
from gomlx._training.work import Task, Work, means, named

if TYPE_CHECKING:
    from gomlx._generation.model import Model

Data = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | Dataset
SAVE_SECONDS = 60.0             # after so long the state is saved, however few the steps


def dataset_of(data: Data, model: Model, settings: Settings, split: str) -> Dataset:
    """The data as a run's settings have it read."""
    if isinstance(data, Dataset):
        return data
    return load_data(data, model, split=split, mask=settings.mask, max_tokens=settings.max_tokens,
                     too_long=settings.too_long, template=settings.template, template_args=settings.template_args)


class TrainingRun(Iterator[Step]):
    """The steps of a fine-tuning; train() makes it. Each next() does one step.

    adapter     what was learnt so far: an Adapter
    data, eval_data     the Datasets
    history     the Steps so far, those before a resume among them
    steps       how many there will be
    folder      the path of the run's folder, or None
    stopped_by  None while it runs; then "steps", "patience" or "stop"
    """

    def __init__(self, model: Model, data: Dataset, evals: Dataset | None, settings: Settings, adapter: Adapter,
                 teacher: Model | StoredTeacher | None, progress: bars.Progress, team: Team | None = None) -> None:
        self._team: Team = team or Alone()
        self.model, self.data, self.eval_data, self.settings = model, data, evals, settings
        self.history: list[Step] = []
        self.stopped_by: str | None = None
        self._adapter, self._parameters = adapter, adapter.parameters()
        self._folder: RunFolder | None = None
        self._boards: Boards | None = None
        self._make(teacher)
        self._team.check(self._work)
        for rows in (data, evals) if evals is not None else (data,):
            check_rows(rows, self._work.objective, settings)
            self._work.objective.check(rows)
        self._epoch, self._position, self._step = 0, 0, 0
        self._best: float | None = None
        self._waited = 0                        # evaluations since the best one
        self._order = Order(data, settings, self._work.objective.least_rows)
        self.steps = self._order.steps
        self._saved, self._saved_at = -1, time.monotonic()
        self._written = 0                       # Steps that are in the folder's metrics
        self._bar = contextlib.ExitStack()
        self._progress = progress
        self._report: Callable[[float], object] | None = None
        self._begun = False
        self._kept: weakref.finalize[..., Any] | None = None

    @on_the_processor
    def _make(self, teacher: Model | StoredTeacher | None) -> None:
        self._work = Work(self.model, self._adapter, self.settings, teacher)
        self._optimizer = new_optimizer(self.settings)

    # ---- what can be asked ----

    @staticmethod
    def config_of(folder: str | os.PathLike[str]) -> dict[str, Any]:
        """What the config.json of a run's folder says of it, checked: "model", "settings", "lora", "data" and
        "eval_data". FileNotFoundError where it is not a run's; gomlx.Error says what is wrong in it."""
        return RunFolder(folder).read_config()

    @property
    def step(self) -> int:
        """How many steps are done."""
        return self._step

    @property
    def adapter(self) -> Adapter:
        return with_parameters(self._adapter, self._parameters)

    @property
    def folder(self) -> str | None:
        return self._folder.path if self._folder is not None else None

    @property
    def rank(self) -> int:
        """The number of this process among those that train together; 0 alone has a folder."""
        return self._team.rank

    @property
    def losses(self) -> list[float]:
        """The loss of each step."""
        return [one.loss for one in self.history]

    def evaluate(self, data: Data | None = None) -> Evaluation:
        """The loss over eval_data, or over other data, with the adapter as it is now."""
        rows = self.eval_data if data is None else dataset_of(data, self.model, self.settings, "test")
        if rows is None:
            raise ValueError("evaluate: no data: neither given, nor eval_data in train()")
        check_rows(rows, self._work.objective, self.settings)
        self._work.objective.check(rows)
        return self._evaluated(rows)

    @on_the_processor
    def _evaluated(self, rows: Dataset) -> Evaluation:
        task = Task(self._parameters, passes(rows.rows, self.settings), self._step, "", 1)
        values, known = self._team.losses(self._work, task)
        loss = math.fsum(values) / self._work.objective.total(rows.rows)
        perplexity = math.exp(min(loss, 700)) if self.settings.loss == "sft" else None
        return Evaluation(loss, perplexity, len(rows), rows.targets, means(known))

    # ---- steps ----

    def __iter__(self) -> TrainingRun:
        return self

    def __next__(self) -> Step:
        if self.stopped_by is not None or self._step >= self.steps:
            self.stopped_by = self.stopped_by or "steps"
            self.close()
            if self._folder is not None and self.history:
                self._folder.draw_curve(*self._points())
            raise StopIteration
        if not self._begun:
            self._report = self._bar.enter_context(bars.reporting(self._progress, "training", self.steps))
            self._begun = True
            _gomlx.keep_memory(True)                # what a step frees is for the next one
            self._kept = weakref.finalize(self, _gomlx.keep_memory, False)
        try:
            record = self._advance()
            self._keep(record)
        except BaseException as error:
            self._team.failed(error)
            if isinstance(error, KeyboardInterrupt):
                self.close()
            raise
        if self._report is not None:
            self._report(self._step / self.steps)
        return record

    def finish(self) -> TrainingRun:
        """Does the steps that are left."""
        for _ in self:
            pass
        return self

    def stop(self) -> None:
        """Ends the run after the step that was done last; what is saved can be resumed."""
        self.stopped_by = self.stopped_by or "stop"
        self.close()

    def close(self) -> None:
        """Saves what is not saved yet, takes the bar away and gives memory back."""
        self._bar.close()
        self._team.close()
        if self._kept is not None:
            self._kept()
        if self._folder is not None and self._saved != self._step:
            self.save()

    def __enter__(self) -> TrainingRun:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @on_the_processor
    def _advance(self) -> Step:
        """One step with its evaluation. All or nothing: what stops it leaves everything as it was."""
        before = (self._parameters, tree_state(flat_state(self._optimizer.state)), self._epoch, self._position,
                  self._step, self._best, self._waited, self.stopped_by)
        try:
            record = self._move()
            every = self.settings.eval_every
            if self.eval_data is not None and (self._step >= self.steps or every and self._step % every == 0):
                record = dataclasses.replace(record, eval_loss=self.evaluate().loss)
                self._compare(record.eval_loss)
        except BaseException:
            (self._parameters, self._optimizer.state, self._epoch, self._position, self._step, self._best,
             self._waited, self.stopped_by) = before
            raise
        return record

    def _move(self) -> Step:
        started = time.perf_counter()
        mx.reset_peak_memory(mx.cpu)
        parts, self._epoch, self._position = self._order.step(self._epoch, self._position)
        rows = [row for part in parts for row in part]
        total = self._work.objective.total(rows)
        draw = f"{self.settings.seed}:{self._step}:"
        gradients, values, known = self._team.gradients(self._work, Task(self._parameters, parts, self._step + 1, draw,
                                                                         total))
        gradients = {name: one.astype(self._parameters[name].dtype) for name, one in gradients.items()}
        rate = self.settings.rate(self._step, self.steps)
        norm = self._update(gradients, rate, rows)
        self._step += 1
        epochs = round(self._order.epochs(self._epoch, self._position), 4)
        return Step(self._step, epochs, math.fsum(values) / total, len(rows),
                    sum(row.tokens for row in rows), sum(row.targets for row in rows), rate, norm,
                    time.perf_counter() - started, mx.get_peak_memory(mx.cpu), metrics=means(known))

    def _update(self, gradients, rate, rows):
        """Moves the parameters; returns the gradients' norm."""
        most = self.settings.clip if self.settings.clip is not None else math.inf
        clipped, norm = optimizers.clip_grad_norm(gradients, most)
        self._optimizer.learning_rate = rate
        moved = self._optimizer.apply_gradients(gradients if self.settings.clip is None else clipped, self._parameters)
        _gomlx.eval_or_drop(moved, self._optimizer.state, norm)
        if not math.isfinite(norm.item()):
            raise _gomlx.Error(f"step {self._step + 1}: the gradient is {norm.item()}; its rows: {named(rows)}")
        if not all_finite(moved):
            raise _gomlx.Error(f"step {self._step + 1}: the parameters are no longer finite after it; learning_rate is "
                               f"{rate:g}")
        self._parameters = moved
        return norm.item()

    def _keep(self, record):
        """What follows a step: its metrics and, now and then, the state."""
        self.history.append(record)
        if self._folder is None:
            return
        self._write_metrics(self._folder)
        if self._step >= self.steps or self.stopped_by or self._step % self.settings.save_every == 0 or \
                time.monotonic() - self._saved_at > SAVE_SECONDS:
            self.save()

    def _write_metrics(self, folder):
        """Before the state: that may be older than they are, never newer."""
        folder.append([dataclasses.asdict(one) for one in self.history[self._written:]])
        self._written = len(self.history)
        if self._boards is not None:
            self._boards.show(self.history)

    def _compare(self, loss):
        if math.isfinite(loss) and (self._best is None or loss < self._best):
            self._best, self._waited = loss, 0
            if self._folder is not None and self.settings.eval_every is not None:
                adapters.save_adapter(self.adapter, self._folder.file("best"))
            return
        self._waited += 1
        if self.settings.patience is not None and self._waited >= self.settings.patience:
            self.stopped_by = "patience"

    # ---- the folder ----

    @on_the_processor
    def _meet(self):
        """All that train together have begun the same."""
        state = hashlib.blake2b()
        for one in (*self._parameters.values(), *flat_state(self._optimizer.state).values()):
            state.update(memoryview(mx.contiguous(one.reshape(-1)).view(mx.uint8)))
        about = {name: getattr(self.settings, name) for name in self.settings.__dataclass_fields__ if name != "logs"}
        self._team.meet({"settings": about, "data": self.data.fingerprint,
                         "eval_data": self.eval_data.fingerprint if self.eval_data is not None else None,
                         **identity_of(self.model),
                         "state": [self._step, self._epoch, self._position, state.hexdigest()]})

    def _begin(self, folder, config):
        folder.create({"model": description(self.model), "settings": dataclasses.asdict(self.settings),
                       "adapter": scales_of(self._adapter), **config})
        self._folder, self._boards = folder, Boards(folder, self.settings.logs)

    @on_the_processor
    def _go_on(self, folder, state):
        if state is not None:
            self._take(folder.file(STATE), *state)
        found = folder.read_metrics(self._step)
        self.history, self._written = [Step(**one) for one in found], len(found)
        if self.rank == 0:
            folder.write_metrics(found)
            self._folder, self._boards = folder, Boards(folder, self.settings.logs)

    def save(self) -> None:
        """Writes the state, the adapter and the curve into the run's folder. Where that fails, what was saved before is
        unchanged, and the run may go on."""
        if self._folder is None:
            raise ValueError("save: the run has no folder: run= in train()")
        self._write_metrics(self._folder)
        arrays = {f"parameters/{name}": value for name, value in self._parameters.items()}
        arrays |= {f"optimizer/{name}": value for name, value in flat_state(self._optimizer.state).items()}
        self._folder.save_state(arrays, {"step": self._step, "epoch": self._epoch, "position": self._position,
                                         "best": self._best, "waited": self._waited})
        self._saved, self._saved_at = self._step, time.monotonic()
        adapters.save_adapter(self.adapter, self._folder.file("adapter"))
        if self.history:
            self._folder.write_curve(*self._points())

    def _points(self):
        """(steps and their losses, steps and their evaluations)."""
        return ([(one.step, one.loss) for one in self.history],
                [(one.step, one.eval_loss) for one in self.history if one.eval_loss is not None])

    def _take(self, path, arrays, known):
        """Goes on from a saved state."""
        fresh = new_optimizer(self.settings)
        fresh.init(self._parameters)
        parameters = {name: value for name, value in arrays.items() if not name.startswith("optimizer/")}
        state = {name: value for name, value in arrays.items() if name.startswith("optimizer/")}
        checked_arrays(path, parameters, {f"parameters/{name}": value for name, value in self._parameters.items()},
                       all_of_them=True)
        checked_arrays(path, state, {f"optimizer/{name}": value for name, value in flat_state(fresh.state).items()},
                       all_of_them=known["step"] > 0)
        if known["position"] and known["position"] >= len(self._order.passes_of(known["epoch"])):
            raise _gomlx.Error(f"{path}: position is {known['position']}, expected less than "
                               f"{len(self._order.passes_of(known['epoch']))}, the passes of an epoch")
        self._parameters = {name: arrays[f"parameters/{name}"] for name in self._parameters}
        self._optimizer.state = tree_state({name.removeprefix("optimizer/"): value for name, value in state.items()})
        self._step, self._epoch, self._position = known["step"], known["epoch"], known["position"]
        self._best, self._waited, self._saved = known["best"], known["waited"], known["step"]
        if self.settings.patience is not None and self._waited >= self.settings.patience:
            self.stopped_by = "patience"

    def __repr__(self) -> str:
        last = f", loss {self.history[-1].loss:.4f}" if self.history else ""
        return f"<TrainingRun {self._step} of {self.steps} steps{last}, {self._adapter.count:,} parameters>"

    def _repr_html_(self) -> str:
        return notebook.training_run(self)


def check_rows(rows: Dataset, objective: losses.Objective | type[losses.Objective], settings: Settings) -> None:
    """ValueError where the rows are none, or none of the loss."""
    if not len(rows):
        raise ValueError(f"{rows.source}: no rows, expected one at least")
    if rows.kind not in objective.kinds:
        needs = {"preference": "rows with prompt, chosen and rejected",
                 "label": "rows with prompt, completion and label"}
        raise ValueError(f"loss={settings.loss!r} needs {needs.get(objective.kinds[0], 'texts or conversations')}, "
                         f"{rows.source} has rows of kind {rows.kind}")
    if len(rows) < objective.least_rows or settings.batch_tokens is None and \
            settings.batch * settings.accumulate < objective.least_rows:
        raise ValueError(f"loss={settings.loss!r} needs {objective.least_rows} rows in a step at least")


def all_finite(arrays: Mapping[str, mx.array]) -> bool:
    """Whether all numbers of all arrays are finite."""
    return bool(mx.stack([mx.all(mx.isfinite(one)) for one in arrays.values()]).all().item())


def scales_of(adapter):
    return {"scales": {layer: term.scale for layer, term in adapter.terms.items()}, "whole": list(adapter.full),
            "meta": adapter.meta}


def description(model):
    return {"path": model.info["path"]} | {name: model.info[name] for name in SAME_MODEL}
