"""Sampling: how the next token is chosen, as data; sample() and sample_probabilities() for logits of one's own."""
from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gomlx import _gomlx
from gomlx._base import arguments

if TYPE_CHECKING:
    from typing import Unpack

    from gomlx._generation.options import SamplingFields
    from gomlx._gomlx import Ids

# Orders by name. Each is that program's own; samplers that the program does not have are where llama.cpp has them,
# those that it cannot combine with others (mirostat) at the end.
ORDERS = {
    "transformers": ("penalties", "dry", "top_n_sigma", "temperature", "top_k", "top_p", "min_p", "typical_p", "xtc",
                     "mirostat"),
    "llama.cpp": ("penalties", "dry", "top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc", "temperature",
                  "mirostat"),
    "mlx_lm": ("penalties", "dry", "top_n_sigma", "typical_p", "top_p", "min_p", "xtc", "top_k", "temperature",
               "mirostat"),
    "go-mlx": ("penalties", "dry", "top_n_sigma", "temperature", "top_p", "top_k", "min_p", "typical_p", "xtc",
               "mirostat"),
    "legacy": ("penalties", "dry", "top_n_sigma", "top_p", "min_p", "top_k", "typical_p", "xtc", "temperature",
               "mirostat"),
}
BREAKERS = ("\n", ":", '"', "*")     # llama.cpp's


