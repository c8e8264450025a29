"""Probe events: what goes on in a generation, step by step, told to a callable.

    recorder = gomlx.Recorder()
    model.generate("Once upon a time", max_tokens=20, probe=recorder).read()
    recorder.counts["token"], recorder.events[0].data

Phases are "prefill", whose events have step -1, and "decode". The kinds, and what their data hold:

    cache_pressure      prompt_tokens, generated_tokens, layer_count, cache_tokens, processed_tokens, max_tokens,
                        utilisation (cache_tokens / max_tokens), rotating
    memory_pressure     active_bytes, peak_bytes, cache_bytes, of the whole process
    residual_summary    layers: of each the norm, mean and max_abs of the residual stream after it, at the last token
    router_decision     layers: of each with experts its layer, ids and weights at the last token
    logits              shape, vocab, max_id, max_value, min_id, min_value, mean, top: the 8 likeliest as id, logit and
                        probability; of the model's own logits, before any bias, processor or sampler
    entropy             nats, of the distribution of these
    token               id, text, logprob, finish_reason

After prefill come residual_summary, router_decision, cache_pressure and memory_pressure; in each step of decoding
residual_summary and router_decision (but in the first, whose are prefill's), logits, entropy, cache_pressure,
memory_pressure, token.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gomlx import _gomlx as mx

KINDS = ("cache_pressure", "memory_pressure", "residual_summary", "router_decision", "logits", "entropy", "token")
TOP = 8


@dataclass(frozen=True)
class ProbeEvent:
    kind: str
    phase: str              # "prefill" or "decode"
    step: int               # of decoding, from 0; -1 in prefill
    data: dict


@dataclass(frozen=True)
class Probe:
    """Who is told, and of which kinds; generate(probe=a callable) is Probe(a callable). residual_summary and
    router_decision give the generation passes of its own. An exception that sink raises ends the generation."""
    sink: Callable[[ProbeEvent], object]
    kinds: Sequence[str] = KINDS

    def __post_init__(self):
        for one in self.kinds:
            if one not in KINDS:
                raise ValueError(f"probe: there is no kind {one!r}; there are {', '.join(KINDS)}")


class Recorder:
    """Keeps all events, and counts them by kind."""

    def __init__(self):
        self.events = []
        self.counts = Counter()

    def __call__(self, event: ProbeEvent) -> None:
        self.events.append(event)
        self.counts[event.kind] += 1

    def of(self, kind: str) -> list[ProbeEvent]:
        return [event for event in self.events if event.kind == kind]


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
        ends = (".residual",) * ("residual_summary" in self._kinds) \
            + (".router_ids", ".router_weights") * ("router_decision" in self._kinds)
        known = [(number, name) for number, name, *_ in engine.activations() if ends and name.endswith(ends)]
        self.activations = [number for number, _ in known]
        self._names = [name for _, name in known]
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
        seen = {name: array[-1] for name, array in zip(self._names, self.stream.activations(), strict=True)}
        layers, routers = [], []
        for name, row in seen.items():
            at, _, part = name.rpartition(".")
            if part == "residual":
                layers.append({"layer": int(at[7:]), "norm": mx.sqrt(mx.sum(mx.square(row))).item(),
                               "mean": mx.mean(row).item(), "max_abs": mx.max(mx.abs(row)).item()})
            elif part == "router_ids":
                routers.append({"layer": int(at[7:]), "ids": row.tolist(),
                                "weights": seen[at + ".router_weights"].tolist()})
        if layers:
            self._tell("residual_summary", phase, {"layers": layers})
        if routers:
            self._tell("router_decision", phase, {"layers": routers})

    def _tell_pressure(self, phase, ids):
        if "cache_pressure" in self._kinds:
            held = self.session.length
            self._tell("cache_pressure", phase, {
                "prompt_tokens": self._n_prompt, "generated_tokens": len(ids) - self._n_prompt,
                "layer_count": self._layers, "cache_tokens": min(held, self._context), "processed_tokens": held,
                "max_tokens": self._context, "utilisation": min(held, self._context) / self._context,
                "rotating": held > self._context})
        if "memory_pressure" in self._kinds:
            self._tell("memory_pressure", phase, {"active_bytes": mx.get_active_memory(),
                                                  "peak_bytes": mx.get_peak_memory(),
                                                  "cache_bytes": mx.get_cache_memory()})

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
