"""Where a model is: what load(device=, gpu_layers=, gpu_memory=) asks for, and what fits where it leaves the choice."""
from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass

from gomlx import _gomlx
from gomlx._files import devices, memory_plan, shares

log = logging.getLogger("gomlx")

SHARE = 0.9                     # of a GPU's free memory, that a model and its caches may take by themselves
LEAST_BYTES = 64 << 20          # of weights: smaller models are faster on the processor
ADVICE = "gpu_layers= or gpu_memory= leave layers on the processor"
LEAST_LAYERS = 4                # on a GPU, beside others on the processor: fewer are not worth a crossing


@dataclass(frozen=True)
class Placement:
    number: int                 # of the device
    why: str
    gpu_layers: int | None = None       # the last ones; None: all of them
    host_layers: int = 0        # the layers before these, on the processor

    def described(self, n_layers: int) -> dict[str, str | int]:
        """What model.info["placement"] says."""
        said: dict[str, str | int] = {"device": devices.name_of(self.number), "why": self.why}
        if not self.number:
            return said
        count = n_layers - self.host_layers
        said |= {"device_name": _gomlx._describe_device(self.number)["device_name"], "gpu_layers": count}
        return said | shares.said(count, n_layers) if self.host_layers else said


@contextlib.contextmanager
def advising(place: Placement) -> Iterator[None]:
    """A MemoryError of a GPU says what can be done."""
    try:
        yield
    except MemoryError as error:
        if not place.number:
            raise
        raise MemoryError(f"{error}. {ADVICE}") from error


def choose(device: str | None, path: str, *, context_length: int | None, dtype: object, kv_dtype: object,
           gpu_layers: int | None = None, gpu_memory: int | str | None = None) -> Placement:
    """Where the model goes, and why. ValueError or gomlx.Error where a GPU that is asked for by name cannot be used, or
    cannot have so many layers; MemoryError where gpu_memory holds none. "auto" says in the log what it has chosen."""
    device, gpu_layers, memory = devices.check_share(device, gpu_layers, gpu_memory)
    asked = {"context": context_length, "dtype": named(dtype), "kv_dtype": named(kv_dtype)}
    if gpu_layers == 0:
        return Placement(0, "as asked for: gpu_layers is 0")
    if device is None or device == "cpu":
        return Placement(0, "the default" if device is None else "as asked for")
    if device == "auto":
        found = _automatic(path, asked, gpu_layers, memory)
        log.info("%s is placed on %s: %s", path, devices.name_of(found.number), found.why)
        return found
    number = devices.opened(device)
    if gpu_layers in (None, -1) and memory is None:
        return Placement(number, "as asked for")
    plan = memory_plan.plan_memory(path, device=device, gpu_layers=gpu_layers, gpu_memory=memory, **asked)
    if not plan.gpu_layers:
        raise MemoryError(plan.why)
    return _shared(plan, number, "as asked for" if memory is None else f"as many as fit: {plan.why}")


def named(value: object) -> str | None:
    """A dtype by its name."""
    return None if value is None else str(value).removeprefix("mlx.core.")


def _shared(plan, number, why):
    return Placement(number, why, plan.gpu_layers, len(plan.layers) - plan.gpu_layers)


def _automatic(path, asked, gpu_layers, gpu_memory):
    count, why = _gomlx._device_count()
    if count == 0:
        return Placement(0, why)
    try:
        number, free = devices.roomiest(count)
        room = min(int(SHARE * free), gpu_memory or free)
        if gpu_layers is not None:
            plan = memory_plan.plan_memory(path, device=devices.name_of(number), gpu_layers=gpu_layers, **asked)
            return _shared(plan, number, "as asked for")
        plan = memory_plan.plan_memory(path, device=devices.name_of(number), budget=room, **asked)
        return _fitting(plan, path, asked, number, count, free, room)
    except (_gomlx.Error, OSError, ValueError, TypeError, NotImplementedError) as error:
        if gpu_layers is not None:
            raise
        return Placement(0, str(error))


def _fitting(plan, path, asked, number, count, free, room):
    """All of the model on the GPU, or as many of its layers as fit, or the processor. plan: of all."""
    if plan.weight_bytes < LEAST_BYTES:
        return Placement(0, f"weights {memory_plan.size(plan.weight_bytes)} are less than "
                            f"{memory_plan.size(LEAST_BYTES)}")
    needed = (f"weights, working memory and a cache of {plan.context} tokens take "
              f"{memory_plan.size(plan.total_bytes)}")
    within = f"{SHARE:.0%} of the GPU's {memory_plan.size(free)} of free memory, {memory_plan.size(room)}"
    if room < int(SHARE * free):
        within = f"gpu_memory, {memory_plan.size(room)}"
    if count > 1:
        within += f" ({devices.name_of(number)} of {count} GPUs, by free memory)"
    if plan.context > plan.context_ceiling:
        return Placement(0, plan.why)
    if plan.fits:
        return Placement(number, f"{needed}, within {within}")
    some = memory_plan.plan_memory(path, device=devices.name_of(number), gpu_memory=room, **asked)
    if some.gpu_layers < LEAST_LAYERS:
        return Placement(0, f"{needed}, more than {within}; {some.gpu_layers} layers would fit, and fewer than "
                            f"{LEAST_LAYERS} are not worth it")
    return _shared(some, number, f"{needed}, more than {within}; {some.gpu_layers} of {len(some.layers)} layers with "
                                 f"the head take {memory_plan.size(some.gpu_bytes)}")
