"""What is counted, for Prometheus and for the page. Names are llama-server's where it has one.

https://prometheus.io/docs/instrumenting/exposition_formats
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

from umbel.generation import Generation

if TYPE_CHECKING:
    from umbel.server.devices import Devices
    from umbel.server.pool import Pool

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RATES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class Metrics:
    """Of one server. Counting is done on its event loop."""

    def __init__(self, pool: Pool, devices: Devices) -> None:
        self.pool, self.devices = pool, devices
        self.registry = CollectorRegistry(auto_describe=False)
        named: Any = {"labelnames": ("model",), "registry": self.registry}
        self.prompt = Counter("llamacpp:prompt_tokens", "Tokens of prompts.", **named)
        self.cached = Counter(
            "umbel_prompt_tokens_cached", "Those that were computed before.", **named
        )
        self.predicted = Counter("llamacpp:tokens_predicted", "Tokens of answers.", **named)
        self.prompt_seconds = Counter(
            "llamacpp:prompt_seconds", "From requests to first tokens.", **named
        )
        self.seconds = Counter(
            "llamacpp:tokens_predicted_seconds", "From first tokens to last ones.", **named
        )
        more: Any = {"labelnames": ("model", "reason"), "registry": self.registry}
        self.answers = Counter("umbel_answers", "Answers by their end.", **more)
        self.first = Histogram(
            "umbel_time_to_first_token_seconds", "With the wait.", buckets=SECONDS, **named
        )
        self.rate = Histogram(
            "umbel_tokens_per_second", "Of each answer.", buckets=RATES, **named
        )
        self.registry.register(self)

    def ended(self, name: str, generations: Sequence[Generation]) -> None:
        """Answers are over, however they ended."""
        served = self.pool.served[name]
        for one in generations:
            served.prompt_tokens += one.prompt_tokens
            served.cached_tokens += one.cached
            self.answers.labels(name, one.finish_reason or "cancelled").inc()
            self.prompt.labels(name).inc(one.prompt_tokens)
            self.cached.labels(name).inc(one.cached)
            self.predicted.labels(name).inc(len(one.tokens))
            if one.tokens:
                self.first.labels(name).observe(one.prefill_seconds)
                self.prompt_seconds.labels(name).inc(one.prefill_seconds)
                self.seconds.labels(name).inc(one.decode_seconds)
            if one.decode_seconds:
                self.rate.labels(name).observe((len(one.tokens) - 1) / one.decode_seconds)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """What is so now."""
        running = GaugeMetricFamily("llamacpp:requests_processing", "Now.", labels=["model"])
        waiting = GaugeMetricFamily("llamacpp:requests_deferred", "Now.", labels=["model"])
        cells = GaugeMetricFamily("umbel_cells", "Of KV caches.", labels=["model", "state"])
        for one in self.pool.served.values():
            now = one.live()
            running.add_metric([one.name], now["running"])
            waiting.add_metric([one.name], now["waiting"])
            for state in ("total", "used", "cached"):
                cells.add_metric([one.name, state], now["cells"][state])
        refused = GaugeMetricFamily("umbel_requests_refused", "For want of room, in all.")
        refused.add_metric([], self.pool.refused)
        yield from (running, waiting, cells, refused)
        yield from self._of_devices()

    def _of_devices(self) -> Iterator[GaugeMetricFamily]:
        told = GaugeMetricFamily(
            "umbel_device", "Numbers that a device tells of itself.", labels=["device", "what"]
        )
        for one in self.devices.told():
            for what, value in one["status"].items():
                if isinstance(value, int | float):
                    told.add_metric([one["name"], what], value)
        yield told

    def text(self) -> bytes:
        return generate_latest(self.registry)
