"""Registry of Prometheus metrics, with vLLM's names so that its dashboards work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.config.slo import SloTable
from gatewayd.engines.api import Fleet
from gatewayd.metrics.engines import ControlFigures, FleetCollector
from gatewayd.metrics.requests import RequestCollector
from gatewayd.metrics.slo import SloCollector
from gatewayd.metrics.time_causes import CauseCollector
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords


class GatewayCollector(Collector):
    """Prometheus collector of HTTP responses and of requests refused because a queue is full."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._answers: Counter[tuple[str, str, int]] = Counter()
        # With zeros, so that a rate sees the first refusal.
        self._rejections = Counter(max_num_queued_reqs=0, max_num_queued_tokens=0)

    def answered(self, endpoint: str, method: str, status: int) -> None:
        """Count an HTTP response."""
        self._answers[endpoint, method, status] += 1

    def rejected(self, *, by_tokens: bool) -> None:
        """Count a request refused by the queue's limit on tokens or on requests."""
        self._rejections["max_num_queued_tokens" if by_tokens else "max_num_queued_reqs"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield both counters."""
        answers = CounterMetricFamily(
            "gatewayd_http_requests",
            "HTTP requests by status; 499: client disconnected.",
            labels=["endpoint", "method", "status"],
        )
        for (endpoint, method, status), count in self._answers.items():
            answers.add_metric([endpoint, method, str(status)], count)
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused by admission, by the limit reached.",
            labels=["model_name", "reason"],
        )
        for reason, count in self._rejections.items():
            rejections.add_metric([self._model_name, reason], count)
        yield from (answers, rejections)


class Metrics:
    """Prometheus registry with the gateway's collectors.

    Attributes:
        registry: served at ``/metrics``; plugins may register their own metrics.
        answered: counts an HTTP response: endpoint and method, from closed lists, and the status.
        rejected: counts a request refused because the queue is full.
        ended: records an ended prompt, once, and the engine that had accepted it.
        gap_observer: returns an engine's observer of seconds between chunks of one choice.
    """

    def __init__(
        self,
        fleet: Fleet,
        model_name: str,
        *,
        version: str,
        max_model_len: int,
        control: ControlFigures | None = None,
        recent: RecentLatencyRecords | None = None,
        slo: SloTable | None = None,
        running: Callable[[], Mapping[int | None, int]] = dict,
    ) -> None:
        """Create and register all collectors.

        Args:
            fleet: read at each scrape.
            model_name: value of the label.
            version: of the daemon.
            max_model_len: upper bound of the token-count histograms.
            control: source of strategy metrics.
            recent: latency records of recent requests; None for a private one.
            slo: SLO targets of the classes; None for the defaults.
            running: returns the generated tokens of running requests by engine; by default none,
                so that tokens are counted when a request ends.
        """
        self.registry = CollectorRegistry()
        build = Gauge(
            "gatewayd_build_info",
            "Version of gatewayd; always 1.",
            ["version"],
            registry=self.registry,
        )
        build.labels(version).set(1)
        requests = RequestCollector(fleet, model_name, max_model_len, running)
        gateway = GatewayCollector(model_name)
        self.registry.register(FleetCollector(fleet, model_name, control))
        self.registry.register(requests)
        self.registry.register(gateway)
        self._recent = RecentLatencyRecords() if recent is None else recent
        self._causes = CauseCollector()
        self.slo = SloCollector(SloTable() if slo is None else slo)
        self.registry.register(self._causes)
        self.registry.register(self.slo)
        self.answered = gateway.answered
        self.rejected = gateway.rejected
        self.ended = requests.ended
        self.gap_observer = requests.gap_observer

    def record_latency(self, record: LatencyRecord) -> None:
        """Add the latency record of an ended request: buffer, causes and SLOs."""
        self._recent.add(record)
        self._causes.ended(record)
        self.slo.ended(record)

    def record_refusal(self, record: LatencyRecord) -> None:
        """Buffer the record of a refused request, which is counted by its HTTP status only."""
        self._recent.refuse(record)
