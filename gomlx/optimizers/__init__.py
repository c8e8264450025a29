"""Optimisers and learning rate schedules, with the names of mlx.optimizers."""
from gomlx._base.arguments import name_public
from gomlx.optimizers.optimizers import (
    SGD, AdaDelta, Adafactor, Adagrad, Adam, Adamax, AdamW, Lion, MultiOptimizer, Muon, Optimizer, RMSprop,
    clip_grad_norm,
)
from gomlx.optimizers.schedulers import cosine_decay, exponential_decay, join_schedules, linear_schedule, step_decay

__all__ = [
    "AdaDelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "Lion", "MultiOptimizer", "Muon", "Optimizer",
    "RMSprop", "SGD", "clip_grad_norm", "cosine_decay", "exponential_decay", "join_schedules", "linear_schedule",
    "step_decay",
]
name_public(globals(), __all__)
