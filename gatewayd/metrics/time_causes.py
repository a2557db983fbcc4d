"""What ``/metrics`` shows of where requests' time went."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.tracing.causes import CAUSES
from gatewayd.tracing.time_ledger import TimeLedger
from gatewayd_hooks.scheduling import Priority

_FOLD_AT = 16
"""Ledgers that wait to be counted: a quarter of a millisecond of the event loop."""


class CauseCollector(Collector):
    """Sums up ledgers by class and cause, several at a time or when somebody scrapes."""

    def __init__(self) -> None:
        self._waiting: list[TimeLedger] = []
        self._seconds: defaultdict[tuple[int, str], float] = defaultdict(float)

    def ended(self, ledger: TimeLedger) -> None:
        """Note a request; it is counted with others."""
        self._waiting.append(ledger)
        if len(self._waiting) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        ledgers, self._waiting = self._waiting, []
        for ledger in ledgers:
            for part in ledger.parts():
                self._seconds[ledger.priority, part.cause] += part.seconds

    def collect(self) -> Iterator[Metric]:
        """Give all sums; those of a class add up to the time of its requests."""
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
