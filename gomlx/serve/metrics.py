"""Metrics for Prometheus: counters and histograms of requests, and what the schedulers count themselves."""
from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from gomlx._generation.streams import Result
    from gomlx.serve.state import Served

SECONDS = (.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300)
TOKENS = tuple(4 ** i for i in range(10))

# Of Scheduler.stats: the metric, its kind, its meaning.
COUNTED = {
    "running": ("requests_running", GaugeMetricFamily, "requests that are computed"),
    "waiting": ("requests_waiting", GaugeMetricFamily, "requests that wait for their turn"),
    "kv_bytes": ("kv_bytes", GaugeMetricFamily, "bytes of keys, values and states that running requests may need next"),
    "kv_limit": ("kv_limit_bytes", GaugeMetricFamily, "the bound on these; 0: none"),
    "preempted": ("preemptions", CounterMetricFamily, "times that a request gave its cache back and went on later"),
    "cancelled": ("cancelled", CounterMetricFamily, "requests that were cancelled, by clients who went away mostly"),
    "failed": ("failed", CounterMetricFamily, "requests that an error ended"),
    "refused": ("refused", CounterMetricFamily, "requests that a full queue refused"),
    "prompt_tokens": ("prompt_tokens", CounterMetricFamily, "tokens of prompts"),
    "cached_tokens": ("cached_tokens", CounterMetricFamily, "of these, those that were not computed again"),
    "generated_tokens": ("generated_tokens", CounterMetricFamily, "tokens that were generated"),
}


class Metrics:
    """A registry of a server's own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._served: list[Served] = []
        self._registry.register(self)

        def histogram(name, what, buckets):
            return Histogram("gomlx_" + name, what, ["model"], registry=self._registry, buckets=buckets)

        self.requests = Counter("gomlx_http_requests", "requests by endpoint and status", ["endpoint", "status"],
                                registry=self._registry)
        self._queue = histogram("queue_seconds", "until a request's prompt was begun", SECONDS)
        self._first = histogram("time_to_first_token_seconds", "until a request's first token", SECONDS)
        self._between = histogram("time_between_tokens_seconds", "between arrivals of tokens of a stream", SECONDS)
        self._whole = histogram("request_seconds", "of a whole request", SECONDS)
        self._prompt = histogram("request_prompt_tokens", "tokens of a request's prompt", TOKENS)
        self._output = histogram("request_generated_tokens", "tokens that a request generated", TOKENS)

    def watch(self, served: Served) -> None:
        self._served.append(served)

    def collect(self) -> Iterator[Metric]:
        """What the schedulers and prompt caches count, when it is asked for."""
        stats = {one.name: one.scheduler.stats for one in self._served}
        for key, (name, kind, what) in COUNTED.items():
            family = kind("gomlx_" + name, what, labels=["model"])
            for model, counts in stats.items():
                family.add_metric([model], counts[key])
            yield family
        for key in ("hits", "misses"):
            family = CounterMetricFamily("gomlx_prompt_cache_" + key, f"{key} of the prompt cache", labels=["model"])
            for one in self._served:
                family.add_metric([one.name], getattr(one.model.prompt_cache.stats, key))
            yield family

    def gaps(self, model: str) -> Any:
        """The histogram of times between tokens, for a stream to observe."""
        return self._between.labels(model)

    def ended(self, model: str, stream: Any, result: Result) -> None:
        if stream.queue_seconds is not None:
            self._queue.labels(model).observe(stream.queue_seconds)
        if stream.first_token_seconds is not None:
            self._first.labels(model).observe(stream.first_token_seconds)
        self._whole.labels(model).observe(result.total_seconds)
        self._prompt.labels(model).observe(result.prompt_tokens)
        self._output.labels(model).observe(result.generated_tokens)

    def text(self) -> bytes:
        return generate_latest(self._registry)
