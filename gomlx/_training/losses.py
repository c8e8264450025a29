"""What training makes small: functions of log probabilities, and objectives that take rows of data through a model.

Log probabilities of an answer are sums over its tokens, float32 [n] for n rows. Gradients go through what is the
policy's; what is the reference's (the model without its adapter) or the teacher's has none.
"""
from __future__ import annotations

import hashlib
import math
import os
from array import array as integers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import gomlx.core as mx
from gomlx import _gomlx
from gomlx._files.reading import read_json
from gomlx._training.adapter import row_squares
from gomlx._training.config import HEAD, centred
from gomlx._training.data import Dataset, Row, Tokens

if TYPE_CHECKING:
    from gomlx._generation.model import Model
    from gomlx._training.adapter import Adapter

Sums = Mapping[str, mx.array] | None
Products = Literal["exact", "int8", "bf16"]
LOG_2 = math.log(2)
NEAREST = -1e-10                # log probabilities that ORPO takes for 1
SLICE = 64                      # rows whose logits exist at a time in distillation
HEAD_LOGITS = 16 << 20          # numbers of logits that exist at a time where the head is trained


# ---- formulas ----

def log_sigmoid(x: mx.array) -> mx.array:
    return -mx.logaddexp(mx.zeros_like(x), -x)


def dpo_loss(chosen: mx.array, rejected: mx.array, reference_chosen: mx.array, reference_rejected: mx.array, *,
             beta: float = 0.1, label_smoothing: float = 0.0) -> mx.array:
    """float32 [n]: -log sigmoid(beta * ((chosen - rejected) - (reference_chosen - reference_rejected))), with
    label_smoothing the share of preferences that are the wrong way round: https://arxiv.org/abs/2305.18290."""
    x = beta * ((chosen - rejected) - (reference_chosen - reference_rejected))
    return -(1 - label_smoothing) * log_sigmoid(x) - label_smoothing * log_sigmoid(-x)


def log_of_rest(x: mx.array) -> mx.array:
    """log(1 - exp(x)) for x up to 0: above log(1/2) by expm1, as 1 - exp(x) has lost its digits there. Each branch is
    kept within its bounds, as the gradient of one that is not taken counts where it is not finite."""
    near, far = mx.clip(x, -LOG_2, NEAREST), mx.minimum(x, -LOG_2)
    return mx.where(x > -LOG_2, mx.log(-mx.expm1(near)), mx.log1p(-mx.exp(far)))


def orpo_loss(chosen: mx.array, rejected: mx.array, *, beta: float = 0.1) -> mx.array:
    """float32 [n]: -beta * log sigmoid(log odds of chosen - log odds of rejected), which is added to the mean loss of
    the chosen texts. Both are mean log probabilities of a token: https://arxiv.org/abs/2403.07691."""
    odds = (chosen - rejected) - (log_of_rest(chosen) - log_of_rest(rejected))
    return -beta * log_sigmoid(odds)


def kto_loss(policy: mx.array, reference: mx.array, wanted: mx.array, divergence: float, *, beta: float = 0.1,
             desirable_weight: float = 1.0, undesirable_weight: float = 1.0) -> mx.array:
    """float32 [n]: weight * (1 - sigmoid(beta * (r - z))) of wanted answers and weight * (1 - sigmoid(beta * (z - r)))
    of the others, where r is policy - reference and z the divergence: https://arxiv.org/abs/2402.01306."""
    x = beta * (policy - reference - divergence)
    return mx.where(wanted, desirable_weight * (1 - mx.sigmoid(x)), undesirable_weight * (1 - mx.sigmoid(-x)))


def distillation_loss(student: mx.array, teacher: mx.array, *, temperature: float = 1.0) -> mx.array:
    """float32 [n] of logits [n, vocab]: temperature**2 * KL(softmax(teacher / temperature) from that of the student):
    https://arxiv.org/abs/1503.02531."""
    student, teacher = student / temperature, teacher / temperature
    p = teacher - mx.logsumexp(teacher, -1, keepdims=True)
    q = student - mx.logsumexp(student, -1, keepdims=True)
    return temperature**2 * mx.sum(mx.exp(p) * (p - q), -1)


