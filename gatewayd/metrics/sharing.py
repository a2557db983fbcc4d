"""Metrics of shared resources: queues, bodies and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.fairness.fair_queue import QueueStats


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SharingCollector(Collector):
    """Prometheus collector of queue and refusal counts, without tenant labels.

    Args:
        queues: returns the statistics of each queue, by name.
        body_bytes: returns the bytes of bodies in memory.
        refusals: returns refusals since the start for causes other than full queues.
    """

    _queues: Callable[[], Mapping[str, QueueStats]]
    _body_bytes: Callable[[], int]
    _refusals: Callable[[], Mapping[str, int]]

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        running = GaugeMetricFamily(
            "gatewayd_queue_running", "Occupied slots of a fair queue.", labels=["queue"]
        )
        waiting = GaugeMetricFamily(
            "gatewayd_queue_waiting",
            "Requests waiting for a slot of a fair queue.",
            labels=["queue"],
        )
        refusals = CounterMetricFamily(
            "gatewayd_sharing_refusals",
            "Requests refused for lack of a shared resource, before reaching an engine.",
            labels=["kind"],
        )
        for name, standing in self._queues().items():
            running.add_metric([name], standing.running)
            waiting.add_metric([name], standing.waiting)
            if standing.is_bounded:
                refusals.add_metric([name], standing.refused)
        for kind, count in self._refusals().items():
            refusals.add_metric([kind], count)
        yield running
        yield waiting
        yield GaugeMetricFamily(
            "gatewayd_body_bytes",
            "Bytes of request bodies counted against [server] bodies_bytes.",
            value=self._body_bytes(),
        )
        yield refusals
