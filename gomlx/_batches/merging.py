"""Results of several workers as one file: JSON lines, CSV or Parquet."""
from __future__ import annotations

import contextlib
import csv
import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, NamedTuple

from gomlx._batches import inputs, shards
from gomlx._batches.journal import key_of, row_name, sync_folder


class Place(NamedTuple):
    """Where a row is: the file and line that it answers, its key, and its bytes in one of the results."""
    file: str
    line: int
    key: str
    failed: bool
    source: int
    offset: int
    length: int


def merge(paths: Sequence[str], out: str) -> int:
    """Writes the rows of results to `out`, in the order of the inputs' names and lines, as JSON lines or by its suffix
    as .csv or .parquet; returns how many. A row that is there twice, byte for byte, is taken once, and one with an
    error gives way to one without. ValueError for rows of the same key that differ, for results that are not finished,
    and for parts (out.0-of-3.jsonl) of which some are missing."""
    paths = list(paths)
    if os.path.exists(out + ".part"):
        raise ValueError(f"{out}.part: of a batch that is not finished, and would go on with {out}")
    for path in paths:
        if os.path.abspath(path) == os.path.abspath(out):
            raise ValueError(f"{out}: is among the results that it would be made of")
        if path.endswith(".part") or not os.path.exists(path) and os.path.exists(path + ".part"):
            raise ValueError(f"{path.removesuffix('.part')}: its batch is not finished: --resume goes on with it")
    absent = shards.missing(paths)
    if absent:
        raise ValueError(f"{absent[0]}: missing among the parts ({len(absent)} of them are)")
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb")) for path in paths]
        rows = _unique(files, [place for i, file in enumerate(files) for place in _places(paths[i], i, file)])
        _write(files, rows, out)
    return len(rows)


def _places(path, source, file):
    offset = 0
    for i, line in enumerate(file, 1):
        try:
            row = json.loads(line)
            if not line.endswith(b"\n") or not isinstance(row["line"], int) or not isinstance(row["file"], str):
                raise ValueError
            yield Place(row["file"], row["line"], key_of(row_name(row), row["file"], row["line"]),
                        row.get("error") is not None, source, offset, len(line))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ValueError(f"{path}, line {i}: no row of a batch") from None
        offset += len(line)


def _unique(files, places):
    kept: dict[str, Place] = {}
    for one in places:
        other = kept.get(one.key)
        if other is not None and (one.file, one.line) != (other.file, other.line):
            raise ValueError(f"{files[one.source].name} and {files[other.source].name}: line {other.line} of "
                             f"{other.file} and line {one.line} of {one.file} have the same id")
        if other is None or other.failed and not one.failed:
            kept[one.key] = one
        elif other.failed == one.failed and _bytes(files, one) != _bytes(files, other):
            raise ValueError(f"{files[one.source].name} and {files[other.source].name}: two rows of line {one.line} of "
                             f"{one.file} that differ")
    return sorted(kept.values())


def _bytes(files: Sequence[BinaryIO], place: Place) -> bytes:
    files[place.source].seek(place.offset)
    return files[place.source].read(place.length)


def _write(files, rows, out):
    kind, aside = os.path.splitext(out)[1].lower(), out + ".merged"
    try:
        if kind == ".csv":
            _write_csv(files, rows, aside)
        elif kind == ".parquet":
            _write_parquet(files, rows, aside, inputs.pyarrow(out))
        else:
            with open(aside, "wb") as file:
                file.writelines(_bytes(files, one) for one in rows)
        with open(aside, "rb") as file:
            os.fsync(file.fileno())
        os.replace(aside, out)
        sync_folder(out)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside)
        raise


def _write_csv(files, rows, path):
    """Texts and numbers as they are, all else as JSON, None as an empty cell."""
    names = list(_columns(files, rows))
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        for row in _loaded(files, rows):
            writer.writerow({name: one if isinstance(one, str) or one is None else json.dumps(one)
                             for name, one in row.items()})


def _loaded(files: Sequence[BinaryIO], rows: Sequence[Place]) -> Iterator[dict[str, Any]]:
    return (json.loads(_bytes(files, one)) for one in rows)


def _columns(files, rows):
    """{name: the kinds of its values}, in the order in which the names come first."""
    found: dict[str, set[str]] = {}
    for row in _loaded(files, rows):
        for name, value in row.items():
            found.setdefault(name, set()).update(_kinds(value))
    return found


def _kinds(value):
    if isinstance(value, list):
        inner = set().union(*map(_kinds, value)) if value else {"none"}
        return {"list of " + ("float" if "float" in inner else "int" if "int" in inner else "none")} if inner <= {
            "int", "float", "none"} else {"json"}
    if isinstance(value, bool) or value is None or isinstance(value, (str, float)):
        return {"none" if value is None else type(value).__name__}
    return {"int" if isinstance(value, int) and -2**63 <= value < 2**63 else "json"}


def _write_parquet(files, rows, path, pyarrow):
    """Columns of one type by that type, lists of numbers as lists, all else as JSON in texts."""
    types = {name: _type(kinds - {"none"}, pyarrow) for name, kinds in _columns(files, rows).items()}
    plain = {name for name, (_, is_json) in types.items() if not is_json}
    schema = pyarrow.schema([(name, one) for name, (one, _) in types.items()])
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for begin in range(0, len(rows), 1024):
            found = [{name: one if name in plain or one is None else json.dumps(one) for name, one in row.items()}
                     for row in _loaded(files, rows[begin:begin + 1024])]
            writer.write_table(pyarrow.Table.from_pylist(found, schema))


def _type(kinds, pyarrow):
    """(the column's type, whether its values are JSON)."""
    simple = {"bool": pyarrow.bool_(), "int": pyarrow.int64(), "float": pyarrow.float64(), "str": pyarrow.string(),
              "list of int": pyarrow.list_(pyarrow.int64()), "list of float": pyarrow.list_(pyarrow.float64()),
              "list of none": pyarrow.list_(pyarrow.int64())}
    kinds = kinds - {"int"} if {"int", "float"} <= kinds else kinds
    if any(one.startswith("list of ") for one in kinds):
        best = next(one for one in ("list of float", "list of int", "list of none") if one in kinds)
        kinds = {one for one in kinds if not one.startswith("list of ")} | {best}
    if not kinds:
        return pyarrow.string(), False
    alone = next(iter(kinds)) if len(kinds) == 1 else None
    return (simple[alone], False) if alone in simple else (pyarrow.string(), True)
