"""Which of several workers this one is, and which rows are its own."""
from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple


class Shard(NamedTuple):
    """Worker `index` of `count`: its rows are those whose number, counted over all inputs, is `index` mod `count`."""
    index: int = 0
    count: int = 1

    def path(self, path: str) -> str:
        """The name of this worker's part of an output: out.0-of-3.jsonl."""
        if self.count == 1:
            return path
        stem, suffix = os.path.splitext(path)
        return f"{stem}.{self.index}-of-{self.count}{suffix}"


def parse(text: str | None, environment: Mapping[str, str] = os.environ) -> Shard:
    """The shard of "I/N" (I from 0), or of "auto" or "auto/N", which ask the environment: SLURM's arrays
    (SLURM_ARRAY_TASK_ID and its COUNT, MIN and STEP), or Kubernetes' indexed jobs (JOB_COMPLETION_INDEX, which needs
    N). ValueError for anything else."""
    if text is None:
        return Shard()
    match = re.fullmatch(r"(\d{1,9}|auto)(?:/(\d{1,9}))?", text)
    if match is None or match[1] != "auto" and match[2] is None:
        raise ValueError(f"--shard: expected I/N, auto or auto/N, got {text!r}")
    index, count = _asked(environment) if match[1] == "auto" else (int(match[1]), None)
    if match[2] is not None:
        if count is not None and count != int(match[2]):
            raise ValueError(f"--shard: {text!r}, but the array has {count} tasks (SLURM_ARRAY_TASK_COUNT)")
        count = int(match[2])
    if count is None:
        raise ValueError("--shard: JOB_COMPLETION_INDEX does not say of how many: expected auto/N")
    if not 0 <= index < count:
        raise ValueError(f"--shard: expected I from 0 to N - 1, got {index}/{count}")
    return Shard(index, count)


def _asked(environment):
    """(index, count or None) that the environment states."""
    def number(name, default=None):
        text = environment.get(name, default)
        if text is None or not re.fullmatch(r"\d{1,9}", text):
            raise ValueError(f"--shard: expected a number in {name}, got {text!r}")
        return int(text)

    if "SLURM_ARRAY_TASK_ID" in environment:
        index, first = number("SLURM_ARRAY_TASK_ID"), number("SLURM_ARRAY_TASK_MIN", "0")
        step, count = number("SLURM_ARRAY_TASK_STEP", "1") or 1, number("SLURM_ARRAY_TASK_COUNT")
        if first or step != 1 or index >= count:        # some of an array run again: their count is not that of all
            raise ValueError(f"--shard: SLURM's array is not 0 to its count: task {index} of {count} from {first} on. "
                             f"Expected such as --array=0-9, or for some of them --shard {index}/N")
        return index, count
    if "JOB_COMPLETION_INDEX" in environment:
        return number("JOB_COMPLETION_INDEX"), None
    raise ValueError("--shard: auto, but neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set")


def missing(paths: list[str]) -> list[str]:
    """The parts that are absent where some of the paths are parts by their names."""
    found = {}
    for path in paths:
        match = re.fullmatch(r"(.*)\.(\d+)-of-(\d+)((?:\.\w+)?)", path)
        if match:
            found.setdefault((match[1], int(match[3]), match[4]), set()).add(int(match[2]))
    return [f"{stem}.{i}-of-{count}{suffix}" for (stem, count, suffix), there in found.items()
            for i in range(min(count, 10**6)) if i not in there]
