"""What is computed on the processor, whatever the default device is: training, and what goes with it."""
from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from gomlx import _gomlx

P = ParamSpec("P")
R = TypeVar("R")


def on_the_processor(function: Callable[P, R]) -> Callable[P, R]:
    """The function with the processor as its default device: what is computed beside a model does not go to a GPU."""
    @functools.wraps(function)
    def there(*args: P.args, **kwargs: P.kwargs) -> R:
        before = _gomlx._current_device()
        _gomlx._use_device(0)
        try:
            return function(*args, **kwargs)
        finally:
            _gomlx._use_device(before)
    return there
