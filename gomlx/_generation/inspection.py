"""What a model computes on the way to its logits: looked at, and changed.

Activations have names: "embedding", "layers.3.q", "final_norm", "logits"; model.activation_names() lists them. Where a
name is requested; one with wildcards ("layers.*.residual") means all that it matches.

    layers.N.input              the residual stream before layer N
    layers.N.q, k, v            after norms, before the rotation; q_rotated, k_rotated after it
    layers.N.attention_weights  [heads, n, n], after softcap, mask, window and softmax; with sinks a row
                                adds up to less than 1
    layers.N.attention          values mixed by them, before any gate and o_proj
    layers.N.recurrent, state   the same of recurrent layers, and what they keep after the last token: [value heads,
                                value dimension, key dimension]
    layers.N.attention_output   what the residual stream gets of either
    layers.N.router_logits, router_ids, router_weights          of mixtures of experts
    layers.N.mlp                what the residual stream gets of MLP or experts
    layers.N.residual           the residual stream after the layer: the next one's input
"""
from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, NamedTuple

from gomlx import _gomlx as mx
from gomlx._base import arguments, notebook
from gomlx._generation.adapters import AdapterChoice

END = 2**31 - 1                 # larger than any position


@dataclass(frozen=True)
class Steer:
    """Adds scale * vector to an activation.

    name        of one activation, or of several with wildcards; router_ids, rotated queries and keys, attention_weights
                and states can be read only
    vector      the activation's size for one token, in its shape or flat; or with an axis more, in front, a row for
                each of the positions
    positions   None: all, or with rows as many as there are, from the first on. "prompt", or "new": those of tokens
                that were generated, after the last token of the prompt, which gives the first of them. An int, ints,
                or a slice: negative ones count from the end of the prompt

    Where scale * vector is 0 no bit is changed.
    """
    name: str
    vector: Any
    scale: float = 1.0
    positions: Any = None
    replaces = False


@dataclass(frozen=True)
class Patch:
    """Replaces an activation by value; the fields are Steer's."""
    name: str
    value: Any
    positions: Any = None
    replaces = True


class LensToken(NamedTuple):
    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class LogitLens:
    """layers[i][p]: what the head makes of the residual stream after layer i at position p, the likeliest first."""
    ids: list[int]
    texts: list[str]            # of the prompt's tokens
    layers: list[list[list[LensToken]]]

    def _repr_html_(self) -> str:
        return notebook.logit_lens(self)


@dataclass(frozen=True)
class AttentionSnapshot:
    """Keys after the rotation. Layers that share keys have those of the layer they read; recurrent layers have none.
    Where layers differ in heads or size, num_heads and head_dim are those of the first one."""
    architecture: str
    num_layers: int
    num_heads: int              # of keys and values
    num_query_heads: int
    seq_len: int
    head_dim: int
    keys: list[list[mx.array]]  # [layer][head]: float32 [seq_len * head_dim]
    queries: list[list[mx.array]] | None = None

    @property
    def has_queries(self) -> bool:
        return self.queries is not None


@dataclass(frozen=True)
class Validation:
    """How far a model's own path is from the exact one, for one prompt: the same weights, as they are quantised, with
    float32 activations and a float32 cache."""
    # of each activation: root mean square of the difference over that of the exact one
    differences: dict[str, float]
    max_difference: float       # the largest difference between logits of the last token, in their own unit
    kl: float                   # mean over the tokens of KL(exact || own), in nats
    top_1: float                # share of the tokens for which both paths find the same next token likeliest


