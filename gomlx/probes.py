"""Probe events: a callable is told what happens in a generation, step by step.

    recorder = gomlx.Recorder()
    model.generate("Once upon a time", max_tokens=20, probe=recorder).read()
    recorder.counts["token"], recorder.events[0].data

Phases are "prefill", whose events have step -1, and "decode". The kinds, and what their data hold:

    cache_pressure      prompt_tokens, generated_tokens, layer_count, cache_tokens, processed_tokens, max_tokens,
                        utilisation (cache_tokens / max_tokens), rotating
    memory_pressure     active_bytes, peak_bytes, cache_bytes, of the whole process
    residual_summary    layers: of each the norm, mean and max_abs of the residual stream after it, at the last token
    selected_heads      layers: of each with attention its layer, and the 4 heads with the greatest output (what they
                        mix of the values, before any gate and o_proj) at the last token: heads, the greatest first,
                        and scores, their norms' shares of the norms of all heads
    layer_coherence     layers: of each its layer, and of the last token stream, the cosine of the residual stream
                        before the layer and after it; update, the norm of what the layer adds, over that of the stream
                        before; key and value, the cosine with the token before's (before the rotation), a mean over
                        heads, None where the pass before is not known or the layer has none of its own; head_entropy,
                        of the shares as of selected_heads, from 0, one head alone, to 1, all alike; None without
                        attention
    router_decision     layers: of each with experts its layer, ids and weights at the last token
    logits              shape, vocab, max_id, max_value, min_id, min_value, mean, top: the 8 likeliest as id, logit and
                        probability; of the model's own logits, before any bias, processor or sampler
    entropy             nats, of the distribution of these
    token               id, text, logprob, finish_reason

After prefill come residual_summary, selected_heads, layer_coherence, router_decision, cache_pressure and
memory_pressure; in each step of decoding the first four (but in the first step, whose are prefill's), logits, entropy,
cache_pressure, memory_pressure, token.
"""
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gomlx import _gomlx as mx

KINDS = ("cache_pressure", "memory_pressure", "residual_summary", "selected_heads", "layer_coherence",
         "router_decision", "logits", "entropy", "token")
TOP = 8
HEADS = 4
TINY = 1e-30                    # instead of a norm of 0


@dataclass(frozen=True)
class ProbeEvent:
    kind: str
    phase: str              # "prefill" or "decode"
    step: int               # of decoding, from 0; -1 in prefill
    data: dict[str, Any]


@dataclass(frozen=True)
class Probe:
    """What is called, for which kinds of events; generate(probe=a callable) is Probe(a callable). The kinds about
    layers give the generation passes of its own. An exception that sink raises ends the generation."""
    sink: Callable[[ProbeEvent], object]
    kinds: Sequence[str] = KINDS

    def __post_init__(self) -> None:
        for one in self.kinds:
            if one not in KINDS:
                raise ValueError(f"probe: unknown kind {one!r}; expected some of {', '.join(KINDS)}")


class Recorder:
    """Keeps all events, and counts them by kind."""

    def __init__(self) -> None:
        self.events: list[ProbeEvent] = []
        self.counts: Counter[str] = Counter()

    def __call__(self, event: ProbeEvent) -> None:
        self.events.append(event)
        self.counts[event.kind] += 1

    def of(self, kind: str) -> list[ProbeEvent]:
        return [event for event in self.events if event.kind == kind]


# ---- what is told of a layer: of its activations in the last pass by their names, [n, ...] each; before: those of the
# pass before, or None. None: the layer has no such thing. ----

def norm(x):
    return mx.sqrt(mx.sum(mx.square(x), axis=-1))


def cosine(a, b):
    return mx.divide(mx.sum(mx.multiply(a, b), axis=-1), mx.maximum(mx.multiply(norm(a), norm(b)), TINY))


def numbers(arrays):
    """Scalars by name as floats, computed together."""
    return dict(zip(arrays, mx.stack(list(arrays.values())).tolist(), strict=True))


def shares_of(attention):
    norms = norm(attention[-1])
    return mx.divide(norms, mx.maximum(mx.sum(norms), TINY)).tolist()


def residual_summary(seen, before):
    row = seen["residual"][-1]
    return numbers({"norm": norm(row), "mean": mx.mean(row), "max_abs": mx.max(mx.abs(row))})


def selected_heads(seen, before):
    if "attention" not in seen:
        return None
    shares = shares_of(seen["attention"])
    chosen = sorted(range(len(shares)), key=lambda head: (-shares[head], head))[:HEADS]
    return {"heads": chosen, "scores": [shares[head] for head in chosen]}


