"""Evaluation that reports an error and continues."""
from __future__ import annotations

import logging

from gomlx import _gomlx

__all__ = ["materialize"]


def materialize(*trees: object) -> bool:
    """Computes every array in lists, tuples and dicts of arrays, as eval does, and returns whether that succeeded: an
    error goes to `logging.getLogger("gomlx")` instead of the caller. What has no value then raises where it is read."""
    try:
        _gomlx.eval(*trees)
    except Exception as error:      # noqa: BLE001 - whatever it is, it is told of
        logging.getLogger("gomlx").error("materialize: %s: %s", type(error).__name__, error)
        return False
    return True