# ---- through a model ----

class Forward:
    """A model with the terms of an adapter, over ragged sequences: no padding, and no sequence sees another.

    sums    None: there is no gradient. Else gradients by parameter that those of this pass are added to, row by row,
            {} being nothing: the passes of a step end with the bits of one. What a row gives is summed by itself
            first, so that rows may be computed anywhere
    each    how many sequences, one after another, are a row
    draw    what the numbers that a pass with gradients leaves out (dropout) depend on, besides the sequence's tokens
    """

    def __init__(self, model: Model, adapter: Adapter, products: Products = "exact", checkpoints: bool = False) -> None:
        self.engine = model._engine
        self.products, self.checkpoints = products, checkpoints
        self.dropout, self.draw = adapter.meta.get("dropout") or 0.0, ""
        self.scales = {layer: term.scale for layer, term in adapter.terms.items()}
        self.squares = {layer: row_squares(self.engine, layer) for layer, term in adapter.terms.items()
                        if term.magnitude is not None}
        self.head = HEAD in adapter.full
        self.whole = [name for name in adapter.full if name != HEAD]
        self.centred = centred(self.engine, self.whole)
        self.softcap = final_softcap(model.info)

    def terms(self, parameters: Mapping[str, mx.array] | None) -> list[Any]:
        """As the engine takes them. None: the model alone, the reference."""
        if parameters is None:
            return []
        return [(layer, parameters[f"{layer}.lora_a"], parameters[f"{layer}.lora_b"], scale,
                 *((parameters[f"{layer}.magnitude"], self.squares[layer]) if layer in self.squares else ()))
                for layer, scale in self.scales.items()]

    def parts_of(self, layer: str) -> list[str]:
        """The names of a layer's parameters."""
        return [f"{layer}.lora_a", f"{layer}.lora_b", *([f"{layer}.magnitude"] if layer in self.squares else [])]

    def weights(self, parameters: Mapping[str, mx.array] | None, sums: Sums) -> list[Any]:
        """Those that are trained as a whole, as the engine takes them."""
        if parameters is None:
            return []
        return [(name, parameters[name].astype(mx.float32) + 1 if name in self.centred else parameters[name],
                 sums[name] if sums else None) for name in self.whole]

    def rows(self, parameters: Mapping[str, mx.array] | None, sequences: Sequence[Tokens], sums: Sums,
             each: int = 1) -> mx.array:
        """float32 [tokens that count, hidden]: the rows that the tokens are told from."""
        ids, places, lengths = integers("i"), [], []
        for one in sequences:
            places += [len(ids) + j for j in range(len(one.ids) - 1) if one.counted[j + 1]]
            ids += one.ids[:-1]                     # nothing is told from the last one
            lengths.append(len(one.ids) - 1)
        before = [tuple(sums[name] for name in self.parts_of(layer)) for layer in self.scales] if sums else None
        share = self.dropout if sums is not None else 0.0
        x = self.engine.rows(ids, lengths, terms=self.terms(parameters), sums=before,
                             int8=self.products == "int8", bf16=self.products == "bf16", checkpoints=self.checkpoints,
                             dropout=share, keys=self.keys(sequences) if share else None,
                             whole=self.weights(parameters, sums),
                             groups=[sum(lengths[i:i + each]) for i in range(0, len(lengths), each)])
        return x if len(places) == len(ids) else x[mx.array(places, dtype=mx.int32)]

    def keys(self, sequences: Sequence[Tokens]) -> mx.array:
        """uint32 [sequences, 2]: of a sequence's tokens and the draw, so that passes may be cut at will."""
        drawn = b"".join(hashlib.blake2b(self.draw.encode() + one.ids.tobytes(), digest_size=8).digest()
                         for one in sequences)
        return mx.array(memoryview(drawn).cast("I")).reshape(-1, 2)

    def losses(self, parameters: Mapping[str, mx.array] | None, sequences: Sequence[Tokens], sums: Sums,
               each: int = 1) -> mx.array:
        """float32: of each token that counts, minus its log probability."""
        targets = [one for sequence in sequences for one, counted in zip(sequence.ids, sequence.counted) if counted]
        rows = self.rows(parameters, sequences, sums, each)
        if parameters is not None and self.head:
            lengths = [one.targets for one in sequences]
            return head_losses(rows, parameters[HEAD], targets, lengths, sums.get(HEAD) if sums else None, self.softcap)
        return self.engine.loss(rows, targets, gradient=sums is not None, bf16=self.products == "bf16")

    def log_probs(self, parameters: Mapping[str, mx.array] | None, sequences: Sequence[Tokens],
                  sums: Sums, each: int = 1) -> mx.array:
        """float32 [sequences]: the log probability of all tokens that count."""
        return -by_sequence(self.losses(parameters, sequences, sums, each), sequences)


