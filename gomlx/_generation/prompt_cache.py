"""PromptCache: sessions of earlier prompts, of which a new prompt with the same beginning takes a fork.

A hit gives the bits of a cold run: the keys of a beginning do not depend on what comes after it. Forks share memory
with the entry they come from until one of both goes on.
"""
from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gomlx import _gomlx
from gomlx._generation.adapters import uses_of

if TYPE_CHECKING:
    Uses = tuple[tuple[int, float], ...]        # hash and weight of each adapter

LEAST_TOKENS = 64               # in common are worth a fork, and the copy of a block that is not whole
WARMED_TOKENS = 16              # of a warmed prompt


@dataclass(frozen=True)
class PromptCacheStats:
    """hits and misses count prompts that were looked up: those of at least min_tokens, and shorter ones that hit."""
    entries: int
    bytes: int                  # memory of the entries' caches; what they share counts once
    hits: int
    misses: int
    hit_tokens: int             # tokens that were not computed again
    miss_tokens: int
    restore_seconds: float      # time spent on finding and forking entries

    @property
    def hit_rate(self) -> float:
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0


@dataclass
class Entry:
    ids: memoryview             # int32: the tokens whose keys the session holds
    session: _gomlx.Session
    uses: Uses                  # adapters that the keys were computed with
    pinned: bool = False


class PromptCache:
    """entries, max_bytes: what is kept at most of prompts that were not warmed; the one that was used longest ago goes
    first. Memory that entries share counts once, and what they share with warmed ones does not: it would not be freed.
    min_tokens: shorter common beginnings are computed anew; of a warmed prompt 16 tokens are enough, or all it has. All
    methods may be called from any thread."""

    def __init__(self, entries: int = 4, min_tokens: int = LEAST_TOKENS, max_bytes: int = 1 << 30) -> None:
        if entries < 0 or min_tokens < 1 or max_bytes < 0:
            raise ValueError(f"prompt cache: {entries} entries of at least {min_tokens} tokens in {max_bytes} bytes, "
                             "expected 0 or more of 1 or more in 0 or more")
        self.max_entries, self.min_tokens, self.max_bytes = entries, min_tokens, max_bytes
        self._entries: list[Entry] = []          # used longest ago first
        self._lock = threading.Lock()
        self._hits = self._misses = self._hit_tokens = self._miss_tokens = 0
        self._seconds = 0.0

    def take(self, ids: Sequence[int], uses: Uses = ()) -> tuple[_gomlx.Session | None, int]:
        """A fork of the entry that was computed with the same adapters and has most of the beginning of ids, or None;
        and the tokens that an entry has in common with ids: more than the fork has where layers could not go back."""
        if len(ids) < self.min_tokens and not self._entries:
            return None, 0
        start = time.perf_counter()
        ids = packed(ids)
        with self._lock:
            found = self._alike(ids, uses)
            fork, left = None, 0
            for shared, entry in found:
                if shared <= left:
                    break
                fork, left = self._better(entry, shared, fork, left)
            self._hits += fork is not None
            if found or len(ids) >= self.min_tokens:
                self._misses += fork is None
                self._miss_tokens += len(ids) - left
            self._hit_tokens += left
            self._seconds += time.perf_counter() - start if found else 0
            return fork, found[0][0] if found else 0

    def _alike(self, ids, uses):
        """[(tokens in common, entry)] of those that are worth a fork, the longest first, and the latest of these."""
        found = []
        for entry in reversed(self._entries):
            shared = common_length(entry.ids, ids) if entry.uses == uses else 0
            least = min(self.min_tokens, WARMED_TOKENS, len(entry.ids)) if entry.pinned else self.min_tokens
            if shared >= least:
                found.append((shared, entry))
        return sorted(found, key=lambda one: -one[0])

    def _better(self, entry, shared, fork, left):
        """(fork, its length): of the entry, where that has more of these tokens than the fork that there is. Recurrent
        layers and windows may have to go back further."""
        other = entry.session.fork()
        length = other.truncate(shared)
        if length <= left:
            other.close()
            return fork, left
        if fork is not None:
            fork.close()
        self._entries.remove(entry)             # it was used last
        self._entries.append(entry)
        return other, length

    def put(self, session: _gomlx.Session, ids: Sequence[int], pinned: bool = False) -> None:
        """Takes ownership of a session that holds the keys of ids; it is closed if another entry has all of them."""
        ids = packed(ids)[:session.length]
        if len(ids) < self.min_tokens and not pinned or not (self.max_entries or pinned):
            session.close()
            return
        uses = uses_of(session)
        with self._lock:
            for entry in list(self._entries):
                shared = common_length(entry.ids, ids)
                if entry.uses != uses:
                    continue
                if shared == len(ids) and not pinned:            # a longer one is cached already
                    session.close()
                    return
                if shared == len(entry.ids) and not entry.pinned:
                    self._drop(entry)
            self._entries.append(Entry(ids, session, uses, pinned))
            unpinned = [entry for entry in self._entries if not entry.pinned]
            warmed = bytes_of(entry for entry in self._entries if entry.pinned)
            while unpinned and (len(unpinned) > self.max_entries or bytes_of(self._entries) - warmed > self.max_bytes):
                self._drop(unpinned.pop(0))

    def clear(self) -> None:
        with self._lock:
            for entry in list(self._entries):
                self._drop(entry)

    def forget_adapter(self, hashed: int) -> None:
        """Drops what was computed with an adapter, of this hash."""
        with self._lock:
            for entry in [one for one in self._entries if any(known == hashed for known, _ in one.uses)]:
                self._drop(entry)

    def _drop(self, entry):
        self._entries.remove(entry)
        entry.session.close()

    @property
    def stats(self) -> PromptCacheStats:
        with self._lock:
            return PromptCacheStats(len(self._entries), bytes_of(self._entries), self._hits, self._misses,
                                    self._hit_tokens, self._miss_tokens, self._seconds)


def bytes_of(entries: Iterable[Entry]) -> int:
    """Of their caches; what they share counts once."""
    return _gomlx.session_bytes([entry.session for entry in entries])


def packed(ids) -> memoryview:
    return ids if isinstance(ids, memoryview) else memoryview(array("i", ids))


def common_length(a, b) -> int:
    """The length of the common beginning of a and b."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:                        # a[:low] is common, a[:high] is not
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low