def option(default: Any, help_text: str, metavar: str = "X") -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar})


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How one token is chosen. A field at its default does nothing; `Sampling()` is greedy.

    First logit_bias is added to the logits, then bad_words, suppress_tokens and (before min_tokens) stop ids are made
    impossible; then the samplers work one after another in the order of `samplers`, and one token is drawn from what
    they leave. Draw number i of a generation is a function of the logits, these fields, the seed and i, and of nothing
    else.

    samplers            the order: "transformers" (temperature, top_k, top_p, min_p), "llama.cpp" (top_k, typical_p,
                        top_p, min_p, xtc, temperature), "mlx_lm" (top_p, min_p, xtc, top_k, temperature), "go-mlx"
                        (temperature, top_p, top_k, min_p) or "legacy" (top_p, min_p, top_k, temperature), each with
                        penalties and dry before; or names in an order of your own: penalties, dry, top_n_sigma,
                        temperature, top_k, top_p, min_p, typical_p, xtc, mirostat. What is set and not among them is a
                        ValueError.
    temperature         logits are divided by it. 0 is greedy: the likeliest token after biases and penalties, of equal
                        ones the one with the lowest id; then the other samplers do nothing.
    top_k               the k likeliest stay; of equal ones those with the lowest ids. 0: off.
    top_p               the fewest of the likeliest stay that have this probability together (Holtzman et al., 2019).
                        1: off.
    min_p               those stay that have at least this share of the likeliest one's probability (Nguyen et al.,
                        2024).
    typical_p           the fewest stay that have this probability together, those first whose -log p is nearest to the
                        entropy (Meister et al., 2022). 1: off.
    top_n_sigma         those stay whose logit is at most this many standard deviations of all logits below the greatest
                        (Tang et al., 2024).
    xtc_probability     the chance that, of the tokens with at least xtc_threshold (0 to 0.5) of the probability, all
                        but the least likely are dropped (p-e-w; as in llama.cpp).
    dry_multiplier      tokens that would prolong a repetition of dry_allowed_length or more tokens lose multiplier *
                        dry_base ** (length - dry_allowed_length) of their logit (p-e-w; as in llama.cpp). It looks at
                        the last dry_last_n tokens of prompt and output (0: off, -1: all), back to the last of
                        dry_sequence_breakers, texts or sequences of ids.
    mirostat_tau        mirostat 2: the surprise, in bits, that drawn tokens shall have on average; tokens beyond a
                        limit are dropped, which starts at 2 * tau and learns at the rate mirostat_eta (Basu et al.,
                        2021). It must be the last of the samplers; the ones before it still work.
    repetition_penalty  the logit of a token that was there is divided by it, or multiplied when negative (Keskar et
                        al., 2019; as in transformers). 1: off.
    frequency_penalty   a token's logit loses so much for each time it was there,
    presence_penalty    and so much once when it was there at all (OpenAI).
    penalty_last_n      the penalties look at the last n tokens only; 0: off, -1: all.
    penalty_prompt      whether the penalties look at the prompt. None: the repetition penalty does (transformers),
                        frequency and presence do not (OpenAI); True: all do (llama.cpp); False: none does (go-mlx).
    logit_bias          {token id: what is added to its logit}.
    bad_words           texts or sequences of ids that cannot come: a sequence's last id is impossible after the
                        others. A text means its tokens with and without a space before.
    suppress_tokens     ids that cannot come.
    """
    temperature: float = option(0.0, "0 is greedy", "T")
    top_k: int = option(0, "the K likeliest", "K")
    top_p: float = option(1.0, "the likeliest that have this probability together", "P")
    min_p: float = option(0.0, "those with this share of the likeliest one's probability", "P")
    typical_p: float = option(1.0, "locally typical sampling", "P")
    top_n_sigma: float = option(0.0, "logits at most N standard deviations below the greatest", "N")
    xtc_probability: float = option(0.0, "the chance to exclude top choices", "P")
    xtc_threshold: float = option(0.1, "the probability that makes a top choice", "P")
    dry_multiplier: float = option(0.0, "strength of the penalty for repeated sequences")
    dry_base: float = option(1.75, "its growth with the length")
    dry_allowed_length: int = option(2, "the longest repetition without it", "N")
    dry_last_n: int = option(-1, "the last tokens that it looks at; -1: all", "N")
    dry_sequence_breakers: Sequence[str | Sequence[int]] = option(BREAKERS, "a text that ends its sequences", "TEXT")
    mirostat_tau: float = option(0.0, "mirostat 2: the target surprise, in bits", "BITS")
    mirostat_eta: float = option(0.1, "mirostat 2: the learning rate")
    repetition_penalty: float = option(1.0, "divides the logits of tokens that were there", "R")
    frequency_penalty: float = option(0.0, "taken off a logit for each time that the token was there")
    presence_penalty: float = option(0.0, "taken off the logit of a token that was there")
    penalty_last_n: int = option(-1, "the last tokens that the penalties look at; -1: all", "N")
    penalty_prompt: bool | None = option(None, "all penalties look at the prompt; --no-...: none does")
    logit_bias: Mapping[int, float] | None = option(None, "added to a token's logit", "ID=BIAS")
    bad_words: Sequence[str | Sequence[int]] = option((), "a text that cannot come", "TEXT")
    suppress_tokens: Sequence[int] = option((), "a token that cannot come", "ID")
    samplers: str | Sequence[str] = option("transformers", "the order: " + ", ".join(ORDERS) + ", or names with commas",
                                           "ORDER")

    def replace(self, **changes: Unpack[SamplingFields]) -> Sampling:
        """A Sampling with these fields changed; what is None stays."""
        arguments.known("replace", changes, FIELDS)
        return dataclasses.replace(self, **{name: value for name, value in changes.items() if value is not None})

    def engine_options(self, tokenizer: Any = None) -> dict[str, Any]:
        """The keyword arguments that the engine's functions take; texts become ids."""
        options = {one.name: getattr(self, one.name) for one in dataclasses.fields(self)}
        for one in dataclasses.fields(self):
            if isinstance(one.default, (int, float)) and isinstance(options[one.name], bool):
                raise TypeError(f"{one.name}: expected a number, got {options[one.name]}")
        arguments.token_ids("suppress_tokens", self.suppress_tokens)
        if self.penalty_prompt is not None:
            arguments.flag("penalty_prompt", self.penalty_prompt)
        options["samplers"] = order_of(self.samplers)
        options["bad_words"] = [ids for word in texts_or_ids(self.bad_words, "bad_words")
                                for ids in bad_word_ids(word, tokenizer)]
        breakers = options.pop("dry_sequence_breakers")
        if self.dry_multiplier:
            breakers = texts_or_ids(breakers, "dry_sequence_breakers")
            options["dry_breakers"] = breaker_ids(breakers, tokenizer)
        return options