class Inspectable:
    """The part of Model that looks inside. Results are arrays, which numpy.asarray takes without a copy."""

    def activation_names(self) -> dict[str, tuple[int | str, ...]]:
        """The names of all activations with their shapes; "n" is the number of tokens."""
        return {name: tuple("n" if size < 0 else size for size in shape)
                for _, name, shape, _, _ in activations(self)}

    def inspect(self, prompt: str | mx.Ids, want: str | Sequence[str] = "layers.*.residual",
                edits: Steer | Patch | Sequence[Steer | Patch] = (), exact: bool = False,
                adapter: AdapterChoice = None) -> dict[str, mx.array]:
        """Activations of a prompt, by name in the order of the model: float32 arrays, router_ids int32.

        want        names, or one, with or without wildcards; ValueError for one that the model does not have
        edits       Steer and Patch, applied in this order on the way
        exact       with float32 activations and a float32 cache, whatever the model was loaded with
        adapter     as in generate()

        All of it is one forward pass: a prompt whose activations do not fit into memory is MemoryError.
        """
        known = {name: number for number, name, *_ in activations(self)}
        names = expand([want] if isinstance(want, str) else arguments.sequence("want", want, "names"), known)
        ids = self._prompt_ids(prompt)
        arrays = self._engine.inspect(ids, [known[name] for name in names], edits=engine_edits(self, edits, len(ids)),
                                      exact=arguments.flag("exact", exact), adapters=self._shares(adapter))
        return dict(zip(names, arrays, strict=True))

    def validate(self, prompt: str | mx.Ids, want: str | Sequence[str] = (
            "layers.*.attention_output", "layers.*.mlp", "layers.*.residual"),
            edits: Steer | Patch | Sequence[Steer | Patch] = (), adapter: AdapterChoice = None) -> Validation:
        """Compares what this model computes for a prompt with the exact path over the same weights. What differs comes
        from rounding activations and the cache, as `activations` and `kv_dtype` say: with both in float32 it is 0.

        want        activations of float32 to compare besides the logits, as in inspect()
        edits, adapter      as in inspect(), in both passes

        Logits of all tokens are held for both passes: a prompt for which they do not fit into memory is MemoryError.
        """
        wanted = [want] if isinstance(want, str) else arguments.sequence("want", want, "names")
        own, exact = (self.inspect(prompt, [*wanted, "logits"], edits, exact, adapter) for exact in (False, True))
        odd = [name for name, value in own.items() if value.dtype != mx.float32]
        if odd:
            raise ValueError(f"want: {odd[0]} is not float32, and cannot be compared")
        logits, expected = own["logits"], exact["logits"]
        logprobs, wanted_logprobs = (mx.subtract(x, mx.logsumexp(x, axis=-1, keepdims=True))
                                     for x in (logits, expected))
        kl = mx.sum(mx.multiply(mx.exp(wanted_logprobs), mx.subtract(wanted_logprobs, logprobs)), axis=-1)
        same = mx.equal(mx.argmax(logits, axis=-1), mx.argmax(expected, axis=-1))
        return Validation(
            differences={name: relative_difference(value, exact[name]) for name, value in own.items()},
            max_difference=mx.max(mx.abs(mx.subtract(logits[-1], expected[-1]))).item(),
            kl=max(mx.mean(kl).item(), 0.0), top_1=mx.mean(same).item())

    def logit_lens(self, prompt: str | mx.Ids, top_k: int = 5) -> LogitLens:
        """What the model would say after each layer: final norm and head of the residual stream at every position."""
        if not 1 <= top_k <= self.vocab_size:
            raise ValueError(f"top_k is {top_k}, expected 1 to the vocabulary of {self.vocab_size}")
        ids = self._prompt_ids(prompt)
        layers = []
        for stream in self.inspect(ids).values():
            probabilities = mx.softmax(self._engine.head(stream), axis=-1)
            best = mx.argsort(mx.negative(probabilities), axis=-1)[:, :top_k]
            pairs = zip(best.tolist(), mx.take_along_axis(probabilities, best, axis=-1).tolist(), strict=True)
            layers.append([[LensToken(one, self._text_of(one), p) for one, p in zip(*row, strict=True)]
                           for row in pairs])
        return LogitLens(ids, [self._text_of(one) for one in ids], layers)

    def inspect_attention(self, prompt: str | mx.Ids, queries: bool = False) -> AttentionSnapshot:
        """Keys, and if requested queries, of all layers and heads after one pass over the prompt."""
        ids = self._prompt_ids(prompt)
        known = self._engine.activations()
        n_layers = self.info["n_layers"]
        source = {int(name.split(".")[1]): owner for _, name, _, _, owner in known if name.endswith(".q")}
        if not source:
            raise ValueError(f"inspect_attention: no layer of {self.info['architecture']} here has attention")
        found = self.inspect(ids, ["*.k_rotated", "*.q_rotated"][:1 + queries])
        shapes = {name: shape for _, name, shape, _, _ in known}
        first = min(source)

        def heads(layer, kind):
            if layer is None:
                return []
            x = found[f"layers.{layer}.{kind}"]
            return [mx.flatten(mx.contiguous(x[:, head])) for head in range(x.shape[1])]

        return AttentionSnapshot(
            architecture=self.info["architecture"], num_layers=n_layers,
            num_heads=shapes[f"layers.{source[first]}.k"][1], num_query_heads=shapes[f"layers.{first}.q"][1],
            seq_len=len(ids), head_dim=shapes[f"layers.{first}.q"][2],
            keys=[heads(source.get(i), "k_rotated") for i in range(n_layers)],
            queries=[heads(i if i in source else None, "q_rotated") for i in range(n_layers)] if queries else None)

    def _prompt_ids(self, prompt, name="prompt"):
        if isinstance(prompt, str):
            return self.tokenizer.encode_prompt(prompt)
        if isinstance(prompt, (bytes, bytearray, Mapping, Set)) or not hasattr(prompt, "__iter__"):
            raise TypeError(f"{name}: expected a str or token ids, got {arguments.shown(prompt)}")
        ids = list(prompt)
        if ids and isinstance(ids[0], (str, Mapping)):
            got = "texts, for generate_batch()" if isinstance(ids[0], str) else "messages, for chat()"
            raise TypeError(f"{name}: expected one str or token ids, got a list of {got}")
        return arguments.token_ids(name, ids)

    def _text_of(self, token):
        return self.tokenizer.decode([token], skip_special_tokens=False)


