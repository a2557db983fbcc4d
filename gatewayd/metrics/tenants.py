"""Prometheus metric of inconsistencies of the budget ledger, which must stay zero."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.tenants.billing.budget_ledger import BudgetLedger


class LedgerCollector(Collector):
    """Prometheus collector of inconsistencies that the budget ledger has corrected."""

    def __init__(self, ledger: BudgetLedger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield CounterMetricFamily(
            "gatewayd_uncharged_engine_seconds",
            "Engine seconds of tenants' requests without reported tokens; must stay 0.",
            value=self._ledger.uncharged_seconds,
        )
