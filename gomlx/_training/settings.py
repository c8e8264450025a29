"""What a run is told, and what each of its steps tells."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from gomlx import optimizers
from gomlx._base import arguments
from gomlx._training.config import number
from gomlx._training.data import MASKS, MAX_TOKENS, Mask
from gomlx._training.losses import LOSSES, OPTIONS

Loss = Literal["sft", "dpo", "orpo", "kto", "distillation"]
Schedule = Literal["constant", "linear", "cosine"]
Log = Literal["tensorboard", "trackio"]
MOST_EPOCHS = 1000              # with batch_tokens
LOGS = ("tensorboard", "trackio")
SCHEDULES = ("constant", "linear", "cosine")
OPTIMIZERS = {"adamw": optimizers.AdamW, "adam": optimizers.Adam, "sgd": optimizers.SGD, "lion": optimizers.Lion,
              "adafactor": optimizers.Adafactor, "muon": optimizers.Muon, "rmsprop": optimizers.RMSprop,
              "adagrad": optimizers.Adagrad, "adadelta": optimizers.AdaDelta, "adamax": optimizers.Adamax}
OPTIMIZER_DEFAULTS: dict[str, dict[str, Any]] = {"adamw": {"bias_correction": True}, "adam": {"bias_correction": True},
                                                 "adafactor": {"relative_step": False}}


@dataclass(frozen=True)
class Step:
    """What one step did."""
    step: int                   # from 1 on
    epoch: float                # how often the data was gone through after it
    loss: float                 # of its rows, before the step
    rows: int
    tokens: int
    targets: int                # the tokens that count
    learning_rate: float
    gradient_norm: float        # before it was clipped
    seconds: float
    peak_memory_bytes: int      # of all arrays during the step
    eval_loss: float | None = None      # where there was an evaluation after the step
    metrics: dict[str, float] = field(default_factory=dict)     # means over the rows, by the loss: "accuracy", ...


@dataclass(frozen=True)
class Evaluation:
    """The loss of rows that are not trained on."""
    loss: float
    perplexity: float | None    # exp(loss) where the loss is the mean cross entropy
    rows: int
    targets: int
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What a run does, as config.json has it."""
    loss: Loss = "sft"
    loss_options: dict[str, float] = field(default_factory=dict)
    steps: int | None = None
    epochs: float | None = None
    batch: int = 4
    batch_tokens: int | None = None
    accumulate: int = 1
    optimizer: str = "adamw"
    optimizer_options: dict[str, Any] = field(default_factory=dict)
    learning_rate: float = 1e-4
    schedule: Schedule = "constant"
    warmup: int = 0
    clip: float | None = 1.0
    eval_every: int | None = None
    patience: int | None = None
    mask: Mask = "assistant"
    max_tokens: int = MAX_TOKENS
    too_long: Literal["cut", "drop"] = "cut"
    template: bool = True
    template_args: dict[str, Any] = field(default_factory=dict)
    checkpoints: bool = False
    forward: Literal["exact", "int8", "bf16"] = "exact"
    seed: int = 0
    save_every: int = 10
    logs: Sequence[Log] = ()

    def __post_init__(self) -> None:
        arguments.one_of("loss", self.loss, LOSSES)
        arguments.one_of("optimizer", self.optimizer, OPTIMIZERS)
        arguments.one_of("schedule", self.schedule, SCHEDULES)
        arguments.one_of("forward", self.forward, ("exact", "int8", "bf16"))
        for name in ("steps", "batch", "batch_tokens", "accumulate", "eval_every", "patience", "save_every"):
            if getattr(self, name) is not None:
                arguments.integer(name, getattr(self, name), 1, 2**53)
        arguments.integer("warmup", self.warmup, 0, 2**53)
        arguments.integer("seed", self.seed, 0, 2**64 - 1)
        number("learning_rate", self.learning_rate, lambda value: value >= 0, "0 or more")
        for name in ("clip", "epochs"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), lambda value: value > 0, "more than 0")
        logs = arguments.sequence("logs", self.logs, f"names of {', '.join(LOGS)}")
        object.__setattr__(self, "logs", tuple(arguments.one_of("logs", one, LOGS) for one in logs))
        self._check_rows()
        check_loss_options(self.loss, self.loss_options)
        arguments.mapping("optimizer_options", self.optimizer_options)
        if self.batch_tokens is not None and self.epochs is not None and self.epochs > MOST_EPOCHS:
            raise ValueError(f"epochs is {self.epochs:g}, expected {MOST_EPOCHS} at most with batch_tokens, whose "
                             "steps are counted epoch by epoch; steps= may be more")
        if self.patience is not None and self.eval_every is None:
            raise ValueError("patience: needs eval_every, the steps between evaluations")
        if self.schedule != "constant" and self.steps is None and self.epochs is None:
            object.__setattr__(self, "epochs", 1.0)

    def _check_rows(self):
        """What load_data() is given."""
        if self.mask is not None:
            arguments.one_of("mask", self.mask, MASKS)
        arguments.integer("max_tokens", self.max_tokens, 2)
        arguments.one_of("too_long", self.too_long, ("cut", "drop"))
        arguments.flag("template", self.template)
        arguments.flag("checkpoints", self.checkpoints)
        arguments.mapping("template_args", self.template_args)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate of a step, from 0 on, of so many."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, steps - self.warmup)
        share = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[self.schedule]
        return self.learning_rate * max(0.0, share)


def check_loss_options(loss: str, options: Any) -> None:
    """ValueError for options that a loss does not have, or whose values it cannot have."""
    there = OPTIONS[loss]
    for name, value in arguments.mapping("loss_options", options).items():
        if name not in there:
            raise ValueError(f"loss_options: {loss} has no {name!r}; it has {', '.join(there) or 'none'}")
        expected, fits = there[name]
        number(f"loss_options: {name}", value, fits, expected)


def new_optimizer(settings: Settings) -> optimizers.Optimizer:
    options = OPTIMIZER_DEFAULTS.get(settings.optimizer, {}) | settings.optimizer_options
    if "learning_rate" in options:
        raise ValueError("optimizer_options: learning_rate is an argument of train()")
    try:
        made: optimizers.Optimizer = OPTIMIZERS[settings.optimizer](learning_rate=settings.learning_rate, **options)
    except TypeError as error:
        raise ValueError(f"optimizer_options of {settings.optimizer}: {error}") from None
    return made
