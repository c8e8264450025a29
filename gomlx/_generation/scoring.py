"""Scores of given texts: classes, log probabilities, embeddings."""
from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from gomlx import _gomlx as mx
from gomlx._base import arguments, notebook
from gomlx._files.reading import read_json

POOLINGS = ("last", "mean", "cls")
LAST_BYTES = 1 << 27            # bytes of last logits in one call of the engine


@dataclass(frozen=True)
class Classification:
    """What classify() says of one prompt."""
    # the likeliest next token, of equal ones the one with the lowest id; or one that was drawn
    token: int
    logprob: float              # its log probability, in the model's own distribution
    text: str                   # its text
    label: str | int | None = None          # the likeliest label, as it was given
    probabilities: dict[str | int, float] | None = None       # of each label, relative to each other: they add up to 1
    # Of each label: the log probability of all its tokens after the prompt.
    label_logprobs: dict[str | int, float] | None = None
    logits: mx.array | None = None      # float32 [vocab] after the prompt, if return_logits


@dataclass(frozen=True)
class Classified:
    """A list of Classification in the prompts' order, and what it took."""
    results: list[Classification]
    prompt_tokens: int
    seconds: float
    tokens_per_second: float | None     # prompt tokens, those of labels not counted
    label_tokens: dict[str | int, list[int]]    # of each label its token ids; {} without labels

    def __iter__(self) -> Iterator[Classification]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, i: int) -> Classification:
        return self.results[i]


@dataclass(frozen=True)
class Score:
    """What score() says of one text."""
    tokens: list[int]
    logprobs: list[float | None]    # of each token after those before it; None for the first, which has none before it
    total: float                    # the sum of the others
    perplexity: float | None        # exp(-total / their number)
    texts: list[str]                # what each token completes, "" within a character; together they are the text

    def _repr_html_(self) -> str:
        return notebook.score(self)


def chunks(sequences, most):
    """Slices of at most `most` sequences."""
    return (sequences[i:i + most] for i in range(0, len(sequences), most))


