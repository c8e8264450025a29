"""The options of generate(), chat() and their like: what their `**options` may be, for type checkers and for errors.
tests/test_types.py compares them with the signatures and with the fields of Sampling."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from gomlx._gomlx import Dtype, Session
from gomlx.bars import Progress
from gomlx.inspection import Patch, Steer
from gomlx.parsing import Parser
from gomlx.probes import Probe, ProbeEvent
from gomlx.prompt_cache import PromptCache
from gomlx.sampling import Sampling

Message = Mapping[str, Any]
# Numbers of continuations that are certainly not one: generate() gives a BatchStream for them.
Several = Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32, 64, 128]


class LoadOptions(TypedDict, total=False):
    """Of gomlx.load() with the engine of this package; other backends have options of their own. Types of numbers are
    any str, for programs that have them in tables."""
    context_length: int | None
    dtype: str | None
    kv_dtype: str | Dtype | None
    activations: str | None
    threads: int | None
    context_policy: Literal["stop", "error", "rotate"] | None
    parallel: int | None
    prompt_cache: bool | PromptCache
    progress: Progress
    fits: Literal["error", "warn", "ignore"]


class SamplingFields(TypedDict, total=False):
    """The fields of Sampling by name; None changes nothing."""
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    top_n_sigma: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_last_n: int | None
    dry_sequence_breakers: Sequence[str | Sequence[int]] | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    penalty_last_n: int | None
    penalty_prompt: bool | None
    logit_bias: Mapping[int, float] | None
    bad_words: Sequence[str | Sequence[int]] | None
    suppress_tokens: Sequence[int] | None
    samplers: str | Sequence[str] | None


class CommonOptions(SamplingFields, total=False):
    """What generate() and chat() have in common, but for `n` and `timeout`."""
    max_tokens: int | None
    min_tokens: int
    sampling: Sampling | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_ids: Sequence[int]
    ignore_eos: bool
    top_logprobs: int
    logits_processors: Sequence[Callable[[memoryview, memoryview], Any]]
    session: Session | None
    append: bool
    reset: bool
    parser: str | Parser | None
    prefill: str
    steer: Steer | Patch | Sequence[Steer | Patch]
    probe: Callable[[ProbeEvent], object] | Probe | None
    profile: bool


class GenerateOptions(CommonOptions, total=False):
    """Of generate(), but for `n`."""
    timeout: float | None


class Templating(TypedDict, total=False):
    """What a chat template sees."""
    template_args: dict[str, Any] | None
    enable_thinking: bool | None
    chat_format: str | None


class ChatOptions(GenerateOptions, Templating, total=False):
    """Of chat(), but for `n`."""
    tools: Sequence[dict[str, Any]] | None
    add_generation_prompt: bool
    thinking_budget: int | None


class BatchOptions(CommonOptions, Templating, total=False):
    """Of generate_batch(), for all prompts."""
    tools: Sequence[dict[str, Any]] | None
    add_generation_prompt: bool
    thinking_budget: int | None


# The names that the functions take by keyword, for their errors.
GENERATE = {"n", *GenerateOptions.__optional_keys__}
CHAT = {"n", *ChatOptions.__optional_keys__}
BATCH = {"options", "batch_size", "timeout", *BatchOptions.__optional_keys__}
WARM = {"prefix", "messages", "tools", *Templating.__optional_keys__}
CLASSIFY = {"labels", "return_logits", "sampling", "seed", *SamplingFields.__optional_keys__}
