"""Progress bars, tqdm's: on a terminal's standard error or in a notebook, never on standard output or into a pipe.

Long work has an argument progress: True shows a bar where somebody sees it, False or None nothing, and a callable is
called with numbers from 0 to 1 instead.
"""
from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

from gomlx._base import arguments

Progress = Callable[[float], object] | bool | None
DELAY = 0.5             # seconds; what is done before needs no bar


def check(progress: Progress) -> Progress:
    """Returns the argument, or raises gomlx._base.arguments.WrongType."""
    if progress is not None and not isinstance(progress, bool) and not callable(progress):
        raise arguments.WrongType(f"progress: expected True, False or a callable, got {arguments.shown(progress)}")
    return progress


def is_wanted(progress: Progress) -> bool:
    """Whether progress is reported to anyone."""
    return is_seen() if progress is True else callable(progress)


def is_seen() -> bool:
    """Whether a bar would be seen: in a notebook, or on a terminal."""
    if in_notebook():
        return True
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):        # there is none, or it is closed
        return False


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and "IPKernelApp" in shell.config


@contextlib.contextmanager
def reporting(progress: Progress, label: str, count: int | None = None) -> Iterator[Callable[[float], object] | None]:
    """While the block runs: a function to be called with numbers from 0 to 1, or None where nothing is reported.
    count: of the things that are done, which the bar then shows."""
    if progress is not True or not is_seen():
        yield progress if callable(progress) else None
        return
    bar = None
    with contextlib.suppress(OSError):                  # no work fails because its bar cannot be shown
        bar = made(label, count)

    def report(fraction: float) -> None:
        with contextlib.suppress(OSError):
            bar.update(max(0.0, min(1.0, fraction)) * bar.total - bar.n)

    try:
        yield report if bar is not None else None
    finally:
        with contextlib.suppress(OSError):
            if bar is not None:
                bar.close()


def made(label, count):
    """One of tqdm's bars, that is erased at its end."""
    with warnings.catch_warnings():             # a notebook without ipywidgets gets a bar of text
        warnings.simplefilter("ignore")
        from tqdm.auto import tqdm

    class Bar(tqdm):
        monitor_interval = 0                    # no thread that watches over bars

    numbers = "{percentage:3.0f} %" if count is None else "{n:.0f} of {total_fmt}"
    return Bar(desc=label, total=count or 1, leave=False, delay=DELAY, dynamic_ncols=True,
               bar_format="{desc}: {bar} " + numbers + ", {elapsed} and about {remaining} to go")