def relative_difference(value, expected):
    """Root mean square of value - expected over that of expected; 0.0 where both are 0."""
    difference, whole = (mx.sum(mx.square(x)).item() for x in (mx.subtract(value, expected), expected))
    return (difference / whole) ** 0.5 if whole else float("inf") if difference else 0.0


def activations(model):
    """Tuples (number, name, shape, editable, source) in the order of the model."""
    return sorted(model._engine.activations(), key=lambda one: one[1] in ("final_norm", "logits"))


def expand(wanted, known):
    """The names that are requested, in the order of `known`."""
    names = set()
    for one in wanted:
        arguments.text("want", one, "names")
        fits = fnmatch.filter(known, one) if any(mark in one for mark in "*?[") else [one] if one in known else []
        if not fits:
            near = difflib.get_close_matches(one, known, 3, 0.5)
            raise ValueError(f"want: unknown activation {one!r}" + (f"; near it: {', '.join(near)}" if near else ""))
        names.update(fits)
    return [name for name in known if name in names]


def engine_edits(model, edits, n_prompt):
    """What the engine takes: tuples (number, replaces, array, from, to)."""
    known = {name: (number, shape) for number, name, shape, _, _ in activations(model)} if edits else {}
    made = []
    for edit in [edits] if isinstance(edits, Steer | Patch) else edits:
        if not isinstance(edit, Steer | Patch):
            raise TypeError(f"steer: expected gomlx.Steer or gomlx.Patch, got {type(edit).__name__}")
        value = edit.value if edit.replaces else edit.vector
        value = mx.array(value, mx.float32)
        if not edit.replaces:
            value = mx.multiply(value, float(edit.scale))
        for name in expand([edit.name], known):
            number, shape = known[name]
            rows = in_rows(name, value, shape[1:])
            for begin, end, taken in spans(edit.positions, n_prompt, rows, name):
                made.append((number, edit.replaces, taken, begin, end))
    return made


def in_rows(name, value, shape):
    """The value as [width], or [rows, width]."""
    width = abs(shape[0] * (shape[1] if len(shape) > 1 else 1))
    if tuple(value.shape) in ((width,), shape):
        return mx.reshape(value, (width,))
    if value.ndim > 1 and tuple(value.shape[1:]) in ((width,), shape):
        return mx.reshape(value, (value.shape[0], width))
    raise ValueError(f"{name}: the value is {tuple(value.shape)}, expected {shape}, or that for each position")


def spans(positions, n_prompt, rows, name):
    """(from, to, value) for each run of positions."""
    if positions is None:
        return [(0, rows.shape[0] if rows.ndim == 2 else END, rows)]
    if positions == "prompt":
        runs = [(0, n_prompt)]
    elif positions == "new":
        runs = [(n_prompt, END)]
    elif isinstance(positions, slice):
        if positions.step not in (None, 1):
            raise ValueError(f"{name}: positions have step {positions.step}, expected 1")
        begin, end = (edge if edge is None or edge >= 0 else max(0, edge + n_prompt)
                      for edge in (positions.start, positions.stop))
        runs = [(begin or 0, END if end is None else end)]
    elif isinstance(positions, str):
        raise ValueError(f"{name}: positions are {positions!r}, expected 'prompt', 'new', ints or a slice")
    else:
        chosen = [positions] if isinstance(positions, int) else list(positions)
        chosen = [one if one >= 0 else one + n_prompt for one in chosen]
        if any(one < 0 for one in chosen):
            raise ValueError(f"{name}: a position is before the beginning of a prompt of {n_prompt} tokens")
        runs = [(one, one + 1) for one in chosen]
    runs = [run for run in runs if run[0] < run[1]]
    if rows.ndim == 1:
        return [(begin, end, rows) for begin, end in runs]
    count, at, made = sum(end - begin for begin, end in runs), 0, []
    if runs and runs[-1][1] == END and len(runs) == 1:
        return [(runs[0][0], runs[0][0] + rows.shape[0], rows)]
    if count != rows.shape[0]:
        raise ValueError(f"{name}: the value has {rows.shape[0]} rows for {count} positions")
    for begin, end in runs:
        made.append((begin, end, rows[at:at + end - begin]))
        at += end - begin
    return made
