"""Distillation: a model learns a teacher's distributions, of a loaded model or of a file.

Such a file is safetensors: of each sequence "<key>.ids" int32 [targets, top], ascending, and "<key>.logs" float32, the
log probabilities of these, its likeliest tokens, at a temperature. The key is of the sequence's ids and mask, so that
the order of rows does not matter.
"""
from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._base import arguments, bars
from gomlx._base.places import on_the_processor
from gomlx._files import reading, safetensors
from gomlx._training.adapter import engine_of
from gomlx._training.config import HEAD, number
from gomlx._training.data import Dataset, Row, Tokens
from gomlx._training.losses import SLICE, Forward, Objective, distillation_loss, final_softcap
from gomlx._training.runs import write

if TYPE_CHECKING:
    from gomlx._generation.model import Model

FORMAT = "gomlx-teacher-1"
TOP = 128
MOST_LOG = 1e-3                 # of a probability: 0, and what rounding adds
LEAST = 1e-6                    # of the probability of all tokens that a file does not list


def key_of(one: Tokens) -> str:
    return hashlib.blake2b(one.ids.tobytes() + one.counted, digest_size=16).hexdigest()


def save_teacher(model: Model, data: Dataset | Sequence[Dataset], path: str | os.PathLike[str], *,
                 top: int | None = TOP, temperature: float = 1.0, progress: bars.Progress = True) -> str:
    """Writes what a teacher says of rows, for gomlx.train(..., loss="distillation", teacher=path): the teacher need not
    be loaded then. Returns the path.

    model       the teacher, with the vocabulary of the model that will learn
    data        of load_data(), as the model that will learn reads it: its tokenizer and template, mask, max_tokens; or
                several, as of rows to train on and rows to evaluate
    path        a name that ends in .safetensors
    top         how many of the likeliest tokens at each token that counts, 8 bytes each; what is left of the
                probability counts as one more token. None: all, which makes the same loss as the teacher itself
    temperature     that of the loss
    progress    as in load()"""
    path = os.path.abspath(arguments.path("path", path))
    engine_of(model)
    if not path.endswith(".safetensors"):
        raise ValueError(f"path is {path!r}, expected a name that ends in .safetensors")
    parts = [data] if isinstance(data, Dataset) else data
    if not isinstance(parts, Sequence) or not all(isinstance(one, Dataset) for one in parts):
        raise arguments.WrongType(f"data: expected a Dataset of load_data(), got {arguments.shown(data)}")
    number("temperature", temperature, lambda value: value > 0, "more than 0")
    count = model.vocab_size if top is None else min(arguments.integer("top", top, 1), model.vocab_size)
    sequences = {key_of(one): one for part in parts for row in part for one in row.sequences}
    if not sequences:
        raise ValueError("data has no rows, expected those that the model that will learn is trained on")
    arrays = asked(model, sequences, count, temperature, progress)
    known = {"format": FORMAT, "temperature": repr(float(temperature)), "vocab_size": str(model.vocab_size)}
    write(path, lambda stream: mx.save_safetensors(stream, arrays, known))
    return path


@on_the_processor
def asked(model: Model, sequences: Mapping[str, Tokens], count: int, temperature: float,
          progress: bars.Progress) -> dict[str, mx.array]:
    """The arrays of a teacher's file."""
    forward, head, arrays = TeacherRows(model), Head(model), {}
    with bars.reporting(progress, "asking the teacher", len(sequences)) as report:
        for done, (key, one) in enumerate(sequences.items(), 1):
            rows, parts = forward.rows(None, [one], None), []
            for at in range(0, one.targets, SLICE):
                parts.append(likeliest(head(rows[at:at + SLICE]) / temperature, count))
                _gomlx.eval_or_drop(parts[-1])
            arrays[f"{key}.ids"], arrays[f"{key}.logs"] = (mx.concatenate(list(each)) for each in zip(*parts))
            if report is not None:
                report(done / len(sequences))
    return arrays


