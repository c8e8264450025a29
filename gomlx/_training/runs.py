"""A run's folder, and what it says after a kill at any moment.

    config.json         settings, the model, the data's fingerprint: written once, first
    state.safetensors   the whole state after some step: parameters, optimiser, where in the data; replaced at once
    metrics.jsonl       a line for each step
    adapter/            the adapter as other programs read it; best/ that of the best evaluation
    loss.txt, loss.png  the curve
    tensorboard/, trackio.csv   metrics for other programs, where they are asked for: boards.py

Every file is written under a temporary name, synchronised to the disk and renamed: where writing fails, the one before
is still there. What resume goes on from is state.safetensors; lines of metrics.jsonl after it are cut.
"""
from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._base import arguments
from gomlx._training import stored

CONFIG, STATE, METRICS = "config.json", "state.safetensors", "metrics.jsonl"
FORMAT = 1
WIDTH, HEIGHT = 72, 14          # of the curve as text


class RunFolder:
    """The files of a run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = arguments.path("run", path)
        if not self.path:
            raise ValueError("run: expected the path of a folder, got ''")

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def create(self, config: Mapping[str, Any]) -> None:
        """Makes the folder. FileExistsError where there is something in it, or where it is a file."""
        text = as_json({"format": FORMAT, **config})    # what cannot be written leaves no folder
        if os.path.exists(self.path) and not os.path.isdir(self.path):
            raise FileExistsError(f"run: {self.path} is not a folder, expected a new one")
        os.makedirs(self.path, exist_ok=True)
        there = sorted(one for one in os.listdir(self.path) if not is_temporary(one))
        if there:
            hint = f"; resume={self.path!r} goes on with it" if CONFIG in there else ""
            raise FileExistsError(f"run: {self.path} is not empty, it has {', '.join(there[:4])}{hint}")
        write(self.file(CONFIG), lambda stream: stream.write(text))

    def read_config(self) -> dict[str, Any]:
        """What config.json says, checked."""
        path = self.file(CONFIG)
        if not stored.is_there(path):
            raise FileNotFoundError(f"resume: {self.path} is not a run: it has no {CONFIG}")
        with open(path, "rb") as file:
            found = stored.parsed(path, file.read())
        form = found.get("format") if isinstance(found, dict) else found
        if form != FORMAT:
            raise _gomlx.Error(f"{path}: format {arguments.shown(form)}, expected {FORMAT}")
        return stored.checked_config(path, found)

    def save_state(self, arrays: Mapping[str, mx.array], known: Mapping[str, Any]) -> None:
        metadata = {"state": json.dumps(finite(known))}
        write(self.file(STATE), lambda stream: mx.save_safetensors(stream, dict(arrays), metadata))

    def load_state(self) -> tuple[dict[str, mx.array], dict[str, Any]] | None:
        """(arrays, what else is known); None where no step was saved yet."""
        path = self.file(STATE)
        if not stored.is_there(path):
            return None
        arrays, metadata = mx.load(path, format="safetensors", return_metadata=True)
        mx.eval(list(arrays.values()))
        if "state" not in metadata:
            raise _gomlx.Error(f"{path}: not the state of a run: it does not say where the run was")
        return arrays, stored.checked(path, stored.parsed(path, metadata["state"]), stored.STATE_FIELDS)

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Lines of metrics."""
        self.extend(METRICS, b"".join(json.dumps(finite(one), allow_nan=False).encode() + b"\n" for one in records))

    def extend(self, name: str, data: bytes) -> None:
        """Bytes at the end of a file; where they cannot be written, none is."""
        with open(self.file(name), "ab", buffering=0) as file:
            before = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException as error:
                file.truncate(before)
                if isinstance(error, OSError):
                    raise OSError(error.errno, f"cannot write {self.file(name)}: {error.strerror}") from error
                raise

    def read_metrics(self, last: int) -> list[dict[str, Any]]:
        """The lines up to a step."""
        found: list[dict[str, Any]] = []
        lines: list[bytes] = []
        if stored.is_there(self.file(METRICS)):
            with open(self.file(METRICS), "rb") as file:
                lines = file.readlines()
        for i, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):        # cut by a kill
                break
            stored.checked(f"{self.file(METRICS)}:{i}", record, stored.STEP_FIELDS)
            if record["step"] > last:
                break
            found.append(record)
        return found

    def write_metrics(self, records: Sequence[Mapping[str, Any]]) -> None:
        """These lines in place of all that there are."""
        text = "".join(json.dumps(one) + "\n" for one in records).encode()
        write(self.file(METRICS), lambda stream: stream.write(text))

    def write_curve(self, steps: Sequence[tuple[int, float]], evaluations: Sequence[tuple[int, float]]) -> None:
        """loss.txt."""
        text = curve(steps) + "\n"
        if evaluations:
            text += "\nevaluations: " + ", ".join(f"step {at}: {loss:.4f}" for at, loss in evaluations) + "\n"
        write(self.file("loss.txt"), lambda stream: stream.write(text.encode()))

    def draw_curve(self, steps: Sequence[tuple[int, float]], evaluations: Sequence[tuple[int, float]]) -> None:
        """loss.png, where matplotlib is installed: its import takes a second."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        figure = Figure(figsize=(7, 4))
        axes = figure.subplots()
        axes.plot(*zip(*steps), linewidth=1, label="loss")
        if evaluations:
            axes.plot(*zip(*evaluations), marker="o", label="evaluation")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend()
        write(self.file("loss.png"), lambda stream: figure.savefig(stream, format="png", dpi=110))


def as_json(value: Any) -> bytes:
    try:
        return json.dumps(value, indent=1).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise arguments.WrongType(f"run: a setting or the adapter's meta cannot be written as JSON: {error}") from None


def is_temporary(name):
    return name.startswith(".") and name.endswith(".part")


def write(path: str, writer: Callable[[IO[bytes]], object]) -> None:
    """Calls writer(stream); what it writes is on the disk, whole, under this name or, where that fails, nowhere."""
    folder, name = os.path.split(path)
    for one in os.listdir(folder):                      # of a process that was killed while it wrote
        if one.startswith(f".{name}.") and is_temporary(one):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, one))
    handle, temporary = tempfile.mkstemp(prefix=f".{name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(handle, "wb") as stream:
            writer(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(error, OSError) and error.filename is None:
            raise OSError(error.errno, f"cannot write {path}: {error.strerror}; the one before is unchanged") from error
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def finite(value: Any) -> Any:
    """JSON has no NaN: None is there instead."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return {name: finite(one) for name, one in value.items()} if isinstance(value, Mapping) else value


