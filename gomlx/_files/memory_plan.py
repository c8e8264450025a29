"""What fits, before anything is loaded: weights, KV cache and recurrent state against the memory that is there.

    plan = gomlx.plan_memory("path/to/model")
    if not plan.fits: print(plan.why)

All of it is computed from what the engine says of the files' headers (_gomlx.describe). The cache is counted as the
engine keeps it: each layer its own heads, a window's keys and values only as long as the window sees them, layers that
share another's cache nothing.
"""
from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gomlx import _gomlx
from gomlx._base import arguments, machine, notebook
from gomlx._files import devices, locating, shares
from gomlx._files.shares import BLOCK, CACHE, KV_BYTES, Layer

if TYPE_CHECKING:
    from gomlx._generation.options import Float, KvDtype

CONTEXT_CAP = 262144                            # no plan goes beyond it by itself
CONTEXT_FLOOR = 4096
CONTEXT_STEP = 512
SHARE = 0.85                                    # of the budget that a context chosen by the plan may fill
MAX_BATCH = 64
FLOATS = ("float32", "float16", "bfloat16")


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
    device: str = "cpu"                         # "cuda:i": the last gpu_layers layers and the head are on that GPU
    gpu_layers: int = 0                         # of all: all of the model is there; 0 where none fits, or on the CPU
    gpu_bytes: int = 0                          # of the total, what the GPU holds; the budget is the GPU's
    cpu_bytes: int = 0                          # ... and what the processor's memory holds
    possible_gpu_layers: list[int] = field(default_factory=list, repr=False)    # what gpu_layers may be

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
                budget: int | None = None, device: str | None = None, gpu_layers: int | None = None,
                gpu_memory: int | str | None = None) -> MemoryPlan:
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
    gpu_layers  how many of the last layers are on the GPU, as in gomlx.load; None, -1 and more than there are: all
    gpu_memory  bytes, or a text such as "10GB", that the model may take of the GPU: the plan is of as many of the last
                layers as fit with their cache of `context`, or else of 4096 tokens. plan.gpu_layers says how many; 0,
                and plan.why what one takes, where none fits
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
    device, gpu_layers, gpu_memory = devices.check_share(device, gpu_layers, gpu_memory)
    path = locating.locate(path, name="path")
    known = _gomlx.describe(path, dtype=dtype, kv_dtype=kv_dtype)
    number = 0 if device in (None, "cpu") or gpu_layers == 0 else devices.opened(device)
    available, source = (budget, "given") if budget is not None else \
        devices.free_memory(number) if number else available_memory()
    if gpu_memory is not None and gpu_memory < available:
        available, source = gpu_memory, "gpu_memory"
    asked = Asked(path, known, context, kv_dtype or known["kv_dtype"], batch, available, source, number)
    if not number:
        return planned(asked, 0)
    if gpu_memory is None:
        return planned(asked, counted(known, gpu_layers))
    return most_layers(asked)


@dataclass(frozen=True)
class Asked:
    """What a plan is for."""
    path: str
    known: dict
    context: int | None
    kv_dtype: str
    batch: int
    available: int
    source: str
    number: int                                 # of the device


def counted(known, gpu_layers):
    """gpu_layers as a number of layers that a GPU can have."""
    n = len(known["layers"])
    count, choices = n if gpu_layers in (None, -1) or gpu_layers > n else gpu_layers, shares.possible(known)
    if count not in choices:
        raise ValueError(f"gpu_layers is {gpu_layers}, expected {choices[0]} or more of {n}: before that, layers read "
                         "the keys of earlier ones, and have to be where these are")
    return count


