"""What fits, before anything is loaded: weights, KV cache and recurrent state against the memory that is there.

    plan = gomlx.plan_memory("path/to/model")
    if not plan.fits: print(plan.why)

All of it is computed from the files' headers. The cache is counted as the engine keeps it: each layer its own heads, a
window's keys and values only as long as the window sees them, layers that share another's cache nothing.
"""
from __future__ import annotations

import os
from dataclasses import dataclass, field

from gomlx import _gomlx, arguments, headers, notebook
from gomlx.arguments import named

CONTEXT_CAP = 262144                            # no plan goes beyond it by itself
CONTEXT_FLOOR = 4096
CONTEXT_STEP = 512
SHARE = 0.85                                    # of the budget that a context of its own choice may fill
PREFILL_ROWS = 512                              # tokens that run at once; a window keeps them beside what it sees
BLOCK = 256                                     # positions by which a cache grows
BEHIND = BLOCK                                  # positions kept behind a window, to fall back to (csrc/nn/cache.c)
STATES = 5                                      # of a recurrent layer: the current one and checkpoints
MAX_BATCH = 64
KV_BYTES = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "q8_0": 34 / 32}
FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


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
            rows = min(rows, -(-(self.window + BEHIND) // BLOCK) * BLOCK + PREFILL_ROWS)
        return STATES * self.state_bytes + int(rows * 2 * self.n_kv_heads * self.head_dim * KV_BYTES[kv_dtype])


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


@named
def plan_memory(path: str | os.PathLike[str] | None = None, *, context: int | None = None, kv_dtype: str | None = None,
                dtype: str | None = None, batch: int = 1, budget: int | None = None) -> MemoryPlan:
    """What loading and running a model takes, from its headers alone.

    path        as in gomlx.load: a name of the hub is fetched first
    context     tokens of a sequence; None takes as many as 85 % of the budget hold, in steps of 512, at least 4096, at
                most what the architecture allows and 262144
    kv_dtype    "float32", "float16", "bfloat16" or "q8_0"; None as gomlx.load chooses
    dtype       of weights that are not quantised, as in gomlx.load; None as in the file
    batch       sequences at once
    budget      bytes; None is the memory that is available now, cgroup limits included, less what loaded models will
                take before their second pass
    """
    for name, value, choices in (("kv_dtype", kv_dtype, KV_BYTES), ("dtype", dtype, FLOAT_BYTES)):
        if value is not None:
            arguments.one_of(name, value, choices)
    for name, value in (("context", context), ("budget", budget)):
        if value is not None:
            arguments.whole(name, value, 1)
    arguments.whole("batch", batch, 1)
    from gomlx import loading
    header = headers.read(loading.locate(path, name="path"))
    layers = layers_of(header)
    available, source = (budget, "given") if budget is not None else available_memory()
    ceiling = headers.context_length(header) or CONTEXT_CAP
    kv_dtype = kv_dtype or default_kv_dtype(header, dtype)
    weights, working = weight_bytes(header, dtype), working_bytes(header, layers, dtype)

    def sequence(tokens):
        return sum(layer.bytes(tokens, kv_dtype) for layer in layers)

    def total(tokens):
        return weights + working + batch * sequence(tokens)

    chosen = context or auto_context(total, available, ceiling)
    room = available - weights - working
    max_batch = max(0, min(MAX_BATCH, room // max(1, sequence(chosen))))
    fits = total(chosen) <= available and chosen <= ceiling
    long = max(CONTEXT_CAP, ceiling) // BLOCK * BLOCK
    per_token = (sequence(long) - sequence(long - BLOCK)) // BLOCK
    return MemoryPlan(
        header.path, fits, reason(fits, chosen, ceiling, batch, weights, working, sequence(chosen), available, source,
                                  kv_dtype),
        chosen, ceiling, batch, max_batch, kv_dtype, weights, batch * sequence(chosen), per_token,
        sum(STATES * layer.state_bytes for layer in layers), working, total(chosen), available, source, layers)


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


# ---- what the engine keeps ----

def weight_bytes(header, dtype):
    if dtype is None:
        return header.weight_bytes
    floats = {"F32": 4, "F16": 2, "BF16": 2, "F64": 8}
    return sum(one.bytes * FLOAT_BYTES[dtype] // floats[one.dtype] if one.dtype in floats else one.bytes
               for name, one in header.tensors.items() if not headers.TOWERS.match(name))


def default_activations(header, dtype):
    """As gomlx.load: int8 beside quantised weights, but MLX's mxfp8; bfloat16 beside matrices in it where the processor
    multiplies such."""
    quantised = headers.quantisation(header)
    if header.format == "gguf":
        blocks = quantised["bits"] is not None
    else:
        blocks = any(name.endswith(".biases") or (one.dtype in ("U32", "U8") and quantised["type"] != "mxfp8")
                     for name, one in header.tensors.items())
    rounded = _gomlx.multiplies_bfloat16() and any(
        len(one.shape) > 1 and one.dtype in FLOATS and (dtype or FLOATS[one.dtype]) == "bfloat16"
        for name, one in header.tensors.items()
        if not headers.TOWERS.match(name) and not name.endswith((".scales", ".biases")))
    return "int8" if blocks else "bfloat16" if rounded else "float32"


def default_kv_dtype(header, dtype):
    """As gomlx.load."""
    return "float32" if default_activations(header, dtype) == "float32" else "float16"


FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


# A column of activations in columns of float32; int8 ones take nine bytes for eight values.
COLUMN = {"int8": 9 / 32, "bfloat16": 1 / 2, "float32": 1}


def working_bytes(header, layers, dtype):
    """What one prefill chunk holds at its peak, in columns of float32, and logits. That is in the MLP or in attention:
    the residual stream, its normed form, the inside of the MLP, and queries, keys and values with attention's copies,
    which are freed only when the layer has run. A mixture has its rows in the order of the experts, once for each expert
    that a token goes to: the inputs, the halves, the outputs; and the sum of them."""
    read = Reader(header)
    hidden, heads = read.number("hidden_size", "embedding_length", 0), read.number(*HEADS, 1)
    queries = heads * max(layer.head_dim for layer in layers)
    keys = max(layer.n_kv_heads * layer.head_dim for layer in layers)
    mlp = read.number("intermediate_size", "feed_forward_length", 4 * hidden)
    column = COLUMN[default_activations(header, dtype)]
    # Layers of these have more beside queries, about as much as the halves of an MLP: inputs of each layer, linear attention.
    inside = 2 * mlp if read.family in ("gemma4", "qwen3_5", "qwen3_next") else mlp * column
    experts = max(read.number("num_experts_per_tok", "expert_used_count", 0), read.number("top_k_experts", "", 0))
    if experts:
        inner = read.number("moe_intermediate_size", "expert_feed_forward_length", mlp)
        routed = hidden + experts * (2 * (hidden + inner) + (inner * column if column < 1 / 2 else 0))
        inside = max(inside, routed) if read.family == "gemma4" else routed
    if read.family == "gemma4":                             # norms behind both blocks, and the inputs of each layer
        inside += hidden + len(layers) * read.number("hidden_size_per_layer_input",
                                                     "embedding_length_per_layer_input", 0)
    elif read.family in ("qwen3_5", "qwen3_next"):          # gated attention
        inside += queries
    columns = int(max(2 * hidden + inside + 2 * queries + 3 * keys, hidden + 4 * queries + 2 * keys))
    vocab = max((one.shape[0] for name, one in header.tensors.items()
                 if len(one.shape) == 2 and ("embed_tokens." in name or name == "token_embd.weight")), default=0)
    return 4 * (PREFILL_ROWS * columns + 2 * vocab)


HEADS = ("num_attention_heads", "attention.head_count")
KV_HEADS = ("num_key_value_heads", "attention.head_count_kv")
# Where a config leaves out what its class says: head_dim and sliding_window.
CLASS_HEAD_DIM = {"gemma2": 256, "gemma3": 256, "gemma4": 256, "qwen3": 128, "qwen3_moe": 128, "qwen3_next": 256,
                  "qwen3_5": 256, "gpt_oss": 64}
CLASS_WINDOW = {"gemma2": 4096, "gemma3": 4096, "gemma4": 512, "gpt_oss": 128}
# Of the layers of a pattern, one is full: the last of each such group (gpt-oss and Gemma 2: every second).
PATTERN = {"gemma2": 2, "gemma3": 6, "gemma4": 6, "gpt_oss": 2}


class Reader:
    """Numbers of a header, by their names in config.json and in GGUF's metadata."""

    def __init__(self, header):
        self.config, self.gguf = header.config, header.format == "gguf"
        self.kind = header.model_type or ""
        self.family = self.kind.replace("-", "_").removesuffix("_text").removesuffix("_unified")
        if self.family.startswith(("qwen3_5", "qwen35", "qwen3next")):
            self.family = "qwen3_next" if self.family == "qwen3next" else "qwen3_5"

    def get(self, name, gguf_name):
        return self.config.get(f"{self.kind}.{gguf_name}" if self.gguf else name)

    def number(self, name, gguf_name, default=None):
        value = self.get(name, gguf_name)
        if isinstance(value, list) and value:
            value = max(value, key=lambda one: one if isinstance(one, int) else 0)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 40:
            return value
        if default is None:
            raise ValueError(f"{self.kind or 'the model'}: {gguf_name if self.gguf else name} is {value!r}, expected a "
                             "number")
        return default


def layers_of(header: headers.Header) -> list[Layer]:
    """What each layer of the model keeps of a sequence."""
    read = Reader(header)
    n_layers = read.number("num_hidden_layers", "block_count")
    if n_layers > 10000:
        raise ValueError(f"{header.path}: {n_layers} layers")
    heads = read.number(*HEADS)
    dim = read.number("head_dim", "attention.key_length",
                      CLASS_HEAD_DIM.get(read.family, read.number("hidden_size", "embedding_length") // max(1, heads)))
    window = read.number("sliding_window", "attention.sliding_window", CLASS_WINDOW.get(read.family, 0))
    if read.config.get("use_sliding_window", read.gguf or not read.family.startswith("qwen")) is False:
        window = 0
    kinds = layer_kinds(read, n_layers, window)
    shared_from = n_layers - read.number("num_kv_shared_layers", "attention.shared_kv_layers", 0)
    return [Layer(state_bytes=state_bytes(read)) if kind == "linear" else
            Layer(*heads_of(read, i, kind, heads, dim), window if kind == "sliding" else 0, i >= shared_from)
            for i, kind in enumerate(kinds)]


def layer_kinds(read, n_layers, window):
    """"full", "sliding" or "linear" for each layer."""
    named = read.config.get("layer_types")
    if isinstance(named, list) and len(named) == n_layers and all(isinstance(one, str) for one in named):
        return ["linear" if one.startswith("linear") else "sliding" if one.startswith("sliding") and window else "full"
                for one in named]
    if read.family in ("qwen3_5", "qwen3_next"):
        every = read.number("full_attention_interval", "full_attention_interval", 4)
        return ["full" if every and (i + 1) % every == 0 else "linear" for i in range(n_layers)]
    if not window:
        return ["full"] * n_layers
    pattern = read.get("sliding_window_pattern", "attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == n_layers:
        return ["sliding" if one else "full" for one in pattern]
    every = pattern if isinstance(pattern, int) and pattern > 0 else PATTERN.get(read.family)
    kinds = ["full" if every and (i + 1) % every == 0 else "sliding" for i in range(n_layers)]
    return [*kinds[:-1], "full"] if read.family == "gemma4" and kinds else kinds


def heads_of(read, i, kind, heads, dim):
    """(KV heads, head_dim) of an attention layer."""
    kv = read.get(*KV_HEADS)
    if isinstance(kv, list) and i < len(kv) and isinstance(kv[i], int):
        count = kv[i]
    else:
        count = read.number(*KV_HEADS, heads)
    if read.family == "gemma4" and not read.gguf and kind == "full":
        several = read.config.get("per_layer_config")       # transformers 5 names only the layers that differ
        if isinstance(several, dict):
            own = several.get(str(i))
            dim = own["head_dim"] if isinstance(own, dict) and isinstance(own.get("head_dim"), int) else dim
        else:
            dim = read.number("global_head_dim", "", 512)
        if read.config.get("attention_k_eq_v"):
            count = read.number("num_global_key_value_heads", "", count)
    if read.gguf and kind == "sliding":
        dim = read.number("", "attention.key_length_swa", dim)
    return count, dim


def state_bytes(read):
    """A gated delta layer's convolution and recurrent state, in float32."""
    if read.gguf:
        groups, key_dim = read.number("", "ssm.group_count"), read.number("", "ssm.state_size")
        inner, kernel = read.number("", "ssm.inner_size"), read.number("", "ssm.conv_kernel")
        return 4 * ((kernel - 1) * (2 * groups * key_dim + inner) + inner * key_dim)
    keys, values = (read.number(f"linear_num_{one}_heads", "", 16 if one == "key" else 32) for one in ("key", "value"))
    key_dim, value_dim = (read.number(f"linear_{one}_head_dim", "", 128) for one in ("key", "value"))
    kernel = read.number("linear_conv_kernel_dim", "", 4)
    return 4 * ((kernel - 1) * (2 * keys * key_dim + values * value_dim) + values * value_dim * key_dim)


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
    from gomlx import doctor
    found, swap = doctor.memory(), 0
    for line in doctor.lines_of("/proc/meminfo"):
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
    from gomlx import doctor
    found = doctor.memory()
    available, source = found["available bytes"], "available memory"
    for folder in doctor.cgroup_folders():
        limit, used = (" ".join(doctor.lines_of(os.path.join(folder, f"memory.{one}"))) for one in ("max", "current"))
        if limit.isdigit() and used.isdigit():
            cached = [line.split()[1] for line in doctor.lines_of(os.path.join(folder, "memory.stat"))
                      if line.startswith(("inactive_file ", "active_file "))]       # files' pages go where memory is needed
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
