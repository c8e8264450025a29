"""Devices by the names that load(device=) and plan_memory(device=) take, and what is free on them."""
from __future__ import annotations

import logging
import re

from gomlx import _gomlx
from gomlx._base import arguments

log = logging.getLogger("gomlx")

ALIKE = 256 << 20               # GPUs whose free memory differs by less are taken in their order
NAME = re.compile(r"(?:cuda|gpu)(?::(\d{1,4}))?", re.ASCII)


def check(device: object) -> None:
    """ValueError unless it is None, "auto", "cpu", "cuda" or "cuda:N"; TypeError unless None or text."""
    if device is None:
        return
    arguments.text("device", device, "\"auto\", \"cpu\", \"cuda\" or \"cuda:N\"")
    if device not in ("auto", "cpu") and not NAME.fullmatch(device):
        raise ValueError(f"device: got {device!r}, expected 'auto', 'cpu', 'cuda' or 'cuda:N'")


def check_share(device: str | None, gpu_layers: object, gpu_memory: object,
                ) -> tuple[str | None, int | None, int | None]:
    """(the device, "cuda" where a share of a GPU is all that was asked for, gpu_layers, gpu_memory in bytes).
    ValueError where they do not go together; TypeError where they are no numbers."""
    if gpu_layers is not None:
        arguments.integer("gpu_layers", gpu_layers, -1)
    memory = None if gpu_memory is None else arguments.byte_count("gpu_memory", gpu_memory)
    if gpu_layers is not None and memory is not None:
        raise ValueError("gpu_layers and gpu_memory: got both, expected one of them: a number of layers, or bytes that "
                         "as many as fit may take")
    name, given = ("gpu_layers", gpu_layers) if memory is None else ("gpu_memory", memory)
    if device == "cpu" and given:
        raise ValueError(f"{name} is {given}, and device is 'cpu': expected 'cuda', 'cuda:N' or 'auto' with it")
    return "cuda" if device is None and given else device, gpu_layers, memory


def name_of(number: int) -> str:
    """0: "cpu"; 1 + i: "cuda:i"."""
    return f"cuda:{number - 1}" if number else "cpu"


def opened(device: str) -> int:
    """The number of a GPU by its name. ValueError or gomlx.Error where it cannot be used."""
    index = int(NAME.fullmatch(device)[1] or 0)
    count, why = _gomlx._device_count()
    if count == 0:
        raise ValueError(f"device: there is no GPU that can be used: {why}")
    if index >= count:
        raise ValueError(f"device: there is no {device}: there are {count}, counted from 0")
    _gomlx._open_device(index + 1)
    return index + 1


def roomiest(count: int) -> tuple[int, int]:
    """(the number of the GPU with the most free memory, the first of those that are alike, and those bytes). A GPU that
    cannot be used is passed over with a warning in the log; gomlx.Error where none can."""
    free, failed = {}, None
    for number in range(1, count + 1):
        try:
            _gomlx._open_device(number)
            free[number] = _gomlx._describe_device(number)["free"]
        except _gomlx.Error as error:
            log.warning("%s cannot be used: %s", name_of(number), error)
            failed = error
    if failed is not None and not free:
        raise failed
    number = next(one for one in free if free[one] > max(free.values()) - ALIKE)
    return number, free[number]


def free_memory(number: int) -> tuple[int, str]:
    """(bytes that are free on an open GPU, what they are)."""
    known = _gomlx._describe_device(number)
    return known["free"], f"free on {name_of(number)}, {known['device_name']}"
