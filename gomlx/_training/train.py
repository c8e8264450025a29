"""train(): the arguments of a run become its data, its adapter and its folder."""
from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from gomlx import _gomlx
from gomlx._base import arguments, bars
from gomlx._generation.model import Model
from gomlx._training.adapter import Adapter, Term, shapes_of
from gomlx._training.config import LoRAConfig, check_dropout, check_whole, lora_config, new_adapter
from gomlx._training.data import MAX_TOKENS, Dataset, Mask
from gomlx._training.distillation import StoredTeacher
from gomlx._training.ray_workers import ScalingOptions, Workers
from gomlx._training.runs import STATE, RunFolder
from gomlx._training.settings import Log, Loss, Schedule, Settings
from gomlx._training.steps import Data, TrainingRun, dataset_of
from gomlx._training.stored import SAME_MODEL
from gomlx._training.teams import Alone, Ranks
from gomlx.core import distributed

MAY_CHANGE = ("steps", "epochs", "save_every", "logs", "progress")      # when a run is resumed
OF_ROWS = ("mask", "max_tokens", "too_long", "template", "template_args")


def train(model: Model, data: Data | None = None, *, lora: LoRAConfig | Adapter | None = None, loss: Loss = "sft",
          loss_options: Mapping[str, float] | None = None, teacher: Model | str | os.PathLike[str] | None = None,
          steps: int | None = None, epochs: float | None = None, batch: int = 4, batch_tokens: int | None = None,
          accumulate: int = 1, optimizer: str = "adamw", optimizer_options: Mapping[str, Any] | None = None,
          learning_rate: float = 1e-4,
          schedule: Schedule = "constant", warmup: int = 0, clip: float | None = 1.0, eval_data: Data | None = None,
          eval_every: int | None = None, patience: int | None = None, mask: Mask = "assistant",
          max_tokens: int = MAX_TOKENS, too_long: Literal["cut", "drop"] = "cut", template: bool = True,
          template_args: Mapping[str, Any] | None = None, checkpoints: bool = False,
          forward: Literal["exact", "int8", "bf16"] = "exact", seed: int = 0,
          run: str | os.PathLike[str] | None = None, save_every: int = 10, logs: Sequence[Log] = (),
          resume: str | os.PathLike[str] | None = None, progress: bars.Progress = True,
          group: distributed.Group | None = None, ray: ScalingOptions | None = None) -> TrainingRun:
    """Fine-tunes a loaded model: low-rank terms on its weights as they are, quantised or not. Returns a TrainingRun, an
    iterator of Steps; .finish() does all of them, .adapter is what was learnt.

    data            a file, a folder, dicts, or a Dataset of load_data(), which says what rows there may be
    lora            a LoRAConfig (LoRAConfig() when None), or an Adapter to go on from; adapters that the model was
                    loaded with, its model.adapter, take no part
    loss            "sft", the mean cross entropy of the tokens that count; "dpo" and "orpo" of preferences; "kto" of
                    answers with a label; "distillation" from a teacher, a Model with the same vocabulary or what
                    lora.save_teacher() wrote of one
    loss_options    beta (0.1), and for dpo label_smoothing, for kto desirable_weight and undesirable_weight, for
                    distillation temperature
    steps, epochs   how many; one epoch when neither is given
    batch           sequences (or pairs) of a pass; with batch_tokens as many as have at most so many tokens together
    accumulate      passes of a step
    optimizer       a name: "adamw" (with bias correction), "adam", "sgd", "lion", "adafactor", "muon", ...; its
                    optimizer_options are the arguments of the class in gomlx.optimizers
    schedule        of the rate after `warmup` steps: "constant", or "linear" or "cosine" down to 0 at the last step
    clip            the largest norm of all gradients together; None for any
    eval_data       evaluated every eval_every steps and at the end; of a folder with valid.jsonl that, when None
    patience        ends the run after so many evaluations that are no better than the best one, whose adapter is kept
    mask, max_tokens, too_long, template, template_args     as in load_data(), and not beside a Dataset
    checkpoints     keep less between forward and backward and compute it again: the same bits in less memory
    forward         "exact": float32 activations; "int8": rounded as generating has them, faster with quantised weights;
                    "bf16": the model's matrices, what they multiply and both sides of attention's products are rounded
                    to bfloat16, forwards and backwards, and sums are float32: the fastest where the processor has AMX,
                    slow elsewhere
    seed            of the order of rows
    run             a new folder for the state, metrics, the curve and the adapter, saved every save_every steps
    logs            of "tensorboard" and "trackio": metrics in that folder as events for TensorBoard, as a table for
                    trackio.import_csv
    resume          such a folder: the run goes on, to the same bits as if it had not stopped. Settings are the run's
                    own; steps and epochs may be others, data and eval_data must be the same ones (and be given
                    where they have no path). What is given as its default is as if it were not given
    progress        as in load()
    group           processes that train together, each a share of a step's rows: of gomlx.core.distributed, all that
                    init() found when None. The bits do not depend on how many they are, and a run may be resumed by
                    others. All call this with the same arguments; rank 0 writes the folder, which all read to resume
    ray             a gomlx.ScalingOptions: workers of Ray compute instead, and are replaced where they are lost

    ValueError says which row of the data, setting or target is not in order; gomlx.Error names the rows where the loss
    is not finite; NotImplementedError what is not trained yet."""
    given = {"loss": loss, "loss_options": dict(loss_options or {}), "steps": steps, "epochs": epochs, "batch": batch,
             "batch_tokens": batch_tokens, "accumulate": accumulate, "optimizer": optimizer,
             "optimizer_options": dict(optimizer_options or {}), "learning_rate": learning_rate, "schedule": schedule,
             "warmup": warmup, "clip": clip, "eval_every": eval_every, "patience": patience, "mask": mask,
             "max_tokens": max_tokens, "too_long": too_long, "template": bool(template),
             "template_args": dict(template_args or {}), "checkpoints": arguments.flag("checkpoints", checkpoints),
             "forward": forward, "seed": seed, "save_every": save_every,
             "logs": tuple(arguments.sequence("logs", logs, "names"))}
    known = StoredTeacher(teacher) if isinstance(teacher, (str, os.PathLike)) else teacher
    for name, one in (("model", model), ("teacher", known)):
        if not isinstance(one, Model) and (name == "model" or not isinstance(one, (StoredTeacher, type(None)))):
            raise arguments.WrongType(f"{name}: expected a gomlx.Model of the backend native, got "
                                      f"{arguments.shown(one)}")
    bars.check(progress)
    if logs and run is None and resume is None:
        raise ValueError("logs: need run=, the folder that they are written to")
    team = team_of(group, ray)
    try:
        made = run_of(model, data, lora, known, eval_data, run, resume, given, progress if team.rank == 0 else False,
                      team)
        made._meet()
    except BaseException as error:
        team.failed(error)
        raise
    return made


