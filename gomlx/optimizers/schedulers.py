"""Schedules: functions of the step (an array, or a number) that give a learning rate."""
import math
from collections.abc import Callable

import gomlx.core as mx

Schedule = Callable[[mx.array], mx.array]         # the rate at a step


def positive(name, value):
    if value < 1:
        raise ValueError(f"{name} must be greater than 0, but got {value}.")


def exponential_decay(init: float, decay_rate: float) -> Schedule:
    """init * decay_rate**step."""
    def schedule(step):
        return init * decay_rate**step

    return schedule


def step_decay(init: float, decay_rate: float, step_size: int) -> Schedule:
    """init, multiplied by decay_rate every step_size steps."""
    positive("step_size", step_size)

    def schedule(step):
        return init * (decay_rate ** (step // step_size))

    return schedule


def cosine_decay(init: float, decay_steps: int, end: float = 0.0) -> Schedule:
    """From init to end along half a cosine of decay_steps steps, then end: https://arxiv.org/abs/1608.03983."""
    positive("decay_steps", decay_steps)

    def schedule(step):
        done = mx.minimum(step, decay_steps)
        return end + 0.5 * (1.0 + mx.cos((math.pi / decay_steps) * done)) * (init - end)

    return schedule


def linear_schedule(init: float, end: float, steps: int) -> Schedule:
    """From init to end in a straight line of `steps` steps, then end."""
    positive("steps", steps)

    def schedule(step):
        return mx.minimum(step, steps) * ((end - init) / steps) + init

    return schedule


def join_schedules(schedules: list[Schedule], boundaries: list[int]) -> Schedule:
    """One schedule after the other: from boundary i on, schedule i + 1, which counts its steps from there."""
    if len(schedules) == 0:
        raise ValueError("Must provide at least 1 schedule to join.")
    if len(schedules) != len(boundaries) + 1:
        raise ValueError(f"Received {len(boundaries)} boundaries but expected {len(schedules) - 1}.")

    def schedule(step):
        value = schedules[0](step)
        for boundary, following in zip(boundaries, schedules[1:]):
            value = mx.where(step < boundary, value, following(step - boundary))
        return value

    return schedule