FIELDS = [one.name for one in dataclasses.fields(Sampling)]
SAMPLE = [*FIELDS, "sampling", "n", "seed", "step", "n_prompt"]         # what sample() takes by name


def order_of(samplers):
    if not isinstance(samplers, str):
        if not hasattr(samplers, "__iter__"):
            raise TypeError(f"samplers: expected a name or several, got {samplers!r:.80}")
        return list(samplers)
    if samplers not in ORDERS:
        raise ValueError(f"samplers is {samplers!r}, expected one of {', '.join(ORDERS)}, or a list of names")
    return ORDERS[samplers]


def texts_or_ids(value, name):
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name}: expected several texts or sequences of ids, got {value!r:.80}")
    return list(value)


def bad_word_ids(word, tokenizer):
    """A text's ids, at the start of a text and within one."""
    if not isinstance(word, str):
        return [arguments.token_ids("bad_words", word)]
    if tokenizer is None:
        raise ValueError(f"bad_words: the text {word!r:.80} needs a tokenizer; give ids")
    if not word.strip():
        raise ValueError(f"bad_words: {word!r:.80} has no characters")
    found = [tokenizer.bare(text) for text in (word, " " + word)]
    return found if found[0] != found[1] else found[:1]


def breaker_ids(breakers, tokenizer):
    """Sequences of ids, of texts as llama.cpp has them: every token with the text in it, and every token that ends with
    its beginning, followed by the tokens of its rest."""
    texts = tuple(one for one in breakers if isinstance(one, str))
    if texts and tokenizer is None:      # sample() without a tokenizer: the default texts break nothing
        if texts != BREAKERS:
            raise ValueError("dry_sequence_breakers: texts need a tokenizer; give ids")
        texts = ()
    if "" in texts:
        raise ValueError("dry_sequence_breakers: a text is empty")
    found = [list(one) for one in breakers if not isinstance(one, str)]
    return found + (tokenizer.sequences_with(texts) if texts else [])


def sample(logits: Any, ids: Ids = (), sampling: Sampling | None = None, *, n: int = 1, seed: int = 0,
           step: int = 0, n_prompt: int | None = None, **changes: Unpack[SamplingFields]) -> list[int]:
    """n ids drawn from logits, an array-like of numbers [vocab].

    ids         the ids so far, for penalties, dry and bad_words; n_prompt: how many of them are the prompt's (all)
    sampling    how; or fields of Sampling by name, as in generate()
    seed, step  draws number step, step + 1, ... of that seed: model.generate makes its i-th token with draw i

    The draws are independent, but for mirostat, which learns from one to the next. ValueError for options out of range,
    and when no token is left to draw."""
    arguments.known("sample", changes, SAMPLE)
    options = (sampling or Sampling()).replace(**changes).engine_options()
    return _gomlx.sample(logits, ids, n=n, seed=seed, step=step, n_prompt=n_prompt, **options)


def sample_probabilities(logits: Any, ids: Ids = (), sampling: Sampling | None = None, *, seed: int = 0,
                         step: int = 0, n_prompt: int | None = None,
                         **changes: Unpack[SamplingFields]) -> _gomlx.array:
    """The distribution that sample() draws from with the same arguments: float32 [vocab]. (seed and step matter for xtc
    alone, whose chance is drawn.) With temperature 0, 1 for one id."""
    arguments.known("sample_probabilities", changes, SAMPLE)
    options = (sampling or Sampling()).replace(**changes).engine_options()
    return _gomlx.sample_probabilities(logits, ids, seed=seed, step=step, n_prompt=n_prompt, **options)
