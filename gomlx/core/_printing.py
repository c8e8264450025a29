"""How arrays are printed, with MLX's names."""
from __future__ import annotations

from gomlx import _gomlx


class PrintOptions:
    """precision: digits after the point, or -1 for six significant ones."""

    def __init__(self, precision: int = -1) -> None:
        if not isinstance(precision, int):
            raise TypeError(f"precision must be an int, not {type(precision)!r}")
        self.precision = precision


def set_printoptions(precision: int = -1) -> None:
    """Digits after the point of the numbers in printed arrays; -1 for six significant ones."""
    _gomlx._set_print_precision(PrintOptions(precision).precision)


def get_printoptions() -> PrintOptions:
    """The options in use."""
    return PrintOptions(_gomlx._set_print_precision(None))


class _PrintOptionsContext:
    def __init__(self, precision: int) -> None:
        self._options, self._kept = PrintOptions(precision), []

    def __enter__(self) -> _PrintOptionsContext:
        self._kept.append(get_printoptions().precision)
        set_printoptions(self._options.precision)
        return self

    def __exit__(self, *_: object) -> None:
        set_printoptions(self._kept.pop())


def printoptions(precision: int = -1) -> _PrintOptionsContext:
    """The options for the time of a with statement."""
    return _PrintOptionsContext(precision)


__all__ = ["PrintOptions", "_PrintOptionsContext", "get_printoptions", "printoptions", "set_printoptions"]
