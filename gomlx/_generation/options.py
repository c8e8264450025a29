"""The options of generate(), chat() and their like: GenerationOptions holds and checks them, the TypedDicts say to type
checkers what the functions take by keyword. tests/project/test_types.py holds both together, and with the fields of
Sampling."""
from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from gomlx._base import arguments
from gomlx._base.bars import Progress
from gomlx._generation.adapters import AdapterChoice, checked_choice
from gomlx._generation.constraints import WHITESPACE, Constraint, Whitespace
from gomlx._generation.inspection import Patch, Steer
from gomlx._generation.prompt_cache import PromptCache
from gomlx._generation.sampling import FIELDS, Sampling
from gomlx._gomlx import Dtype, Session
from gomlx._training.adapter import Adapter
from gomlx.parsing import Parser
from gomlx.probes import Probe, ProbeEvent

if TYPE_CHECKING:
    from typing import Unpack

F = TypeVar("F", bound=Callable[..., Any])
Message = Mapping[str, Any]
# Numbers of continuations that are certainly not one: generate() gives a BatchStream for them.
Several = Literal[2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 20, 24, 32, 64, 128]
# Types of numbers by name: of weights that are not quantised, of the KV cache, of what products multiply by weights.
Float = Literal["float32", "float16", "bfloat16"]
KvDtype = Literal["float32", "float16", "bfloat16", "q8_0"]
Activations = Literal["float32", "int8", "bfloat16"]
# Options of which one says what an answer has to be.
CONSTRAINTS = ("schema", "regex", "grammar", "choice", "constraint")
MAX_TOKENS = 2**63 - 1
MAX_LOGPROBS = 256


class LoadOptions(TypedDict, total=False):
    """Of gomlx.load() with the engine of this package; other backends have options of their own."""
    context_length: int | None
    dtype: Float | Dtype | None
    kv_dtype: KvDtype | Dtype | None
    activations: Activations | None
    threads: int | None
    context_policy: Literal["stop", "error", "rotate"] | None
    parallel: int | None
    prompt_cache: bool | PromptCache
    progress: Progress
    adapter_path: str | os.PathLike[str] | Adapter | Sequence[str | os.PathLike[str] | Adapter] | None
    fits: Literal["error", "warn", "ignore"]
    device: str | None
    gpu_layers: int | None
    gpu_memory: int | str | None


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
    """What generate() and chat() have in common, but for `n`, `options` and `timeout`."""
    max_tokens: int | None
    min_tokens: int
    sampling: Sampling | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_ids: Sequence[int]
    ignore_eos: bool
    top_logprobs: int
    prompt_logprobs: int | None
    logits_processors: Sequence[Callable[[memoryview, memoryview], Any]]
    session: Session | None
    append: bool
    reset: bool
    parser: str | Parser | None
    thinking_budget: int | None
    prefill: str
    steer: Steer | Patch | Sequence[Steer | Patch]
    probe: Callable[[ProbeEvent], object] | Probe | None
    profile: bool
    adapter: AdapterChoice
    schema: Any
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None
    constraint: Constraint | None
    whitespace: Whitespace
    enforce: Literal["strict", "relaxed"]


class GenerateOptions(CommonOptions, total=False):
    """Of generate(), but for `n` and `options`."""
    timeout: float | None


class Templating(TypedDict, total=False):
    """What a chat template sees."""
    template_args: dict[str, Any] | None
    enable_thinking: bool | None
    chat_format: str | None


