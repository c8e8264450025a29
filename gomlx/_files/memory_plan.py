"""What fits, before anything is loaded: weights, KV cache and recurrent state against the memory that is there.

    plan = gomlx.plan_memory("path/to/model")
    if not plan.fits: print(plan.why)

All of it is computed from what the engine says of the files' headers (_gomlx.describe). The cache is counted as the
engine keeps it: each layer its own heads, a window's keys and values only as long as the window sees them, layers that
share another's cache nothing.
"""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gomlx import _gomlx
from gomlx._base import arguments, machine, notebook
from gomlx._files import devices, locating

if TYPE_CHECKING:
    from gomlx._generation.options import Float, KvDtype

CONTEXT_CAP = 262144                            # no plan goes beyond it by itself
CONTEXT_FLOOR = 4096
CONTEXT_STEP = 512
SHARE = 0.85                                    # of the budget that a context chosen by the plan may fill
MAX_BATCH = 64
FLOATS = ("float32", "float16", "bfloat16")
CACHE = _gomlx.describe_cache()
BLOCK = CACHE["block"]                          # positions by which a cache grows
KV_BYTES = CACHE["bytes"]                       # bytes of a value, by kv_dtype


@dataclass(frozen=True)
class Layer:
    """What a layer keeps of a sequence."""
    n_kv_heads: int = 0
    head_dim: int = 0
    window: int = 0                             # positions that it sees; 0: all
    shared: bool = False                        # uses an earlier layer's keys and values
    state_bytes: int = 0                        # of a recurrent layer's state, whatever the length

    def bytes(self, context: int, kv_dtype: str) -> int:
        if self.shared:
            return 0
        rows = -(-context // BLOCK) * BLOCK
        if self.window:                         # chunks begin with a block; in a session that goes on, one block more
            rows = min(rows, -(-(self.window + CACHE["window_margin"]) // BLOCK) * BLOCK + CACHE["pass_rows"])
        return CACHE["states"] * self.state_bytes + int(rows * 2 * self.n_kv_heads * self.head_dim * KV_BYTES[kv_dtype])


@dataclass(frozen=True)
class MemoryPlan:
    path: str
    fits: bool
    why: str                                    # with numbers, whether it fits or not
    context: int                                # tokens of each sequence
    context_ceiling: int                        # of the architecture
    batch: int                                  # sequences at once
    max_batch: int                              # as many of this context would fit
    kv_dtype: str
    weight_bytes: int
    kv_bytes: int                               # of all sequences, full, with recurrent states
    kv_bytes_per_token: int                     # of one sequence, once windows are full
    state_bytes: int                            # of one sequence's recurrent layers, checkpoints included
    working_bytes: int                          # activations of prefill and logits, an estimate
    total_bytes: int
    budget_bytes: int
    budget_from: str
    layers: list[Layer] = field(repr=False)
    device: str = "cpu"                         # "cuda:i": all of it is on that GPU

    def remaining(self, prompt_tokens: int) -> int:
        """The tokens that the context leaves after a prompt."""
        return max(0, self.context - prompt_tokens)

    def completion(self, prompt_tokens: int, max_tokens: int | None = None) -> int:
        """max_tokens, as far as the context goes."""
        left = self.remaining(prompt_tokens)
        return left if max_tokens is None else min(max_tokens, left)

    def check(self) -> None:
        """MemoryError, saying what does not fit and why, if something does not."""
        if not self.fits:
            raise MemoryError(self.why)

    def _repr_html_(self) -> str:
        return notebook.memory_plan(self)


def plan_memory(path: str | os.PathLike[str] | None = None, *, context: int | None = None,
                kv_dtype: KvDtype | None = None, dtype: Float | None = None, batch: int = 1,
                budget: int | None = None, device: str | None = None) -> MemoryPlan:
    """What loading and running a model takes, from its headers alone.

    path        as in gomlx.load: a name of the hub is fetched first
    context     tokens of a sequence; None takes as many as 85 % of the budget hold, in steps of 512, at least 4096, at
                most what the architecture allows and 262144
    kv_dtype    "float32", "float16", "bfloat16" or "q8_0"; None as gomlx.load chooses
    dtype       of weights that are not quantised, as in gomlx.load; None as in the file
    batch       sequences at once
    budget      bytes; None is the memory that is available now, cgroup limits included, less what loaded models will
                take before their second pass, or what is free on the GPU
    device      where the model would be: "cpu", which None is too, "cuda" or "cuda:N"; a ValueError or gomlx.Error
                says why a GPU cannot be used. "auto" is of load alone: it makes these plans itself
    """
    devices.check(device)
    if device == "auto":
        raise ValueError("device: got 'auto', expected 'cpu', 'cuda' or 'cuda:N': a plan is of one device")
    for name, value, choices in (("kv_dtype", kv_dtype, KV_BYTES), ("dtype", dtype, FLOATS)):
        if value is not None:
            arguments.one_of(name, value, choices)
    for name, value in (("context", context), ("budget", budget)):
        if value is not None:
            arguments.integer(name, value, 1)
    arguments.integer("batch", batch, 1)
    path = locating.locate(path, name="path")
    known = _gomlx.describe(path, dtype=dtype, kv_dtype=kv_dtype)
    layers = layers_of(known)
    number = 0 if device in (None, "cpu") else devices.opened(device)
    available, source = (budget, "given") if budget is not None else \
        devices.free_memory(number) if number else available_memory()
    ceiling, kv_dtype = known["context_length"], known["kv_dtype"]
    weights, working = known["weight_bytes"], known["working_bytes"]

    def sequence(tokens):
        return sum(layer.bytes(tokens, kv_dtype) for layer in layers)

    def total(tokens):
        return weights + working + batch * sequence(tokens)

    chosen = context or auto_context(total, available, ceiling)
    left = available - weights - working
    max_batch = max(0, min(MAX_BATCH, left // max(1, sequence(chosen))))
    fits = total(chosen) <= available and chosen <= ceiling
    long = max(CONTEXT_CAP, ceiling) // BLOCK * BLOCK
    per_token = (sequence(long) - sequence(long - BLOCK)) // BLOCK
    return MemoryPlan(
        path, fits, reason(fits, chosen, ceiling, batch, weights, working, sequence(chosen), available, source,
                           kv_dtype),
        chosen, ceiling, batch, max_batch, kv_dtype, weights, batch * sequence(chosen), per_token,
        sum(CACHE["states"] * layer.state_bytes for layer in layers), working, total(chosen), available, source, layers,
        devices.name_of(number))


def auto_context(total, available, ceiling):
    """The longest context, in steps, whose total is at most SHARE of what is available; never below the floor."""
    ceiling = min(ceiling, CONTEXT_CAP)
    low, high = 0, ceiling // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if total(middle * CONTEXT_STEP) <= SHARE * available:
            low = middle
        else:
            high = middle - 1
    found = ceiling if total(ceiling) <= SHARE * available else low * CONTEXT_STEP
    return max(found, min(CONTEXT_FLOOR, ceiling))


def reason(fits, context, ceiling, batch, weights, working, sequence, available, source, kv_dtype):
    parts = (f"weights {size(weights)} + working memory {size(working)} + KV cache {size(batch * sequence)} "
             f"({batch} x {context} tokens, {kv_dtype})")
    of = f"{size(available)} ({source})"
    if fits:
        return f"{parts} = {size(weights + working + batch * sequence)} of {of}"
    if context > ceiling:
        return f"a context of {context} tokens is longer than the architecture's {ceiling}"
    if weights + working > available:
        return (f"weights {size(weights)} + working memory {size(working)} are more than {of}: a smaller model, or one "
                "with fewer bits, is needed")
    return f"{parts} = {size(weights + working + batch * sequence)}, but there are {of}: " + \
        ("fewer sequences, " if batch > 1 else "") + "a shorter context, or kv_dtype='q8_0', takes less"


def size(count):
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def layers_of(known: dict) -> list[Layer]:
    """What each layer of a described model keeps of a sequence."""
    return [Layer(state_bytes=one["state_bytes"]) if one["kind"] == "linear" else
            Layer(one["n_kv_heads"], one["head_dim"], one["window"], one["shared"]) for one in known["layers"]]


# ---- Q8_0 entries: the rule of zinc's planner ----

def kv_cache_bytes_per_token(n_kv_heads: int, head_dim: int, q8: bool) -> int:
    """Bytes of one layer's K, or of its V, for one token: Q8_0 blocks of 34 bytes for 32 values, or float32."""
    values = n_kv_heads * head_dim
    return values // 32 * 34 if q8 else values * 4


def default_kv_cache_q8_enabled(architecture: str, n_kv_heads: int, head_dim: int, sliding_window: int = 0,
                                debug: bool = False) -> bool:
    """Whether that planner turns Q8_0 entries on by itself: where rows are whole blocks, but not for gpt-oss, for
    Gemma 4 with windows, or while debugging. gomlx.load's own default is float16 or float32: see plan_memory."""
    name = architecture.replace("-", "_")
    if debug or name == "gpt_oss" or name.startswith("gemma4") and sliding_window:
        return False
    return head_dim > 0 and n_kv_heads > 0 and head_dim % 32 == 0 and n_kv_heads * head_dim % 32 == 0


# ---- memory ----

def whole_memory() -> tuple[int, str]:
    """(bytes of memory and swap that this machine, or the cgroup, has at all, what they are)."""
    found, swap = machine.memory(), 0
    for line in machine.lines_of("/proc/meminfo"):
        if line.startswith("SwapTotal:"):
            swap = int(line.split()[1]) * 1024
    total, limit = found["total bytes"], found["cgroup limit bytes"]
    if total is None:
        return 1 << 62, "any memory"
    if limit is not None and limit < total:
        return limit + swap, "the cgroup's limit and swap"
    return total + swap, "this machine's memory and swap"


def available_memory() -> tuple[int, str]:
    """(bytes that this process can still take, where the number comes from). What loaded models have yet to take for
    their weights, before their second pass, is not among them."""
    found = machine.memory()
    available, source = found["available bytes"], "available memory"
    for folder in machine.cgroup_folders():
        limit, used = (" ".join(machine.lines_of(os.path.join(folder, f"memory.{one}"))) for one in ("max", "current"))
        if limit.isdigit() and used.isdigit():
            cached = [line.split()[1] for line in machine.lines_of(os.path.join(folder, "memory.stat"))
                      # files' pages go where memory is needed
                      if line.startswith(("inactive_file ", "active_file "))]
            left = max(0, int(limit) - int(used) + sum(map(int, cached)))
            if available is None or left < available:
                available, source = left, "left by the cgroup's limit"
    limit = found["cgroup limit bytes"]
    if limit is not None and (available is None or limit < available):
        available, source = limit, "the cgroup's limit"
    if available is None:
        raise OSError("cannot tell how much memory is available: /proc/meminfo is missing; give budget=")
    if promised := _gomlx.get_promised_memory():
        source += f", less {size(promised)} that loaded models will still take"
    return max(0, available - promised), source
