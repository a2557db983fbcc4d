"""Prometheus metric of request latency by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.tracing.causes import CAUSES
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd_hooks.scheduling import Priority

_FOLD_AT = 16
"""Batch size of aggregation: a quarter of a millisecond of the event loop."""


class CauseCollector(Collector):
    """Prometheus collector that sums latency records by priority class and cause."""

    def __init__(self) -> None:
        self._waiting: list[LatencyRecord] = []
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)

    def ended(self, record: LatencyRecord) -> None:
        """Add the record of an ended request; it is aggregated with others later."""
        self._waiting.append(record)
        if len(self._waiting) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        records, self._waiting = self._waiting, []
        for record in records:
            for part in record.parts():
                self._seconds[record.priority, part.cause] += part.seconds

    def collect(self) -> Iterator[Metric]:
        """Yield seconds by class and cause; those of a class sum to its requests' latency."""
        self._fold()
        family = CounterMetricFamily(
            "gatewayd_request_cause_seconds",
            "Latency of finished requests in seconds, by cause.",
            labels=["class", "cause"],
        )
        for priority in Priority:
            for cause in CAUSES:
                seconds = self._seconds[priority, cause]
                family.add_metric([priority.name.lower(), cause], seconds)
        yield family
