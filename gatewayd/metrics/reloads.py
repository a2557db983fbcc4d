"""Prometheus metric of configuration reloads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class ReloadCollector(Collector):
    """Prometheus collector of configuration reloads by outcome."""

    def __init__(self, outcomes: Counter[str]) -> None:
        self._outcomes = outcomes

    def collect(self) -> Iterator[Metric]:
        """Yield the counter of reloads."""
        reloads = CounterMetricFamily(
            "gatewayd_config_reloads", "Configuration reloads by result.", labels=["outcome"]
        )
        for outcome, count in self._outcomes.items():
            reloads.add_metric([outcome], count)
        yield reloads
