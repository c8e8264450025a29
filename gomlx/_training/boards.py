"""The metrics of a run in files that other programs show: TensorBoard's events, and a table that trackio imports.

They are made of the run's Steps and the time it began at, nothing else, so that a run that goes on writes them anew and
then adds to them.
"""
from __future__ import annotations

import csv
import dataclasses
import io
import math
import os
import struct
from collections.abc import Sequence

from gomlx._training.runs import CONFIG, RunFolder, write
from gomlx._training.settings import Step

EVENTS = os.path.join("tensorboard", "events.out.tfevents.gomlx")
TABLE = "trackio.csv"
POLYNOMIAL = 0x82F63B78         # of CRC-32C, the bits reversed
OF_RUN = ("step", "metrics")    # fields of a Step that are no numbers to be drawn


def numbers_of(step: Step) -> dict[str, float]:
    """What is drawn of a step, by name."""
    known = {one.name: getattr(step, one.name) for one in dataclasses.fields(step) if one.name not in OF_RUN}
    return {name: float(value) for name, value in (known | step.metrics).items() if value is not None}


# ---- TensorBoard's events: protocol buffers in TFRecords ----

def crc_table() -> list[int]:
    made = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)
        made.append(byte)
    return made


CRC = crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C as records have it, turned and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*made, value])


def part(number: int, data: bytes) -> bytes:
    """A field of bytes, a text or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(time: float, step: int, content: bytes) -> bytes:
    """Event: wall_time 1, step 2, and what it says."""
    return record(b"\x09" + struct.pack("<d", time) + b"\x10" + varint(step) + content)


def events_of(steps: Sequence[Step], time: float, *, first: bool) -> bytes:
    """The steps, of which the first begins at a time. first: with what a file begins with."""
    made = [event(time, 0, part(3, b"brain.Event:2"))] if first else []
    for step in steps:
        time += step.seconds
        values = b"".join(part(1, part(1, name.encode()) + b"\x15" + struct.pack("<f", single(value)))
                          for name, value in numbers_of(step).items())        # Value: tag 1, simple_value 2
        made.append(event(time, step.step, part(5, values)))
    return b"".join(made)


def single(value: float) -> float:
    """Within float32."""
    return value if abs(value) < 3e38 or math.isnan(value) else math.copysign(math.inf, value)


# ---- a table ----

def table_of(steps: Sequence[Step], columns: Sequence[str], *, first: bool) -> bytes:
    text = io.StringIO()
    made = csv.DictWriter(text, ["step", *columns], restval="", extrasaction="ignore", lineterminator="\n")
    if first:
        made.writeheader()
    for step in steps:
        made.writerow({"step": step.step, **numbers_of(step)})
    return text.getvalue().encode()


class Boards:
    """The files of a run's folder that its settings ask for."""

    def __init__(self, folder: RunFolder, names: Sequence[str]) -> None:
        self.folder = folder
        self.done = dict.fromkeys(names, 0)             # steps that are in each file
        self.time = os.stat(folder.file(CONFIG)).st_mtime      # at which the first step that is not done begins

    def show(self, history: Sequence[Step]) -> None:
        """Adds what is not there yet. A process's first steps come with all before them, in a new file."""
        for name, done in self.done.items():
            if done == len(history):
                continue
            made = self.made(name, history, done)
            path = {"tensorboard": EVENTS, "trackio": TABLE}[name]
            if done:
                self.folder.extend(path, made)
            else:
                os.makedirs(os.path.dirname(self.folder.file(path)), exist_ok=True)
                write(self.folder.file(path), lambda stream, made=made: stream.write(made))
            self.done[name] = len(history)

    def made(self, name: str, history: Sequence[Step], done: int) -> bytes:
        if name == "trackio":
            columns = [one.name for one in dataclasses.fields(Step) if one.name not in OF_RUN] + \
                sorted(history[0].metrics)
            return table_of(history[done:], columns, first=not done)
        made = events_of(history[done:], self.time, first=not done)
        for step in history[done:]:
            self.time += step.seconds
        return made
