"""Models over batches of a data set's columns, in the workers of Ray Data, Dask or Spark, or by themselves:

    ray.data.read_json("prompts.jsonl").map_batches(gomlx.data.Generate, fn_constructor_kwargs={"model": "org/name"},
                                                    batch_size=64, concurrency=2, num_cpus=4)

An object of these classes is small until it is first called: it can be pickled, and loads its model in the process that
calls it, where all objects with the same model and options share it. A row that cannot be answered has its error in the
column "error"; the others go on.
"""
from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gomlx._base import arguments
from gomlx.loading import load

if TYPE_CHECKING:
    import numpy as np

    from gomlx._generation.model import Model

__all__ = ["Classify", "Embed", "Generate", "Score"]

Columns = Mapping[str, Any]

_models: dict[str, Model] = {}                  # of this process, by what they were loaded with
_lock = threading.Lock()


class _Worker:
    """What the four classes share."""

    def __init__(self, model: str | os.PathLike[str] | None, column: str, template: str | None,
                 load_options: Mapping[str, Any] | None) -> None:
        self._name = os.fspath(model) if model is not None else None
        self._column, self._template = column, template
        self._load_options = dict(load_options or {})

    @property
    def model(self) -> Model:
        """The model, loaded when it is first asked for."""
        options = dict(self._load_options)
        if options.get("threads") is None:
            options["threads"] = _threads()
        key = json.dumps([self._name, options], sort_keys=True, default=repr)
        with _lock:
            if key not in _models:
                _models[key] = load(self._name, **options)
            return _models[key]

    def _rows(self, batch: Columns) -> tuple[dict[str, Any], list[Any]]:
        """(the columns, what each row asks: a text, messages, or the exception that says what is wrong)."""
        columns = dict(batch)
        if self._template is None and self._column not in columns:
            raise ValueError(f"{type(self).__name__}: no column {self._column!r}, there are "
                             f"{', '.join(columns) or 'none'}")
        count = len(next(iter(columns.values()))) if columns else 0
        return columns, [self._row({name: one[i] for name, one in columns.items()}) for i in range(count)]

    def _row(self, row):
        if self._template is None:
            return _plain(row[self._column])
        try:
            return self._template.format_map(row)
        except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
            return ValueError(f"template {self._template!r}: {type(error).__name__}: {error}")

    def _each(self, asked, answer):
        """What answer(texts) gives of each, or the exception of one that cannot be answered."""
        found: list[Any] = [one if isinstance(one, str) else _no_text(one) for one in asked]
        good = [i for i, one in enumerate(found) if isinstance(one, str)]
        for i, one in zip(good, _answered(answer, [found[i] for i in good]), strict=True):
            found[i] = one
        return found


def _answered(answer, texts):
    if not texts:
        return []
    try:
        return list(answer(texts))
    except (ValueError, RuntimeError) as error:         # of one of them: each is asked by itself
        return [error] if len(texts) == 1 else [_answered(answer, [one])[0] for one in texts]


def _no_text(one):
    return one if isinstance(one, Exception) else ValueError(f"expected a text, got {arguments.shown(one)}")


def _plain(value):
    """What a column holds, without NumPy's and Arrow's types; a list of messages may be JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return value


def _threads():
    """As many as Ray gave this worker; None: gomlx's own number, which follows the cgroup."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return None
    cores = ray.get_runtime_context().get_assigned_resources().get("CPU", 0)
    return int(cores) if cores >= 1 else None


def _errors(found):
    """The column "error": a text, or None."""
    return _objects([f"{type(one).__name__}: {one}" if isinstance(one, Exception) else None for one in found])


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    import numpy as np  # gomlx begins without it
    made = np.empty(len(values), object)
    made[:] = values
    return made


def _numbers(values: Sequence[Any], dtype: str) -> np.ndarray[Any, Any]:
    import numpy as np  # as above
    return np.array(values, dtype)


