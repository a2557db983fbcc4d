"""What ``/metrics`` shows of the ledger: what must never be found there."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.tenants.ledger import Ledger


class LedgerCollector(Collector):
    """Reads what the ledger has mended."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Give all figures."""
        yield CounterMetricFamily(
            "gatewayd_uncharged_engine_seconds",
            "Engine seconds of tenants' requests for which no token was told; to stay 0.",
            value=self._ledger.uncharged_seconds,
        )