def head_losses(rows: mx.array, weight: mx.array, targets: Sequence[int], lengths: Sequence[int],
                so_far: mx.array | None, softcap: float) -> mx.array:
    """float32 [rows]: their cross entropy under a head [vocab, hidden] that is trained itself, some rows at a time,
    which are computed again backwards. Rows are those of sequences of these lengths; what each gives to the head is
    added in order, from so_far on."""
    ids, cuts = mx.array(targets, dtype=mx.int32), slices_of(lengths, max(SLICE, HEAD_LOGITS // weight.shape[0]))

    def loss(x, w, begin, end):
        logits = x @ w.astype(mx.float32).T
        logits = softcap * mx.tanh(logits / softcap) if softcap else logits
        return mx.fast.cross_entropy(logits, ids[begin:end])

    @mx.custom_function
    def all_of_them(x, w):
        found = []
        for begin, end in cuts:
            part = mx.depends([x[begin:end]], found[-1:])[0] if found else x[begin:end]
            found.append(loss(part, w, begin, end))
        return mx.concatenate(found)

    @all_of_them.vjp
    def gradients(primals, cotangent, _):
        x, w = primals
        found, sum_of_them = [], so_far
        for begin, end in cuts:
            part = x[begin:end] if sum_of_them is None else mx.depends([x[begin:end]], [sum_of_them])[0]
            _, (dx, dw) = mx.vjp(lambda a, b, at=(begin, end): loss(a, b, *at), [part, w.astype(mx.float32)],
                                 [cotangent[begin:end]])
            sum_of_them = dw if sum_of_them is None else sum_of_them + dw
            found += mx.depends([dx], [sum_of_them])
        return mx.concatenate(found), sum_of_them.astype(w.dtype)

    made: mx.array = all_of_them(rows, weight)
    return made


def slices_of(lengths: Sequence[int], most: int) -> list[tuple[int, int]]:
    """Rows of sequences, some at a time: whole sequences, or parts of one from its beginning on, so that the parts of a
    sequence are the same whatever is beside it."""
    found: list[tuple[int, int]] = []
    at = 0
    for length in lengths:
        found += [(at + i, min(at + i + most, at + length)) for i in range(0, length, most)]
        at += length
    return found


def listed(values: mx.array) -> list[float]:
    """The values, for which a signal is not made to wait."""
    _gomlx.eval_or_drop(values)
    found: list[float] = values.tolist()
    return found


def by_sequence(values: mx.array, sequences: Sequence[Tokens]) -> mx.array:
    """The sum of each sequence's values: its own bits, whatever is beside it."""
    made, at = [], 0
    for one in sequences:
        made.append(values[at:at + one.targets].sum())
        at += one.targets
    return mx.stack(made)


def everything(one: Tokens) -> Tokens:
    """The sequence with all its tokens counted."""
    return Tokens(one.ids, b"\0" + b"\1" * (len(one.ids) - 1))


class Objective:
    """The loss of rows. A step's loss is the sum of what its passes give, divided by `total` of all its rows."""
    kinds: tuple[str, ...] = ("text", "completion", "chat")
    least_rows = 1              # of a step
    measures = False            # whether something is computed before

    def __init__(self, forward: Forward) -> None:
        self.forward = forward

    def total(self, rows: Sequence[Row]) -> int:
        return len(rows)

    def check(self, data: Dataset) -> None:
        """ValueError where the loss cannot be computed for these rows, which are of its kinds."""

    def measure(self, parameters: Mapping[str, mx.array], passes: Sequence[Sequence[Row]], last: Row) -> list[float]:
        """What is computed of each row before, without a gradient. last: the row of the step before these, of the
        first one the last."""
        return []

    def prepare(self, rows: Sequence[Row], measured: Sequence[float]) -> Any:
        """What parts() is given: of all rows of the step, and what was measured of them."""
        return None

    def parts(self, parameters: Mapping[str, mx.array], rows: Sequence[Row], first: int, prepared: Any,
              sums: Sums) -> tuple[mx.array, dict[str, mx.array]]:
        """(float32 whose sum belongs to the loss, what else is known of each row). first: the number of the first row
        within the step."""
        raise NotImplementedError


class Sft(Objective):
    """The mean cross entropy of the tokens that count."""

    def total(self, rows):
        return sum(row.targets for row in rows)

    def parts(self, parameters, rows, first, prepared, sums):
        return self.forward.losses(parameters, [row.sequences[0] for row in rows], sums), {}


class Preferences(Objective):
    """The base of losses over pairs: sequences are chosen, rejected, chosen, ..."""
    kinds = ("preference",)

    def __init__(self, forward: Forward, beta: float = 0.1) -> None:
        super().__init__(forward)
        self.beta = beta

    @staticmethod
    def flat(rows: Sequence[Row]) -> list[Tokens]:
        return [one for row in rows for one in row.sequences]


class Dpo(Preferences):
    measures = True

    def __init__(self, forward: Forward, beta: float = 0.1, label_smoothing: float = 0.0) -> None:
        super().__init__(forward, beta)
        self.label_smoothing = label_smoothing

    def measure(self, parameters, passes, last):
        return reference_of(self.forward, [self.flat(rows) for rows in passes])

    def prepare(self, rows, measured):
        return mx.array(measured, dtype=mx.float32)

    def parts(self, parameters, rows, first, prepared, sums):
        policy = self.forward.log_probs(parameters, self.flat(rows), sums, 2)
        reference = prepared[2 * first:2 * (first + len(rows))]
        rewards = mx.stop_gradient(self.beta * (policy - reference))
        known = {"accuracy": (rewards[::2] > rewards[1::2]).astype(mx.float32), "margin": rewards[::2] - rewards[1::2],
                 "chosen_reward": rewards[::2], "rejected_reward": rewards[1::2]}
        return dpo_loss(policy[::2], policy[1::2], reference[::2], reference[1::2], beta=self.beta,
                        label_smoothing=self.label_smoothing), known


class Orpo(Preferences):
    """The mean cross entropy of the chosen texts with their prompts, and the odds ratio."""

    def prepare(self, rows, measured):
        return len(rows) / sum(len(row.sequences[0].ids) - 1 for row in rows)

    def parts(self, parameters, rows, first, prepared, sums):
        sequences = [everything(row.sequences[0]) if i == 0 else row.sequences[1] for row in rows for i in (0, 1)]
        losses, at = self.forward.losses(parameters, sequences, sums, 2), 0
        means: list[mx.array] = []
        told: list[mx.array] = []
        for row, one in zip([row for row in rows for _ in (0, 1)], sequences):
            mine = losses[at:at + one.targets]
            at += one.targets
            if len(told) == len(means) // 2:            # the chosen one, whose prompt does not count here
                told.append(mine)
                counted = row.sequences[0].counted[1:]
                mine = mine if all(counted) else mine[mx.array([i for i, c in enumerate(counted) if c],
                                                               dtype=mx.int32)]
            means.append(-mine.mean())
        logs = mx.stack(means)
        odds = orpo_loss(logs[::2], logs[1::2], beta=self.beta)
        known = {"accuracy": mx.stop_gradient(logs[::2] > logs[1::2]).astype(mx.float32)}
        return mx.concatenate([prepared * mx.concatenate(told), odds]), known


class Kto(Objective):
    """Answers that are wanted or unwanted. The divergence is that of answers to other prompts of the same step, with
    which the loss is compared; it needs two rows of a step at least."""
    kinds = ("label",)
    least_rows = 2
    measures = True

    def __init__(self, forward: Forward, beta: float = 0.1, desirable_weight: float = 1.0,
                 undesirable_weight: float = 1.0) -> None:
        super().__init__(forward)
        self.beta, self.weights = beta, (desirable_weight, undesirable_weight)

    def measure(self, parameters, passes, last):
        """Of each row its log probability by the model alone, and how far the adapter moves that of the answer of the
        row before it."""
        found = []
        for part in passes:
            rows = [row.sequences[0] for row in part]
            swapped = [other_answer(one, other) for one, other in zip(rows, [last.sequences[0], *rows])]
            moved = listed(self.forward.log_probs(parameters, swapped, None) -
                           self.forward.log_probs(None, swapped, None))
            found += [value for both in zip(listed(self.forward.log_probs(None, rows, None)), moved) for value in both]
            last = part[-1]
        return found

    def prepare(self, rows, measured):
        return (mx.array(measured[::2], dtype=mx.float32), max(0.0, math.fsum(measured[1::2]) / len(rows)))

    def parts(self, parameters, rows, first, prepared, sums):
        reference, divergence = prepared
        policy = self.forward.log_probs(parameters, [row.sequences[0] for row in rows], sums)
        reference = reference[first:first + len(rows)]
        wanted = mx.array([bool(row.label) for row in rows])
        losses = kto_loss(policy, reference, wanted, divergence, beta=self.beta, desirable_weight=self.weights[0],
                          undesirable_weight=self.weights[1])
        return losses, {"divergence": mx.full((len(rows),), divergence)}


def other_answer(one: Tokens, other: Tokens) -> Tokens:
    """The prompt of a sequence with the answer of another."""
    ids = one.ids[:one.start] + other.ids[other.start:]
    return Tokens(ids, bytes(one.start) + other.counted[other.start:])


def reference_of(forward, passes):
    """Log probabilities of all sequences by the model alone."""
    logs = []
    for one in passes:
        logs += listed(forward.log_probs(None, one, None))
    return logs


def final_softcap(info: Mapping[str, Any]) -> float:
    """What bounds the logits of Gemma 2 and 4; 0: nothing."""
    if os.path.isdir(info["path"]):
        config = read_json(os.path.join(info["path"], "config.json"))
        config = config.get("text_config") or config
        return float(config.get("final_logit_softcapping") or 0)
    known = info.get("metadata", {})
    return float(known.get(f"{known.get('general.architecture')}.final_logit_softcapping") or 0)


LOSSES = ("sft", "dpo", "orpo", "kto", "distillation")
Bound = tuple[str, Callable[[float], bool]]
POSITIVE: Bound = "more than 0", lambda value: value > 0
WEIGHT: Bound = "0 or more", lambda value: value >= 0
SHARE: Bound = "0 to 0.5", lambda value: 0 <= value <= 0.5
OPTIONS: dict[str, dict[str, Bound]] = {
    "sft": {}, "dpo": {"beta": POSITIVE, "label_smoothing": SHARE}, "orpo": {"beta": POSITIVE},
    "kto": {"beta": POSITIVE, "desirable_weight": WEIGHT, "undesirable_weight": WEIGHT},
    "distillation": {"temperature": POSITIVE}}


OBJECTIVES: dict[str, type[Sft] | type[Dpo] | type[Orpo] | type[Kto]] = {"sft": Sft, "dpo": Dpo, "orpo": Orpo,
                                                                         "kto": Kto}