def team_of(group, ray):
    """Who computes: Ray's workers, the ranks of the group, or of the one that this program has made."""
    if ray is not None:
        if not isinstance(ray, ScalingOptions):
            raise arguments.WrongType(f"ray: expected a gomlx.ScalingOptions, got {arguments.shown(ray)}")
        if group is not None:
            raise ValueError("train: group and ray: expected one of them")
        return Workers(ray)
    group = distributed.world() if group is None else group
    if group is not None and not isinstance(group, distributed.Group):
        raise arguments.WrongType(f"group: expected a Group of gomlx.core.distributed, got {arguments.shown(group)}")
    return Ranks(group._link) if group is not None and group.size() > 1 else Alone()


# ---- what a run is made of ----

def run_of(model, data, lora, teacher, eval_data, run, resume, given, progress, team):
    """A new run, or the resumed one."""
    folder, state, config = None, None, {}
    if resume is not None:
        if run is not None or lora is not None:
            raise ValueError(f"resume: {'run' if run is not None else 'lora'} is the resumed run's own")
        folder = RunFolder(resume)
        config = folder.read_config()
        check_model(model, config["model"])
        given = resumed(given, config["settings"])
        data = data if data is not None else config["data"]["path"]
        eval_data = resumed_eval(folder, eval_data, config["eval_data"])
        state = folder.load_state()
    elif data is None:
        raise TypeError("train() needs data, or resume=")
    settings = Settings(**given)
    if isinstance(data, Dataset) and resume is None:
        check_read(settings)
    if data is None:
        raise ValueError(f"resume: {folder.path if folder else ''} was trained on data without a path: give data=")
    if not config:
        eval_data = eval_of(data, eval_data, settings)
    rows = dataset_of(data, model, settings, "train")
    evals = dataset_of(eval_data, model, settings, "valid") if eval_data is not None else None
    for name, found in (("data", rows), ("eval_data", evals)) if config else ():
        if found is not None and found.fingerprint != config[name]["fingerprint"]:
            raise ValueError(f"resume: {name}: {found.source} has other rows than the run was begun with (a chat "
                             "template with the date of the day makes others each day: template_args)")
    adapter = first_adapter(model, lora, folder, state, config)
    made = TrainingRun(model, rows, evals, settings, adapter, teacher, progress, team)
    if folder is not None:
        made._go_on(folder, state)
    elif run is not None and team.rank == 0:
        made._begin(RunFolder(run), {"lora": lora_of(lora), "data": data_of(data, rows),
                                     "eval_data": data_of(eval_data, evals) if evals is not None else None})
    return made