def most_layers(asked: Asked) -> MemoryPlan:
    """The plan of as many layers as the GPU's budget holds."""
    context = asked.context or min(CONTEXT_FLOOR, asked.known["context_length"])

    def needs(count):
        return shares.divide(asked.known, count)[1].total(context, asked.kv_dtype, asked.batch)

    choices = shares.possible(asked.known)
    fitting = [count for count in choices if needs(count) <= asked.available]
    if fitting:
        return planned(asked, fitting[-1])
    least = shares.divide(asked.known, choices[0])[1]
    layers = "one layer takes" if choices[0] == 1 else f"the last {choices[0]} layers, which go together, take"
    why = (f"{size(asked.available)} ({asked.source}) hold no layer of {asked.path}: {layers} "
           f"{size(needs(choices[0]))}: weights with the head {size(least.weight_bytes)}, working memory "
           f"{size(least.working_bytes)}, KV cache {size(asked.batch * least.sequence(context, asked.kv_dtype))} "
           f"({asked.batch} x {context} tokens, {asked.kv_dtype})")
    return dataclasses.replace(planned(asked, 0), fits=False, why=why)


def planned(asked: Asked, count: int) -> MemoryPlan:
    """The plan of a model with so many layers on the GPU."""
    known, kv_dtype, batch, ceiling = asked.known, asked.kv_dtype, asked.batch, asked.known["context_length"]
    places = [(share, room) for share, room in zip(shares.divide(known, count), rooms(asked, count)) if share.layers]

    def chosen_in(share, room):
        return auto_context(lambda tokens: share.total(tokens, kv_dtype, batch), room[0], ceiling)

    context = asked.context or min(chosen_in(*place) for place in places)
    max_batch = min((room[0] - share.weight_bytes - share.working_bytes) // max(1, share.sequence(context, kv_dtype))
                    for share, room in places)
    fits = [share.total(context, kv_dtype, batch) <= room[0] and context <= ceiling for share, room in places]
    said = [reason(fit, context, ceiling, batch, share, room, kv_dtype) for fit, (share, room) in zip(fits, places)]
    if len(places) > 1:
        where = shares.said(count, len(known["layers"]))
        said = [f"{where[name]}: {text}" for name, text in zip(("cpu", "gpu"), said)]
    long = max(CONTEXT_CAP, ceiling) // BLOCK * BLOCK
    everything = shares.divide(known, 0)[0]
    per_token = (everything.sequence(long, kv_dtype) - everything.sequence(long - BLOCK, kv_dtype)) // BLOCK
    totals = [share.total(context, kv_dtype, batch) for share, _ in places]
    on_gpu = totals[-1] if count else 0
    return MemoryPlan(
        asked.path, all(fits), "; ".join(said), context, ceiling, batch, max(0, min(MAX_BATCH, max_batch)), kv_dtype,
        sum(share.weight_bytes for share, _ in places), batch * everything.sequence(context, kv_dtype), per_token,
        sum(CACHE["states"] * layer.state_bytes for layer in everything.layers),
        sum(share.working_bytes for share, _ in places), sum(totals), asked.available, asked.source,
        everything.layers, devices.name_of(asked.number), count, on_gpu, sum(totals) - on_gpu, shares.possible(known))


def rooms(asked: Asked, count: int) -> tuple[tuple[int, str], tuple[int, str]]:
    """(bytes, what they are) of the processor's memory, and of the GPU's, which is the budget where there is one."""
    given = asked.available, asked.source
    shared = 0 < count < len(asked.known["layers"])
    return available_memory() if shared else given, given


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


def reason(fits, context, ceiling, batch, share, room, kv_dtype):
    """Why a share fits the room, or does not."""
    weights, working, cache = share.weight_bytes, share.working_bytes, batch * share.sequence(context, kv_dtype)
    parts = (f"weights {size(weights)} + working memory {size(working)} + KV cache {size(cache)} "
             f"({batch} x {context} tokens, {kv_dtype})")
    of = f"{size(room[0])} ({room[1]})"
    if fits:
        return f"{parts} = {size(weights + working + cache)} of {of}"
    if context > ceiling:
        return f"a context of {context} tokens is longer than the architecture's {ceiling}"
    if weights + working > room[0]:
        return (f"weights {size(weights)} + working memory {size(working)} are more than {of}: a smaller model, or one "
                "with fewer bits, is needed")
    return f"{parts} = {size(weights + working + cache)}, but there are {of}: " + \
        ("fewer sequences, " if batch > 1 else "") + "a shorter context, or kv_dtype='q8_0', takes less"


def size(count):
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


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
