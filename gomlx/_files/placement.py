"""Which device a model is on: what load(device=) asks for, and what fits where it leaves the choice."""
from __future__ import annotations

import logging

from gomlx import _gomlx
from gomlx._files import devices, memory_plan

log = logging.getLogger("gomlx")

SHARE = 0.9                     # of a GPU's free memory, that a model and its caches may take by themselves
LEAST_BYTES = 64 << 20          # of weights: smaller models are faster on the processor


def described(number: int, why: str) -> dict[str, str]:
    """What model.info["placement"] says."""
    said = {"device": devices.name_of(number), "why": why}
    return {**said, "device_name": _gomlx._describe_device(number)["device_name"]} if number else said


def choose(device: str | None, path: str, *, context_length: int | None, dtype: object, kv_dtype: object,
           ) -> tuple[int, str]:
    """The number of the device, and why. ValueError or gomlx.Error where a GPU that is asked for by name cannot be
    used; "auto" says in the log what it has chosen, and why."""
    if device is None or device == "cpu":
        return 0, "the default" if device is None else "as asked for"
    if device != "auto":
        return devices.opened(device), "as asked for"
    number, why = _automatic(path, context_length, dtype, kv_dtype)
    log.info("%s is placed on %s: %s", path, devices.name_of(number), why)
    return number, why


def _automatic(path, context_length, dtype, kv_dtype):
    count, why = _gomlx._device_count()
    if count == 0:
        return 0, why
    try:
        number, free = devices.roomiest(count)
        plan = memory_plan.plan_memory(path, context=context_length, dtype=dtype, kv_dtype=kv_dtype,
                                       budget=int(SHARE * free))
    except (_gomlx.Error, OSError, ValueError, TypeError, NotImplementedError) as error:
        return 0, str(error)
    if plan.weight_bytes < LEAST_BYTES:
        return 0, f"weights {memory_plan.size(plan.weight_bytes)} are less than {memory_plan.size(LEAST_BYTES)}"
    needed = (f"weights, working memory and a cache of {plan.context} tokens take "
              f"{memory_plan.size(plan.total_bytes)}")
    room = f"{SHARE:.0%} of the GPU's {memory_plan.size(free)} of free memory, {memory_plan.size(int(SHARE * free))}"
    if count > 1:
        room += f" ({devices.name_of(number)} of {count} GPUs, by free memory)"
    if plan.context > plan.context_ceiling:
        return 0, plan.why
    return (number, f"{needed}, within {room}") if plan.fits else (0, f"{needed}, more than {room}")