def resumed(given, stored):
    """The settings of a run that goes on: its own, but for those that may change."""
    default = dataclasses.asdict(Settings())
    for name, value in given.items():
        if name not in MAY_CHANGE and value != default[name] and value != stored[name]:
            raise ValueError(f"resume: {name} was {stored[name]!r}, got {value!r}: a run goes on as it began; only "
                             f"{', '.join(MAY_CHANGE)} may be others")
    changes = {name: given[name] for name in MAY_CHANGE if name in given and given[name] != default[name]}
    if "steps" in changes or "epochs" in changes:
        changes = {"steps": given["steps"], "epochs": given["epochs"]} | changes
    return stored | changes


def check_read(settings):
    """ValueError for settings that say how rows are read, beside rows that are read already."""
    default = Settings()
    for name in OF_ROWS:
        if getattr(settings, name) != getattr(default, name):
            raise ValueError(f"{name}: data is a Dataset, whose rows are read already: {name}= belongs to load_data()")


def resumed_eval(folder, given, known):
    """What a run that goes on evaluates: what it was begun with."""
    if known is None and given is not None:
        raise ValueError("resume: eval_data: the run was begun without, and goes on as it began")
    if known is not None and known["path"] is None and given is None:
        raise ValueError(f"resume: {folder.path} was evaluated on data without a path: give eval_data=")
    return given if given is not None or known is None else known["path"]


def eval_of(data, eval_data, settings):
    """What a new run evaluates, or None."""
    if eval_data is None and isinstance(data, (str, os.PathLike)) and \
            os.path.isfile(os.path.join(arguments.path("data", data), "valid.jsonl")):
        eval_data = data
    if eval_data is None and settings.eval_every is not None:
        raise ValueError("eval_every: there is nothing to evaluate: eval_data=, or a valid.jsonl in the folder")
    return eval_data


def first_adapter(model, lora, folder, state, config):
    """The adapter that the run begins with, or goes on with."""
    if config and state is None:
        if config["lora"] is None:
            raise ValueError("resume: the run went on from an adapter and saved no step: begin it again")
        adapter = new_adapter(model, LoRAConfig(**config["lora"]))
    elif config:
        adapter = saved_adapter(model, folder.file(STATE), state[0], config["adapter"])
    else:
        adapter = lora if isinstance(lora, Adapter) else new_adapter(model, lora_config(lora))
        adapter.check(model)
    check_whole(adapter.full, shapes_of(model))
    check_dropout(adapter.meta.get("dropout") or 0.0)
    return adapter


def saved_adapter(model, path, arrays, known):
    """The adapter of a run's state."""
    def magnitude_of(layer):
        name = f"parameters/{layer}.magnitude"
        return arrays[name] if known["meta"].get("dora") else arrays.get(name)

    try:
        adapter = Adapter({layer: Term(arrays[f"parameters/{layer}.lora_a"], arrays[f"parameters/{layer}.lora_b"],
                                       scale, magnitude_of(layer)) for layer, scale in known["scales"].items()},
                          {name: arrays[f"parameters/{name}"] for name in known["whole"]}, meta=known["meta"])
        adapter.check(model)
    except KeyError as error:
        raise _gomlx.Error(f"{path}: {error.args[0]} is missing") from None
    except ValueError as error:
        raise _gomlx.Error(f"{path}: {error}") from None
    return adapter


def lora_of(lora):
    return None if isinstance(lora, Adapter) else lora_config(lora).to_dict()


def path_of(data):
    return os.path.abspath(arguments.path("data", data)) if isinstance(data, (str, os.PathLike)) else None


def data_of(data, rows):
    return {"path": path_of(data), "rows": len(rows), "fingerprint": rows.fingerprint}


def check_model(model, stored):
    for name in SAME_MODEL:
        if model.info[name] != stored[name]:
            raise ValueError(f"resume: another model: its {name} is {model.info[name]}, the run's {stored[name]}")
