"""What a fine-tuning takes, before a model is loaded: memory by the files' headers, hours by a short measurement."""
from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._base.places import on_the_processor
from gomlx._files import architectures, locating, memory_plan
from gomlx._training.config import EMBEDDING, HEAD, LoRAConfig, chosen_layers, lora_config, saved_weights
from gomlx._training.data import Dataset, Row
from gomlx._training.distillation import Distillation, StoredTeacher, check_fits
from gomlx._training.losses import OBJECTIVES, SLICE
from gomlx._training.order import Order
from gomlx._training.settings import Settings
from gomlx._training.steps import check_rows
from gomlx._training.work import check_teacher

if TYPE_CHECKING:
    from gomlx._generation.model import Model

REACHED = 0.45                  # of the speed of a product of matrices, in a step
SLICE_ROWS = 64, 256            # of logits that exist at a time: csrc/models/training.c
SLICE_BYTES = 64 << 20
SUM_PARTS, SUM_RUN = 8, 2048        # of the vocabulary, each with sums of its own: kernels/cpu/launch_matrices.c
SUM_ROWS, SUM_BYTES = (128, 1024), 16 << 20
OF_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
OF_OPTIMIZER = {"sgd": 0, "lion": 1, "rmsprop": 1, "adagrad": 1, "muon": 1, "adafactor": 0}     # others: 2


@dataclass(frozen=True)
class TrainingPlan:
    """Estimates: memory is a floor, what a step has to keep; hours are of this machine while it does nothing else."""
    path: str
    steps: int
    tokens_per_step: float      # a mean
    longest_pass: int           # tokens of it
    parameters: int             # that are trained
    weight_bytes: int
    adapter_bytes: int          # with gradients and the optimiser's state
    activation_bytes: int       # kept between forward and backward, in the longest pass
    logit_bytes: int            # of a slice: logits, whose place their gradient takes, or sums; of a teacher's besides
    teacher_bytes: int          # of distillation: the teacher's weights, or what its file says of the longest pass, and
                                # heads in float32
    total_bytes: int
    available_bytes: int
    fits: bool
    flops_per_step: float
    hours: float


