"""Modules that are only other modules in a row."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gomlx.core as mx
from gomlx.nn.layers.base import Module


class Sequential(Module):
    """Calls its modules (or any callables) one after the other, each on what the last returned."""

    def __init__(self, *modules: Callable[..., Any]) -> None:
        super().__init__()
        self.layers = list(modules)

    def __call__(self, x: mx.array) -> mx.array:
        for layer in self.layers:
            x = layer(x)
        return x
