"""Prometheus metric of request latency by cause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.tracing.causes import CAUSES
from gatewayd.tracing.latency_record import AddPart, LatencyRecord
from gatewayd_hooks.scheduling import Priority

_FOLD_AT = 64
"""Batch size of aggregation: a fifth of a millisecond of the event loop."""


class CauseCollector(Collector):
    """Prometheus collector that sums a model's latency records by priority class and cause."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._waiting: list[LatencyRecord] = []
        self._seconds = {priority: defaultdict[str, float](float) for priority in Priority}
        self._adders = {int(priority): _adder(spent) for priority, spent in self._seconds.items()}

    def ended(self, record: LatencyRecord) -> None:
        """Add the record of an ended request; it is aggregated with others later."""
        self._waiting.append(record)
        if len(self._waiting) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        records, self._waiting = self._waiting, []
        for record in records:
            record.each_part(self._adders[record.priority])

    def collect(self) -> Iterator[Metric]:
        """Yield seconds by class and cause; those of a class sum to its requests' latency."""
        self._fold()
        family = CounterMetricFamily(
            "gatewayd_request_cause_seconds",
            "Latency of finished requests in seconds, by cause.",
            labels=["model_name", "class", "cause"],
        )
        for priority, spent in self._seconds.items():
            for cause in CAUSES:
                family.add_metric([self._model_name, priority.name.lower(), cause], spent[cause])
        yield family


def _adder(spent: defaultdict[str, float]) -> AddPart:
    """Return a function that adds a part's seconds to those of its cause."""

    def add(cause: str, begin: float | None, seconds: float, strategy: str) -> None:
        spent[cause] += seconds

    return add