def curve(points: Sequence[tuple[int, float]]) -> str:
    """Losses over steps as lines of text; a column is the mean of its steps."""
    if not points:
        return "no steps"
    columns = min(WIDTH, len(points))
    means = []
    for i in range(columns):
        part = [loss for _, loss in points[i * len(points) // columns:(i + 1) * len(points) // columns]]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    step = (high - low) / (HEIGHT - 1) or 1.0
    rows = [round((one - low) / step) for one in means]
    lines = [f"{low + step * level:9.4f} |" + "".join("*" if row == level else " " for row in rows).rstrip()
             for level in range(HEIGHT - 1, -1, -1)] if high > low else [f"{low:9.4f} |" + "*" * columns]
    return "\n".join([*lines, " " * 10 + "+" + "-" * columns, f"{'steps':>10} {points[0][0]} to {points[-1][0]}"])


# ---- optimisers' states ----

SEPARATOR = "/"


def flat_state(state: Mapping[str, Any], prefix: str = "") -> dict[str, mx.array]:
    """{path: array} of a tree of dicts."""
    found: dict[str, mx.array] = {}
    for name, value in state.items():
        if isinstance(value, Mapping):
            found |= flat_state(value, f"{prefix}{name}{SEPARATOR}")
        elif isinstance(value, mx.array):
            found[prefix + name] = value
        else:
            raise TypeError(f"optimizer: its state {prefix + name} is {type(value).__name__}, expected arrays: it "
                            "cannot be saved")
    return found


def tree_state(flat: Mapping[str, mx.array]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for path, value in flat.items():
        *above, name = path.split(SEPARATOR)
        at = made
        for one in above:
            at = at.setdefault(one, {})
        at[name] = value
    return made
