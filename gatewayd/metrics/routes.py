"""Prometheus metrics of routes: attempts at their targets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector


class RouteCollector(Collector):
    """Prometheus collector of attempts by route, target and outcome."""

    def __init__(self) -> None:
        self._attempts: Counter[tuple[str, str, str]] = Counter()

    def attempted(self, route: str, target: str, outcome: str) -> None:
        """Count an attempt.

        Args:
            route: name of the route.
            target: name of the target.
            outcome: ``answered``, ``rejected`` by a judge, ``sampled`` for it, or the failure.
        """
        self._attempts[route, target, outcome] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the counter, if there was any attempt."""
        attempts = CounterMetricFamily(
            "gatewayd_route_attempts",
            "Attempts of requests to routes, by target and outcome.",
            labels=["route", "target", "outcome"],
        )
        for labels, count in self._attempts.items():
            attempts.add_metric(labels, count)
        if self._attempts:
            yield attempts