class Generate(_Worker):
    """Continues texts, or answers messages.

    model           as in gomlx.load(); load_options: its options
    column          what holds the prompts: texts, or lists of messages
    template        makes a prompt of several columns instead: "Translate {text} to {language}"
    id              the column that names rows, of which their seeds are made; None: seeds are made of the prompts
    seed            of all draws
    batch_size      sequences that are decoded at a time
    options         of model.generate()

    A call gives the columns that came and text, finish_reason, prompt_tokens, generated_tokens, seed, seconds (float64,
    from the call to the row's end) and error. A row's result does not depend on its batch.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, *, column: str = "prompt",
                 template: str | None = None, id: str | None = None, seed: int = 0, batch_size: int = 16,
                 load_options: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(model, column, template, load_options)
        self._id, self._seed, self._batch_size, self._options = id, seed, batch_size, options

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """batch: {name: array}, all of the same length."""
        columns, asked = self._rows(batch)
        if self._id is not None and self._id not in columns:
            raise ValueError(f"Generate: no column {self._id!r}, there are {', '.join(columns)}")
        keys = asked if self._id is None else [_plain(one) for one in columns[self._id]]
        seeds = [_seed_of(self._seed, key) for key in keys]
        good = [i for i, one in enumerate(asked) if not isinstance(one, Exception)]
        found: list[Any] = list(asked)
        seconds = [0.0] * len(asked)
        if good:
            self._generate(asked, seeds, good, found, seconds)
        results = [None if isinstance(one, Exception) or one.error is not None else one for one in found]
        errors = [one if isinstance(one, Exception) else one.error for one in found]
        return columns | {
            "text": _objects([one.text if one else "" for one in results]),
            "finish_reason": _objects([one.finish_reason if one else "error" for one in results]),
            "prompt_tokens": _numbers([one.prompt_tokens if one else 0 for one in results], "int64"),
            "generated_tokens": _numbers([one.generated_tokens if one else 0 for one in results], "int64"),
            "seed": _numbers(seeds, "int64"), "seconds": _numbers(seconds, "float64"), "error": _errors(errors)}

    def _generate(self, asked, seeds, good, found, seconds):
        began = time.monotonic()
        stream = self.model.generate_batch([asked[i] for i in good], options=[{"seed": seeds[i]} for i in good],
                                           batch_size=self._batch_size, **self._options)
        with stream:
            for at, token in stream:
                if token.finish_reason is not None:
                    seconds[good[at]] = time.monotonic() - began
        for i, one in zip(good, stream.results, strict=True):
            found[i] = one


def _seed_of(of_all, key):
    """48 bits, as numbers of JSON hold them."""
    text = json.dumps(key, sort_keys=True, default=repr)
    return int.from_bytes(hashlib.sha256(f"{of_all} {text}".encode()).digest()[:6], "big")


class Classify(_Worker):
    """Says which of several labels fits each text best: columns label, probability (of it, relative to the others) and
    error. column, template, model and load_options are as in Generate."""

    def __init__(self, model: str | os.PathLike[str] | None = None, *, labels: Sequence[str], column: str = "text",
                 template: str | None = None, load_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, column, template, load_options)
        self._labels = list(labels)

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """batch: {name: array}, all of the same length."""
        columns, asked = self._rows(batch)
        found = self._each(asked, lambda texts: self.model.classify(texts, labels=self._labels))
        good = [None if isinstance(one, Exception) else one for one in found]
        return columns | {"label": _objects([one.label if one else None for one in good]),
                          "probability": _numbers([one.probabilities[one.label] if one else float("nan")
                                                   for one in good], "float64"), "error": _errors(found)}


class Score(_Worker):
    """Says how likely the model finds each text: columns logprob (of all its tokens), perplexity, tokens and error.
    The arguments are as in Generate."""

    def __init__(self, model: str | os.PathLike[str] | None = None, *, column: str = "text",
                 template: str | None = None, load_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, column, template, load_options)

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """batch: {name: array}, all of the same length."""
        columns, asked = self._rows(batch)
        found = self._each(asked, lambda texts: self.model.score(texts))
        good, nan = [None if isinstance(one, Exception) else one for one in found], float("nan")
        return columns | {"logprob": _numbers([one.total if one else nan for one in good], "float64"),
                          "perplexity": _numbers([one.perplexity if one and one.perplexity is not None else nan
                                                  for one in good], "float64"),
                          "tokens": _numbers([len(one.tokens) if one else 0 for one in good], "int64"),
                          "error": _errors(found)}


class Embed(_Worker):
    """Makes a vector of each text: columns embedding, float32 [rows, hidden], and error; rows with one are NaN.
    pooling and normalize are as in model.embed(), the others as in Generate."""

    def __init__(self, model: str | os.PathLike[str] | None = None, *, column: str = "text",
                 template: str | None = None, pooling: Any = None, normalize: bool | None = None,
                 load_options: Mapping[str, Any] | None = None) -> None:
        super().__init__(model, column, template, load_options)
        self._pooling, self._normalize = pooling, normalize

    def __call__(self, batch: Columns) -> dict[str, Any]:
        """batch: {name: array}, all of the same length."""
        columns, asked = self._rows(batch)
        found = self._each(asked, lambda texts: self.model.embed(texts, self._pooling, self._normalize).tolist())
        nothing = [float("nan")] * self.model.info["hidden_size"]
        return columns | {"embedding": _numbers([nothing if isinstance(one, Exception) else one for one in found],
                                                "float32").reshape(len(found), len(nothing)), "error": _errors(found)}