def plan_training(path: str | os.PathLike[str] | None, data: Dataset, *, lora: LoRAConfig | None = None,
                  teacher: Model | str | os.PathLike[str] | None = None, **settings: Any) -> TrainingPlan:
    """What gomlx.train takes for a model, before it is loaded; the speed is measured for a tenth of a second.

    path        as in gomlx.load
    data        of load_data()
    lora        a LoRAConfig; settings: other arguments of gomlx.train by name, but no run and no eval_data
    teacher     of distillation: a Model, the path of one, which is not loaded either, or a file of lora.save_teacher()

    ValueError and NotImplementedError for what gomlx.train refuses."""
    given, config = settings_of(settings), lora_config(lora)
    objective = OBJECTIVES.get(given.loss, Distillation)
    check_teacher(given.loss, teacher)
    check_rows(data, objective, given)
    found_path: str = locating.locate(path, name="path")
    known = _gomlx.describe(found_path, dtype=None, kv_dtype=None)
    shapes = [matrices(known, one) for one in known["layers"]]
    order = Order(data, given, objective.least_rows)
    found = order.passes_of(0)
    longest = max(sum(row.tokens for row in part) for part in found)
    steps = order.steps
    per_step = data.tokens / max(1, -(-len(found) // given.accumulate))
    named = weights(known, shapes) | other_weights(known)
    parameters = sum(config.rank * (rows + columns) + rows * config.dora for rows, columns in (
        named[f"{layer}.weight"] for layer in chosen_layers(config, named)))
    parameters += sum(math.prod(named[name]) for name in saved_weights(config, named))
    hidden = known["hidden_size"]
    kept = [kept_floats(hidden, layer) for layer in shapes]
    activations = longest * 4 * (sum(kept) if not given.checkpoints else
                                 max(kept) + hidden * len(shapes))
    taught = teaching(teacher, known, data, found, given) if teacher is not None else Teaching()
    logits = 4 * taught.slice_rows * known["vocab_size"] if taught.slice_rows else loss_bytes(known, longest, given)
    adapter = 4 * parameters * (2 + OF_OPTIMIZER.get(given.optimizer, 2))
    total = known["weight_bytes"] + adapter + activations + logits + taught.bytes
    available, _ = memory_plan.available_memory()
    linear = sum(rows * columns for layer in shapes for rows, columns in layer.values())
    share = data.targets / data.tokens
    flops = per_step * (2 * linear * (3 if given.checkpoints else 2) + taught.flops_per_token +
                        share * (4 * known["vocab_size"] * hidden + taught.flops_per_target))
    hours = steps * flops / (REACHED * measured_flops()) / 3600
    return TrainingPlan(found_path, steps, per_step, longest, parameters, known["weight_bytes"], adapter, activations,
                        logits, taught.bytes, total, available, total <= available, flops, hours)


def loss_bytes(known: dict[str, Any], rows: int, given: Settings) -> int:
    """What there is at a time of the loss of so many rows: a slice of logits, or, where products are rounded, what
    parts of the vocabulary sum for some rows."""
    vocab = known["vocab_size"]
    if given.forward != "bf16":
        return 4 * vocab * min(rows, max(SLICE_ROWS[0], min(SLICE_ROWS[1], SLICE_BYTES // 4 // vocab)))
    row = 4 * known["hidden_size"] * min(SUM_PARTS, -(-vocab // SUM_RUN))
    return row * min(rows, max(SUM_ROWS[0], min(SUM_ROWS[1], SUM_BYTES // row)))


@dataclass(frozen=True)
class Teaching:
    """What distillation takes besides."""
    bytes: int = 0
    slice_rows: int = 0                 # of logits, the teacher's with them; 0: as of other losses
    flops_per_token: float = 0
    flops_per_target: float = 0


def teaching(teacher: Model | str | os.PathLike[str], known: dict[str, Any], data: Dataset,
             found: Sequence[Sequence[Row]], given: Settings) -> Teaching:
    """known: of the model that learns; found: the passes of an epoch."""
    temperature, table = given.loss_options.get("temperature", 1.0), known["vocab_size"] * known["hidden_size"]
    path = os.fspath(teacher) if isinstance(teacher, (str, os.PathLike)) else teacher.info["path"]
    again = 2 * table                   # the model's own head is computed once more backwards
    if os.path.isfile(path) and path.endswith(".safetensors"):
        stored = StoredTeacher(path)
        check_fits(stored, known["vocab_size"], temperature)
        stored.check(data)
        most = max(sum(row.targets for row in part) for part in found)
        return Teaching(4 * table + 8 * stored.width * most, min(SLICE, most), 0, again)
    theirs = _gomlx.describe(locating.locate(path, name="teacher"), dtype=None, kv_dtype=None)
    check_fits(theirs["vocab_size"], known["vocab_size"], temperature)
    linear = sum(rows * columns for layer in theirs["layers"] for rows, columns in matrices(theirs, layer).values())
    head = theirs["vocab_size"] * theirs["hidden_size"]
    return Teaching(theirs["weight_bytes"] + 4 * (table + head), 2 * SLICE, 2 * linear, again + 2 * head)


def matrices(known: dict[str, Any], layer: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """{name: (out, in)} of a layer; of experts those that a token goes through."""
    hidden, dim = known["hidden_size"], layer.get("head_dim", 0)
    heads, kv = layer.get("n_heads", 0) * dim, layer.get("n_kv_heads", 0) * dim
    mlp = known["mlp_size"] * max(1, known["n_experts_used"])
    return {"q_proj": (heads, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden), "o_proj": (hidden, heads),
            "gate_proj": (mlp, hidden), "up_proj": (mlp, hidden), "down_proj": (hidden, mlp)}


def kept_floats(hidden: int, layer: dict[str, tuple[int, int]]) -> int:
    """Of a token: the residual stream twice, queries, keys, values, attention's output, and the feed-forward part's
    gate and up. Norms, rotations and what gate and up make are computed again."""
    return 2 * hidden + 2 * layer["q_proj"][0] + 2 * layer["k_proj"][0] + 2 * layer["gate_proj"][0]


def weights(known: dict[str, Any], layers: Sequence[dict[str, tuple[int, int]]]) -> dict[str, tuple[int, ...]]:
    """{weight: (out, in)} of the matrices that may have terms, by the names of a loaded model."""
    made: dict[str, tuple[int, ...]] = {}
    for at, layer in enumerate(layers):
        for name, shape in layer.items():
            block = "self_attn" if name in OF_ATTENTION else "mlp"
            if block != "mlp" or not known["n_experts"]:
                made[f"model.layers.{at}.{block}.{name}.weight"] = shape
    return made


def other_weights(known: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """{weight: shape} of those besides that a LoRAConfig's modules_to_save may name: norms, embedding, head."""
    hidden, table = known["hidden_size"], (known["vocab_size"], known["hidden_size"])
    arch = architectures.named(known["architecture"])
    made: dict[str, tuple[int, ...]] = {"model.norm.weight": (hidden,), f"{EMBEDDING}.weight": table}
    made |= {} if known["tied"] else {HEAD: table}
    for at, layer in enumerate(known["layers"]):
        for name in (one for one in (arch.whole if arch is not None else ()) if "norm" in one):
            of_heads = name.endswith(("q_norm.weight", "k_norm.weight"))
            made[f"model.layers.{at}.{name}"] = (layer.get("head_dim", hidden) if of_heads else hidden,)
    return made


def settings_of(given: dict[str, Any]) -> Settings:
    """Settings, of which gomlx.train takes these by the same names."""
    names = [one.name for one in dataclasses.fields(Settings)]
    wrong = next((name for name in given if name not in names), None)
    if wrong is not None:
        raise arguments.WrongType(arguments.unexpected("plan_training", wrong, names))
    return Settings(**given)


@on_the_processor
def measured_flops() -> float:
    """float32 operations a second of a product of matrices, here and now."""
    a, b = mx.ones([512, 1024]), mx.ones([1024, 1024])
    mx.eval(a @ b)
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < 0.1:
        mx.eval(a @ b)
        done += 1
    return done * 2 * 512 * 1024 * 1024 / (time.perf_counter() - started)