def classify(model, prompts, labels, return_logits, sampling, seed, adapters):
    """sampling: options of the engine, or None for the likeliest token. adapters: as the engine takes them."""
    started = time.monotonic()
    arguments.flag("return_logits", return_logits)
    prompts = arguments.sequence("prompts", prompts, "several texts or lists of token ids")
    tokens = [ids_of(model, prompt, f"prompts[{i}]") for i, prompt in enumerate(prompts)]
    names = arguments.sequence("labels", labels, "several different texts or ids") if labels is not None else []
    if labels is not None and (not names or any(one in names[:i] for i, one in enumerate(names))):
        raise ValueError(f"labels: expected several different texts or ids, got {labels!r:.80}")
    label_ids = [label_tokens(model, one) for one in names]
    most = min(1024, max(1, LAST_BYTES // (4 * model.vocab_size)))
    results = []
    for part in chunks(tokens, most):
        last, sums = model._engine.score("last", part, label_ids, adapters=adapters)
        best, total = mx.argmax(last, axis=-1), mx.logsumexp(last, axis=-1)
        if sampling is not None:
            best = mx.array([mx.sample(last[i], ids, seed=(seed + len(results) + i) % 2**64, **sampling)[0]
                             for i, ids in enumerate(part)], mx.uint32)
        logprobs = mx.take_along_axis(last, mx.expand_dims(best, 1), axis=1).reshape(-1) - total
        for i, (token, logprob) in enumerate(zip(best.tolist(), logprobs.tolist(), strict=True)):
            results.append(Classification(
                token, logprob, model.tokenizer.decode([token]), logits=last[i] if return_logits else None,
                **(of_labels(names, sums[i]) if names else {})))
    seconds, count = time.monotonic() - started, sum(map(len, tokens))
    return Classified(results, count, seconds, count / seconds if seconds > 0 else None,
                      dict(zip(names, label_ids, strict=True)))


def of_labels(names, logprobs):
    best = max(logprobs)
    weights = [math.exp(one - best) if best > -math.inf else 1.0 for one in logprobs]
    return {"label": names[logprobs.index(best)], "label_logprobs": dict(zip(names, logprobs, strict=True)),
            "probabilities": {name: one / sum(weights) for name, one in zip(names, weights, strict=True)}}


def label_tokens(model, label):
    if isinstance(label, int):
        return [label]
    if isinstance(label, str):
        ids = model.tokenizer.bare(label)
        if not ids:
            raise ValueError(f"labels: {label!r} has no tokens")
        return ids
    raise TypeError(f"labels: expected texts or token ids, got {type(label).__name__}")


def ids_of(model, prompt, name):
    return model._prompt_ids(prompt, name)


def listed(name, value):
    """(a list of texts or sequences of ids, whether the value was a single one)"""
    if isinstance(value, str):
        return [value], True
    items = arguments.sequence(name, value, "a text, token ids, or several of them")
    one = bool(items) and not isinstance(items[0], str) and not hasattr(items[0], "__len__")
    return ([items], True) if one else (items, False)


def score(model, given, adapters):
    items, alone = listed("text", given)
    scores = []
    for part in chunks([ids_of(model, one, "text") for one in items], 1024):
        for ids, logprobs in zip(part, model._engine.score("logprobs", part, adapters=adapters), strict=True):
            values = logprobs.tolist()[1:]
            total = math.fsum(values)
            perplexity = math.exp(-total / len(values)) if values else None
            scores.append(Score(ids, [None, *values], total, perplexity, model.tokenizer.completed(ids)))
    return scores[0] if alone else scores


def embed(model, given, pooling, normalize, adapters):
    stated = model.info.get("pooling") or {}
    pooling = arguments.one_of("pooling", stated.get("pooling") or "last" if pooling is None else pooling, POOLINGS)
    normalize = bool(stated.get("normalize")) if normalize is None else arguments.flag("normalize", normalize)
    items, alone = listed("texts", given)
    rows = []
    for part in chunks([ids_of(model, one, "texts") for one in items], 256):
        for hidden in model._engine.score("hidden", part, adapters=adapters):
            row = hidden[-1] if pooling == "last" else hidden[0] if pooling == "cls" else mx.mean(hidden, axis=0)
            rows.append(row)
        mx.eval(rows)
    if not rows:
        return mx.zeros((0, model.info["hidden_size"]))
    out = mx.stack(rows)
    if normalize:
        out = out / mx.maximum(mx.linalg.norm(out, axis=-1, keepdims=True), 1e-12)
    return out[0] if alone else out


def stated_pooling(path, metadata):
    """The pooling that a model's files state: {"pooling": ..., "normalize": ..., "source": ...}; {} if there is none.
    sentence-transformers' 1_Pooling/config.json and modules.json, or GGUF's pooling_type."""
    if not os.path.isdir(path):
        kinds = [value for name, value in metadata.items() if name.endswith(".pooling_type")]
        kind = {1: "mean", 2: "cls", 3: "last"}.get(kinds[0]) if kinds else None
        return {"pooling": kind, "normalize": True, "source": "pooling_type"} if kind else {}
    file = os.path.join(path, "1_Pooling", "config.json")
    config = read_json(file)
    modes = {"pooling_mode_lasttoken": "last", "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    found = [kind for key, kind in modes.items() if config.get(key) is True]
    others = [key for key in config if key.startswith("pooling_mode_") and config[key] is True and key not in modes]
    if len(found) != 1 or others:
        return {}
    try:
        with open(os.path.join(path, "modules.json"), encoding="utf-8") as modules:
            normalize = any(str(one.get("type", "")).endswith("Normalize") for one in json.load(modules))
    except (OSError, ValueError, AttributeError):
        normalize = False
    return {"pooling": found[0], "normalize": normalize, "source": file}