class ChatOptions(GenerateOptions, Templating, total=False):
    """Of chat(), but for `n` and `options`."""
    tools: Sequence[dict[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    add_generation_prompt: bool


class BatchOptions(CommonOptions, Templating, total=False):
    """Of generate_batch(), for all prompts."""
    tools: Sequence[dict[str, Any]] | None
    tool_choice: str | Mapping[str, Any] | None
    parallel_tool_calls: bool
    add_generation_prompt: bool


def checked(default: Any, check: Callable[..., Any] | None = None, *limits: Any) -> Any:
    """A field whose value is what check(name, value, *limits) returns; None stays where it is the default."""
    return dataclasses.field(default=default, metadata={"check": check, "limits": limits})


def instance(name, value, kind, expected):
    if not isinstance(value, kind):
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")
    return value


def stop_texts(name, value):
    """A list of the texts."""
    if value is None:
        return []
    texts = list(value) if hasattr(value, "__iter__") and not isinstance(value, str) else [value]
    if not all(isinstance(one, str) for one in texts):
        raise TypeError(f"{name}: expected a text or several, got {value!r:.80}")
    return texts


def steering(name, value):
    if isinstance(value, Steer | Patch):
        return value
    return arguments.sequence(name, value, "gomlx.Steer or gomlx.Patch, one or several")


def choices(name, value):
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name}: expected texts, got {value!r:.80}")
    texts = tuple(value)
    if not texts or not all(isinstance(one, str) and one for one in texts):
        raise ValueError(f"{name}: expected texts, none of them empty, got {value!r:.80}")
    return texts


def anything(name, value):
    return value


def one_probe(name, value):
    return value if isinstance(value, Probe) else Probe(arguments.function(name, value))


@dataclass(frozen=True, init=False, repr=False, eq=False)
class GenerationOptions:
    """Options of generate() and chat(), checked once: `model.generate(prompt, options=made)`. They are given by
    keyword, as to generate(), whose documentation says what each is: `GenerationOptions(max_tokens=100,
    temperature=0.7)`. TypeError or ValueError names the option that is wrong.

    sampling_fields     the fields of Sampling that were given by name
    """
    max_tokens: int | None = checked(None, arguments.integer, 0, MAX_TOKENS)
    min_tokens: int = checked(0, arguments.integer, 0, MAX_TOKENS)
    sampling: Sampling | None = checked(None, instance, Sampling, "a gomlx.Sampling")
    seed: int | None = checked(None, arguments.integer, 0, 2**64 - 1)
    stop: Sequence[str] = checked((), stop_texts)
    stop_ids: Sequence[int] = checked((), arguments.token_ids)
    ignore_eos: bool = checked(False, arguments.flag)
    top_logprobs: int = checked(0, arguments.integer, 0, MAX_LOGPROBS)
    prompt_logprobs: int | None = checked(None, arguments.integer, 0, MAX_LOGPROBS)
    logits_processors: Sequence[Callable[[memoryview, memoryview], Any]] = checked((), arguments.functions)
    session: Session | None = checked(None, instance, Session, "a gomlx.Session")
    append: bool = checked(False, arguments.flag)
    reset: bool = checked(False, arguments.flag)
    parser: str | Parser | None = checked(None, instance, (str, Parser), "a name or a gomlx.parsing.Parser")
    thinking_budget: int | None = checked(None, arguments.integer, 0)
    timeout: float | None = checked(None, arguments.seconds)
    prefill: str = checked("auto", arguments.one_of, ("auto", "batched", "token", "validate"))
    steer: Steer | Patch | Sequence[Steer | Patch] = checked((), steering)
    probe: Probe | None = checked(None, one_probe)
    profile: bool = checked(False, arguments.flag)
    adapter: AdapterChoice = checked(None, checked_choice)
    schema: Any = checked(None, anything)
    regex: str | None = checked(None, arguments.text, "a pattern")
    grammar: str | None = checked(None, arguments.text, "a grammar in Lark's notation or GBNF")
    choice: Sequence[str] | None = checked(None, choices)
    constraint: Constraint | None = checked(None, instance, Constraint, "a gomlx.Constraint")
    whitespace: Whitespace = checked("default", arguments.one_of, tuple(WHITESPACE))
    enforce: Literal["strict", "relaxed"] = checked("strict", arguments.one_of, ("strict", "relaxed"))

    def __init__(self, **options: Unpack[GenerateOptions]) -> None:
        arguments.known("GenerationOptions", options, GenerateOptions.__optional_keys__)
        for one in dataclasses.fields(self):
            value = options.get(one.name, one.default)
            if one.name in options and not (value is None and one.default is None):
                value = one.metadata["check"](one.name, value, *one.metadata["limits"])
            object.__setattr__(self, one.name, one.default if isinstance(value, list) and not value else value)
        fields = {name: options[name] for name in FIELDS if options.get(name) is not None}
        object.__setattr__(self, "sampling_fields", fields)
        if self.append and self.reset:
            raise ValueError("append and reset: expected at most one of the two")
        given = [name for name in CONSTRAINTS if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)}: expected at most one of them")
        if given and self.ignore_eos:
            raise ValueError(f"{given[0]}: its end is a stop id, which ignore_eos leaves out")
        if self.session is None and (self.append or self.reset):
            raise ValueError(f"{'append' if self.append else 'reset'}: there is no session")

    def given(self) -> dict[str, Any]:
        """The options that are not at their defaults, by name."""
        own = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)
               if getattr(self, one.name) is not one.default}
        return own | self.sampling_fields

    def replace(self, **options: Unpack[GenerateOptions]) -> GenerationOptions:
        """The same with these options changed; a field of Sampling that is None stays."""
        return GenerationOptions(**self.given() | {name: value for name, value in options.items()
                                                   if value is not None or name not in FIELDS})

    def sampling_of(self, own: Sampling) -> Sampling:
        """How tokens are drawn by a model whose own sampling is `own`."""
        return (self.sampling or own).replace(**self.sampling_fields)

    def __repr__(self) -> str:
        return f"GenerationOptions({', '.join(f'{name}={value!r}' for name, value in self.given().items())})"


def shown_with(options: Any) -> Callable[[F], F]:
    """A decorator for a function with **keywords: its signature names them, as the TypedDict `options` does."""
    defaults = {one.name: one.default for one in dataclasses.fields(GenerationOptions)} | dict.fromkeys(FIELDS) | {
        "stop": None}

    def shown(function: F) -> F:
        found = inspect.signature(function)
        own = [one for one in found.parameters.values() if one.kind is not one.VAR_KEYWORD]
        more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name),
                                  annotation=annotation)
                for name, annotation in inspect.get_annotations(options).items()
                if name not in found.parameters]
        function.__signature__ = found.replace(parameters=[*own, *more])
        return function
    return shown


# The names that the functions take by keyword, for their errors.
GENERATE = {"n", "options", *GenerateOptions.__optional_keys__}
CHAT = {"n", "options", *ChatOptions.__optional_keys__}
BATCH = {"options", "batch_size", "timeout", *BatchOptions.__optional_keys__}
WARM = {"prefix", "messages", "tools", "adapter", *Templating.__optional_keys__}
CLASSIFY = {"labels", "return_logits", "sampling", "seed", "adapter", *SamplingFields.__optional_keys__}