def likeliest(logits: mx.array, count: int) -> tuple[mx.array, mx.array]:
    """(ids, log probabilities) of the likeliest tokens of rows [n, vocab]: [n, count] both."""
    logs = logits - mx.logsumexp(logits, -1, keepdims=True)
    if count == logs.shape[-1]:
        return mx.broadcast_to(mx.arange(count, dtype=mx.int32), logs.shape), logs
    ids = mx.sort(mx.argpartition(-logs, count - 1, axis=-1)[:, :count].astype(mx.int32), axis=-1)
    return ids, mx.take_along_axis(logs, ids, -1)


class StoredTeacher:
    """Such a file, read when it is asked."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = arguments.path("teacher", path)
        if not os.path.exists(self.path):
            raise FileNotFoundError(f"teacher: no such file: {self.path!r}")
        if not os.path.isfile(self.path):
            raise ValueError(f"teacher: {self.path} is no file, expected a Model or a file of lora.save_teacher()")
        with open(self.path, "rb") as stream:
            self.tensors, known = safetensors.read_header(stream, self.path)
        try:
            if known["format"] != FORMAT:
                raise ValueError(f"format {known['format']!r}")
            self.temperature, self.vocab_size = float(known["temperature"]), int(known["vocab_size"])
        except (KeyError, ValueError) as error:
            raise _gomlx.Error(f"{self.path}: no file of lora.save_teacher(): {error}") from None
        self.width = next((shape[1] for _, shape, _, _ in self.tensors.values() if len(shape) == 2), 0)
        self.seen: set[str] = set()             # keys of rows that were read once, and are read again to be learnt from

    def check(self, data: Dataset) -> None:
        """ValueError where it does not know all rows; gomlx.Error where what it knows of one has another form. What it
        knows of a row is read for the first check alone."""
        for row in data:
            if key_of(row.sequences[0]) not in self.seen:
                self.of(row)

    def of(self, row: Row) -> tuple[mx.array, mx.array]:
        """(ids, log probabilities) of a row: [targets, width] both, read from the file, which is not kept in memory."""
        [one] = row.sequences
        names = [f"{key_of(one)}.{name}" for name in ("ids", "logs")]
        found = [self.tensors.get(name) for name in names]
        if found[0] is None or found[1] is None:
            raise ValueError(f"teacher: {self.path} knows nothing of {row.where}: it was made for other rows, "
                             "or of other ids (tokenizer, template, mask, max_tokens)")
        forms = [(word, list(shape)) for word, shape, _, _ in found]
        wanted = [one.targets, self.width]
        if forms != [("I32", wanted), ("F32", wanted)] or self.width < 1:
            raise _gomlx.Error(f"{self.path}: {row.where} has ids {forms[0][0]} {forms[0][1]} and logs {forms[1][0]} "
                               f"{forms[1][1]}, expected I32 and F32 {wanted}")
        ids, logs = (self.read(begin, end, dtype, wanted) for (_, _, begin, end), dtype in zip(
            found, (mx.int32, mx.float32)))
        if not mx.all((ids >= 0) & (ids < self.vocab_size)).item():
            raise _gomlx.Error(f"{self.path}: {row.where} has ids beyond the vocabulary of {self.vocab_size}")
        if not mx.all(mx.isfinite(logs) & (logs <= MOST_LOG)).item():
            raise _gomlx.Error(f"{self.path}: {row.where} has logs that are none of probabilities, expected finite "
                               "ones up to 0")
        self.seen.add(key_of(one))
        return ids, logs

    def read(self, begin: int, end: int, dtype: mx.Dtype, shape: Sequence[int]) -> mx.array:
        with open(self.path, "rb") as stream:
            stream.seek(begin)
            data = stream.read(end - begin)
        if len(data) != end - begin:
            raise _gomlx.Error(f"{self.path}: it has become shorter")
        made: mx.array = reading.array_of(data, dtype, shape)
        return made


def check_fits(teacher: StoredTeacher | int, vocab_size: int, temperature: float) -> None:
    """ValueError unless a teacher, or one with so many tokens, is for a model that learns with this vocabulary."""
    theirs = teacher.vocab_size if isinstance(teacher, StoredTeacher) else teacher
    if theirs != vocab_size:
        raise ValueError(f"teacher: its vocabulary has {theirs} tokens, expected {vocab_size}, those of the model that "
                         "learns")
    if isinstance(teacher, StoredTeacher) and teacher.temperature != temperature:
        raise ValueError(f"teacher: {teacher.path} is of the temperature {teacher.temperature:g}, the loss of "
                         f"{temperature:g}: loss_options={{'temperature': {teacher.temperature:g}}}")


# ---- the loss ----

class Distillation(Objective):
    """The mean divergence of the teacher's distributions from the model's, at the tokens that count. The model's head,
    and that of a teacher that is a model, are kept as float32 matrices."""

    def __init__(self, forward: Forward, model: Model, teacher: Model | StoredTeacher,
                 temperature: float = 1.0) -> None:
        super().__init__(forward)
        if forward.head:
            raise NotImplementedError(f"loss='distillation': {HEAD} is trained as a whole, which distillation does not")
        check_fits(teacher if isinstance(teacher, StoredTeacher) else teacher.vocab_size, model.vocab_size, temperature)
        self.temperature, self.teacher, self.head = temperature, teacher, Head(model)
        self.teacher_head = None if isinstance(teacher, StoredTeacher) else Head(teacher)

    def total(self, rows):
        return sum(row.targets for row in rows)

    def check(self, data):
        if isinstance(self.teacher, StoredTeacher):
            self.teacher.check(data)

    def parts(self, parameters, rows, first, prepared, sums):
        sequences = [row.sequences[0] for row in rows]
        student = self.forward.rows(parameters, sequences, sums)
        one = self.divergence
        if self.teacher_head is None:
            known = [mx.concatenate(list(each)) for each in zip(*map(self.teacher.of, rows))]
            one = self.stored_divergence
        else:
            known = [TeacherRows(self.teacher).rows(None, sequences, None)]
        one = mx.checkpoint(one) if sums is not None else one
        return mx.concatenate([one(student[at:at + SLICE], *(each[at:at + SLICE] for each in known))
                               for at in range(0, student.shape[0], SLICE)]), {}

    def divergence(self, x, y):
        assert self.teacher_head is not None
        return distillation_loss(self.head(x), mx.stop_gradient(self.teacher_head(y)), temperature=self.temperature)

    def stored_divergence(self, x, ids, logs):
        """The likeliest tokens each, and all others as one more."""
        q = self.head(x) / self.temperature
        q = mx.take_along_axis(q - mx.logsumexp(q, -1, keepdims=True), ids, -1)
        p = mx.exp(logs)
        known = mx.sum(p * (logs - q), -1)
        if ids.shape[-1] < self.teacher.vocab_size:
            rest, ours = (mx.maximum(1 - mx.sum(each, -1), LEAST) for each in (p, mx.exp(q)))
            known = known + rest * (mx.log(rest) - mx.log(ours))
        return self.temperature**2 * known


class TeacherRows(Forward):
    """A model without terms."""

    def __init__(self, model: Model) -> None:
        self.engine, self.scales, self.products, self.checkpoints = model._engine, {}, "exact", False
        self.squares, self.whole, self.head = {}, [], False


class Head:
    """Logits of rows, as array operations."""

    def __init__(self, model: Model) -> None:
        engine = model._engine
        names = engine.weight_names()
        name = "lm_head" if "lm_head.weight" in names else "model.embed_tokens"
        self.weight = engine.weight(f"{name}.weight").astype(mx.float32)
        self.bias = engine.weight("lm_head.bias") if "lm_head.bias" in names else None
        self.softcap = final_softcap(model.info)
        mx.eval(self.weight)

    def __call__(self, x: mx.array) -> mx.array:
        logits = x @ self.weight.T
        if self.bias is not None:
            logits = logits + self.bias
        return self.softcap * mx.tanh(logits / self.softcap) if self.softcap else logits
