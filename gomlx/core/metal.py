"""mlx.core.metal: Apple's GPUs, which this build does not use. The memory functions that MLX once had here are
those of gomlx.core, with a DeprecationWarning."""
from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gomlx import _gomlx
from gomlx.core import _devices as devices


def is_available() -> bool:
    """Whether there is a Metal device: no."""
    return False


def start_capture(path: str) -> None:
    """Begins a capture of Metal's work: there is none."""


def stop_capture() -> None:
    """Ends the capture."""


P = ParamSpec("P")
R = TypeVar("R")


def _moved(name: str, function: Callable[P, R]) -> Callable[P, R]:
    def moved(*args: P.args, **kwargs: P.kwargs) -> R:
        warnings.warn(f"metal.{name} is deprecated, use {name} of gomlx.core", DeprecationWarning, stacklevel=2)
        return function(*args, **kwargs)

    moved.__name__ = moved.__qualname__ = name
    moved.__doc__ = function.__doc__
    return moved


clear_cache = _moved("clear_cache", _gomlx.clear_cache)
get_active_memory = _moved("get_active_memory", _gomlx.get_active_memory)
get_cache_memory = _moved("get_cache_memory", _gomlx.get_cache_memory)
get_peak_memory = _moved("get_peak_memory", _gomlx.get_peak_memory)
reset_peak_memory = _moved("reset_peak_memory", _gomlx.reset_peak_memory)
set_cache_limit = _moved("set_cache_limit", _gomlx.set_cache_limit)
set_memory_limit = _moved("set_memory_limit", _gomlx.set_memory_limit)
set_wired_limit = _moved("set_wired_limit", _gomlx.set_wired_limit)
device_info = _moved("device_info", lambda: devices.device_info(devices.gpu))

__all__ = ["clear_cache", "device_info", "get_active_memory", "get_cache_memory", "get_peak_memory", "is_available",
           "reset_peak_memory", "set_cache_limit", "set_memory_limit", "set_wired_limit", "start_capture",
           "stop_capture"]
