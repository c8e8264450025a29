"""The file that a batch's results go to, whole at any moment that the batch may be killed.

(1) While rows are missing they are appended to OUT.part, each with one write; a last line without its end is dropped.
(2) A later row of the same key stands for the earlier ones.
(3) OUT exists only with a row for each request, in the requests' order: it is written aside, synced and renamed.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

SYNC = 1.0              # seconds between syncs of what was appended
BEGINNING = b'{"file": '


def key_of(name: Any, file: str, line: int) -> str:
    """What a row is known by: its id, else its file and line."""
    return json.dumps(name, sort_keys=True) if name is not None else f"@{line} {file}"


class Journal:
    """A batch's output. failed: keys of rows with an error. line: makes bytes of a row."""

    def __init__(self, path: str, resume: bool, line: Callable[[Mapping[str, Any]], bytes]) -> None:
        self.path, self._part, self._line = path, path + ".part", line
        self.failed: set[str] = set()
        self._rows: dict[str, tuple[int, int, str, int]] = {}       # key -> (offset, length, file, line)
        self._added, self._synced = 0, time.monotonic()
        found = [one for one in (path, self._part) if os.path.exists(one)]
        full = [one for one in found if os.path.getsize(one)]
        there = next(iter(full or found), None)         # an empty OUT is in nobody's way
        if full and not resume:
            raise ValueError(f"{there} exists already: --resume goes on with it")
        self._source = there or self._part
        self._file: BinaryIO = open(self._source, "r+b" if there else "w+b")
        try:
            self._lock()
            self._end = self._read()
        except BaseException:
            self._file.close()
            raise

    def _lock(self):
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self._source}: another process writes to it") from None
        except OSError:
            pass                                # a file system without locks
        if not os.path.exists(self._source) or os.stat(self._source).st_ino != os.fstat(self._file.fileno()).st_ino:
            raise ValueError(f"{self._source}: another process wrote it a moment ago")

    def _read(self):
        end = 0
        for i, line in enumerate(self._file, 1):
            try:
                if not line.endswith(b"\n"):
                    if not line.startswith(BEGINNING[:len(line)]):
                        raise ValueError
                    break
                self._note(json.loads(line), end, len(line))
            except (ValueError, KeyError, TypeError, RecursionError):
                raise ValueError(f"{self._source}, line {i}: no row of a batch") from None
            end += len(line)
        return end

    def _note(self, row, offset, length):
        key = key_of(row_name(row), row["file"], row["line"])
        self._rows[key] = offset, length, sys.intern(row["file"]), row["line"]
        if row.get("error") is None:
            self.failed.discard(key)
        else:
            self.failed.add(key)

    def __len__(self) -> int:
        return len(self._rows)

    def found(self, key: str, file: str, line: int) -> str | None:
        """The key of the row that is there for a request. A line that could not be read had no id, and counts when it
        has one by now."""
        if key in self._rows:
            return key
        place = key_of(None, file, line)
        return place if place in self.failed else None

    def strangers(self, requests: Mapping[str, tuple[str, int]]) -> None:
        """ValueError where a row is of no request. requests: {key: (file, line)}."""
        places = {key_of(None, *place) for place in requests.values()} if self.failed else set()
        for key in self._rows:
            if key not in requests and not (key in self.failed and key in places):
                what = f"the row with id {key}" if not key.startswith("@") else "line {} of {}".format(
                    *key[1:].split(" ", 1))
                raise ValueError(f"{self._source}: has {what}, which is not among the inputs: it is another batch's")

    def add(self, row: Mapping[str, Any]) -> None:
        """Appends a row, whose file, line, id (or custom_id) and error are among its names."""
        if not self._added:
            self._begin()
        data = self._line(row)
        self._file.write(data)
        self._file.flush()
        self._note(row, self._end, len(data))
        self._end += len(data)
        self._added += 1
        if time.monotonic() - self._synced > SYNC:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def _begin(self):
        if self._source == self.path:           # it was complete, and is not any more
            os.replace(self.path, self._part)
            self._source = self._part
        self._file.seek(self._end)
        self._file.truncate()

    def finish(self, requests: Mapping[str, tuple[str, int]]) -> bool:
        """Makes OUT of the rows if there is one for each request; whether there is."""
        order = [(self.found(key, *place), place) for key, place in requests.items()]
        if any(key is None for key, _ in order):
            return False
        there = [(key, at[2:]) for key, at in self._rows.items()]
        if self._source == self.path and not self._added and there == order:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._part)           # killed between the last two steps below
            return True
        aside = self.path + ".sorted"
        try:
            with open(aside, "wb") as file:
                file.writelines(self._placed(self._rows[key], place) for key, place in order)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, self.path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)                # on a full disk it would keep --resume from going on
            raise
        sync_folder(self.path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._part)
        return True

    def _placed(self, at, place):
        """The bytes of a row; one that is known by its id may stand elsewhere by now."""
        offset, length, *there = at
        self._file.seek(offset)
        data = self._file.read(length)
        if tuple(there) == place:
            return data
        row = json.loads(data)
        row["file"], row["line"] = place
        return self._line(row)

    def close(self) -> None:
        """Syncs what was appended."""
        if self._added and not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()


def row_name(row: Mapping[str, Any]) -> Any:
    """The id that a result's request had: OpenAI's rows call it custom_id."""
    return row["custom_id"] if "custom_id" in row else row["id"]


def sync_folder(path: str) -> None:
    """Makes a rename beside path last."""
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):      # some file systems know no such sync
            os.fsync(folder)
    finally:
        os.close(folder)
