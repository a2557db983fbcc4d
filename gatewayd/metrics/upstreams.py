"""Prometheus metrics of upstreams and their endpoints, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from gatewayd.upstreams.fleet import UpstreamFleet


_LABELS = ("upstream", "endpoint")


class UpstreamCollector(Collector):
    """Prometheus collector of all upstreams; endpoints are labelled by their index.

    Args:
        fleets: one for each upstream.
    """

    def __init__(self, fleets: Sequence[UpstreamFleet]) -> None:
        self._fleets = fleets

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        waiting = GaugeMetricFamily(
            "gatewayd_upstream_requests_waiting",
            "Requests that wait for the concurrency of an upstream.",
            labels=_LABELS[:1],
        )
        running = GaugeMetricFamily(
            "gatewayd_upstream_requests_running",
            "Requests in flight at an endpoint of an upstream.",
            labels=_LABELS,
        )
        ready = GaugeMetricFamily(
            "gatewayd_upstream_endpoint_ready",
            "1: the endpoint gets requests; 0: it is ejected, and probed.",
            labels=_LABELS,
        )
        failures = CounterMetricFamily(
            "gatewayd_upstream_endpoint_failures",
            "Failed connections and answers of an endpoint.",
            labels=_LABELS,
        )
        for fleet in self._fleets:
            waiting.add_metric([fleet.name], fleet.num_pending)
            for endpoint in fleet.endpoints.all:
                key = [fleet.name, str(endpoint.index)]
                running.add_metric(key, endpoint.num_running)
                ready.add_metric(key, not endpoint.is_ejected)
                failures.add_metric(key, endpoint.total_failures)
        yield from (waiting, running, ready, failures)