def layer_coherence(seen, before):
    start, end = seen["input"][-1], seen["residual"][-1]
    made = {"stream": cosine(start, end),
            "update": mx.divide(norm(mx.subtract(end, start)), mx.maximum(norm(start), TINY))}
    for name, point in (("key", "k"), ("value", "v")):
        rows = seen.get(point)
        if rows is not None and (rows.shape[0] > 1 or before):
            made[name] = mx.mean(cosine(rows[-1], rows[-2] if rows.shape[0] > 1 else before[point][-1]))
    shares = shares_of(seen["attention"]) if "attention" in seen else []
    entropy = -sum(share * math.log(share) for share in shares if share > 0) / math.log(len(shares)) \
        if len(shares) > 1 else None
    return {"key": None, "value": None} | numbers(made) | {"head_entropy": entropy}


def router_decision(seen, before):
    if "router_ids" not in seen:
        return None
    return {"ids": seen["router_ids"][-1].tolist(), "weights": seen["router_weights"][-1].tolist()}


LAYERS = {                      # the kinds of events about a layer, in this order: the activations that it looks at
    residual_summary: ("residual",), selected_heads: ("attention",),
    layer_coherence: ("input", "residual", "k", "v", "attention"), router_decision: ("router_ids", "router_weights"),
}


class Prober:
    """A logits processor that changes nothing, and tells what it sees. `stream` and `session` are set once they are
    there."""

    def __init__(self, engine, n_layers, probe, n_prompt):
        self._sink = probe.sink
        self._kinds = set(probe.kinds)
        self._layers = n_layers
        self._context = engine.context_length
        self._n_prompt = n_prompt
        self._step = -1
        self._told = [tell for tell in LAYERS if tell.__name__ in self._kinds]
        points = {point for tell in self._told for point in LAYERS[tell]}
        split = [(number, *name.split(".")) for number, name, *_ in engine.activations() if name.startswith("layers.")]
        known = [(number, int(layer), point) for number, _, layer, point in split if point in points]
        self.activations = [number for number, *_ in known]
        self._points = [point for _, *point in known]
        self._before = {}                       # layer -> its activations in the pass before
        self.stream = self.session = None

    def __call__(self, ids, logits):
        begins = self._step < 0
        if begins:
            self._tell_pass("prefill")
            self._tell_pressure("prefill", ids)
        self._step += 1
        if not begins:
            self._tell_pass("decode")
        self._tell_logits(logits)
        self._tell_pressure("decode", ids)

    def take(self, token):
        self._tell("token", "decode", {"id": token.id, "text": token.text, "logprob": token.logprob,
                                       "finish_reason": token.finish_reason})

    def _tell(self, kind, phase, data):
        if kind in self._kinds:
            try:
                self._sink(ProbeEvent(kind, phase, -1 if phase == "prefill" else self._step, data))
            except StopIteration as error:          # would look like the stream's own end
                raise RuntimeError("a probe raised StopIteration") from error

    def _tell_pass(self, phase):
        if not self.activations:
            return
        seen = {}
        for (layer, point), array in zip(self._points, self.stream.activations(), strict=True):
            seen.setdefault(layer, {})[point] = array
        for tell in self._told:
            found = [(layer, tell(parts, self._before.get(layer))) for layer, parts in seen.items()]
            layers = [{"layer": layer} | data for layer, data in found if data is not None]
            if layers:
                self._tell(tell.__name__, phase, {"layers": layers})
        self._before = seen

    def _tell_pressure(self, phase, ids):
        if "cache_pressure" in self._kinds:
            held = self.session.length
            self._tell("cache_pressure", phase, {
                "prompt_tokens": self._n_prompt, "generated_tokens": len(ids) - self._n_prompt,
                "layer_count": self._layers, "cache_tokens": min(held, self._context), "processed_tokens": held,
                "max_tokens": self._context, "utilisation": min(held, self._context) / self._context,
                "rotating": held > self._context})
        if "memory_pressure" in self._kinds:
            active, peak, cached = mx._processor_memory()
            self._tell("memory_pressure", phase, {"active_bytes": active, "peak_bytes": peak, "cache_bytes": cached})

    def _tell_logits(self, logits):
        if not self._kinds & {"logits", "entropy"}:
            return
        values = mx.array(logits)
        log_probabilities = mx.subtract(values, mx.logsumexp(values))
        probabilities = mx.exp(log_probabilities)
        if "logits" in self._kinds:
            most, least = mx.argmax(values), mx.argmin(values)
            top = sorted(mx.argpartition(mx.negative(values), min(TOP, values.size) - 1)[:TOP].tolist(),
                         key=lambda one: (-logits[one], one))
            self._tell("logits", "decode", {
                "shape": tuple(values.shape), "vocab": values.size, "max_id": most.item(),
                "max_value": logits[most.item()], "min_id": least.item(), "min_value": logits[least.item()],
                "mean": mx.mean(values).item(),
                "top": [{"id": one, "logit": logits[one], "probability": probabilities[one].item()} for one in top]})
        if "entropy" in self._kinds:
            parts = mx.where(mx.greater(probabilities, 0.0), mx.multiply(probabilities, log_probabilities), 0.0)
            self._tell("entropy", "decode", {"nats": -mx.sum(parts).item()})
