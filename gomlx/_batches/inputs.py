"""Rows of files: JSON lines, lines of text, CSV and Parquet, one at a time."""
from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from gomlx._batches.shards import Shard

ALL = Shard()


class Row(NamedTuple):
    """A row as it was found: bytes or a text of a line, a dict of a table. line: of the file, or the record, from 1."""
    file: str
    line: int
    raw: Any

    def where(self) -> str:
        return f"{self.file}, line {self.line}"


class Inputs:
    """The rows of files that are a shard's, in the order of the files' names. lines_are: "json" or "text", what a line
    is in a file that is neither *.jsonl, *.csv nor *.parquet."""

    def __init__(self, paths: Sequence[str], shard: Shard = ALL, lines_are: str = "json") -> None:
        self.paths, self._shard, self._lines_are = sorted(paths), shard, lines_are
        double = next((one for one in self.paths if self.paths.count(one) > 1), None)
        if double is not None:
            raise ValueError(f"{double}: given twice")
        self._kept: dict[str, Any] = {}         # what can be read only once: standard input, pipes

    def __iter__(self) -> Iterator[Row]:
        number = 0
        for path in self.paths:
            for line, raw in self._lines(path):
                if number % self._shard.count == self._shard.index:
                    yield Row(path, line, raw)
                number += 1

    def _lines(self, path):
        if path == "-" or os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
            if path not in self._kept:
                self._kept[path] = list(_decoded(sys.stdin)) if path == "-" else [raw for _, raw in _binary(path, True)]
            return ((i, one) for i, one in enumerate(self._kept[path], 1) if one.strip())
        kind = os.path.splitext(path)[1].lower()
        return _csv(path) if kind == ".csv" else _parquet(path) if kind == ".parquet" else _binary(path)

    def value(self, row: Row) -> Any:
        """What a row says: a text, or what its JSON or its columns hold. ValueError that names the place."""
        if isinstance(row.raw, dict):
            return row.raw
        text = row.raw
        if isinstance(text, bytes):
            try:
                text = text.decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"{row.file}: not utf-8 text: {error.reason}, byte {row.raw[error.start]:#04x}, line "
                                 f"{row.line}") from None
        if self._lines_are == "text" and not row.file.lower().endswith(".jsonl"):
            return text.rstrip("\r\n")
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{row.where()}: not JSON: {error}") from None


def _decoded(file):
    try:
        yield from file
    except UnicodeDecodeError as error:
        raise ValueError(f"standard input: not {error.encoding} text: {error.reason}, byte "
                         f"{error.object[error.start]:#04x}") from None


def _binary(path, whole=False):
    """(number, line) of lines that are not empty, or of all."""
    with open(path, "rb") as file:
        yield from ((i, line) for i, line in enumerate(file, 1) if whole or line.strip())


TEXTS = ("id", "custom_id", "prompt", "text")       # columns of CSV that are never read as JSON


def _csv(path):
    """Records by the names in the first one: columns other than TEXTS are JSON where they can be read so; an empty cell
    is none."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            for i, record in enumerate(csv.DictReader(file, restkey="", strict=True), 1):
                yield i, {name: one if name in TEXTS else _read_cell(one) for name, one in record.items() if one}
        except (UnicodeDecodeError, csv.Error) as error:
            raise ValueError(f"{path}: not a CSV file in UTF-8: {error}") from None


def _read_cell(text):
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return text


def _parquet(path):
    parquet = pyarrow(path).parquet
    try:
        with parquet.ParquetFile(path) as file:
            line = 0
            for group in file.iter_batches(batch_size=1024):
                for record in group.to_pylist():
                    line += 1
                    yield line, {name: _without_none(one) for name, one in record.items() if one is not None}
    except (ValueError, OSError, NotImplementedError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"{path}: not a Parquet file that can be read: {error}") from None


def _without_none(value):
    """A value as JSON can have it: structs of a column have all names that any of them has, and what JSON has no form
    for, times and the like, is its text."""
    if isinstance(value, dict):
        return {name: _without_none(one) for name, one in value.items() if one is not None}
    if isinstance(value, list):
        return [_without_none(one) for one in value]
    if isinstance(value, bytes):
        return value.hex()
    return value if value is None or isinstance(value, (str, bool, int, float)) else str(value)


def pyarrow(path: str) -> Any:
    """The package pyarrow with its parquet; ImportError says what to install."""
    try:
        import pyarrow  # large, and few files are Parquet
        import pyarrow.parquet
    except ImportError:
        raise ImportError(f"{path}: Parquet needs the package pyarrow: pip install pyarrow") from None
    return pyarrow
