"""Prometheus metrics of the gateway and of each model, with vLLM's names for its dashboards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.config.slo import SloTable
from gatewayd.engines.api import Fleet
from gatewayd.metrics.engines import ControlFigures, FleetCollector
from gatewayd.metrics.requests import RequestCollector
from gatewayd.metrics.routes import RouteCollector
from gatewayd.metrics.slo import SloCollector
from gatewayd.metrics.time_causes import CauseCollector
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords


class AnswersCollector(Collector):
    """Prometheus collector of HTTP responses."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, str, int]] = Counter()

    def answered(self, endpoint: str, method: str, status: int) -> None:
        """Count an HTTP response."""
        self._answers[endpoint, method, status] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        answers = CounterMetricFamily(
            "gatewayd_http_requests",
            "HTTP requests by status; 499: client disconnected.",
            labels=["endpoint", "method", "status"],
        )
        for (endpoint, method, status), count in self._answers.items():
            answers.add_metric([endpoint, method, str(status)], count)
        yield answers


class RejectionCollector(Collector):
    """Prometheus collector of requests for one model that were refused because a queue is full."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        # With zeros, so that a rate sees the first refusal.
        self._rejections = Counter(max_num_queued_reqs=0, max_num_queued_tokens=0)

    def rejected(self, *, by_tokens: bool) -> None:
        """Count a request refused by the queue's limit on tokens or on requests."""
        self._rejections["max_num_queued_tokens" if by_tokens else "max_num_queued_reqs"] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield the counter."""
        rejections = CounterMetricFamily(
            "vllm:admission_rejections",
            "Requests refused by admission, by the limit reached.",
            labels=["model_name", "reason"],
        )
        for reason, count in self._rejections.items():
            rejections.add_metric([self._model_name, reason], count)
        yield rejections


class ModelsCollector(Collector):
    """Prometheus collector of all models: their samples, with one family for each metric."""

    def __init__(self) -> None:
        self._collectors: list[Sequence[Collector]] = []

    def add(self, collectors: Sequence[Collector]) -> None:
        """Add the collectors of a model."""
        self._collectors.append(collectors)

    def discard(self, collectors: Sequence[Collector]) -> None:
        """Remove the collectors of a model."""
        self._collectors.remove(collectors)

    def describe(self) -> Iterator[Metric]:
        """Yield nothing: the models' metrics are known at a scrape only."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield each metric once, with the samples of all models, labelled by ``model_name``."""
        families: dict[str, Metric] = {}
        for collectors in self._collectors:
            for metric in (metric for one in collectors for metric in one.collect()):
                # A family may appear once in an exposition, with the samples of all models.
                family = families.setdefault(metric.name, metric)
                if family is not metric:
                    family.samples.extend(metric.samples)
        yield from families.values()


class GatewayMetrics:
    """Prometheus registry with the metrics that all models share.

    Attributes:
        registry: served at ``/metrics``; plugins may register their own metrics.
        answered: counts an HTTP response: endpoint and method, from closed lists, and the status.
        recent: latency records of recent requests.
        models: metrics of each model.
        routes: attempts of requests to routes.
    """

    def __init__(
        self,
        version: str,
        *,
        recent: RecentLatencyRecords | None = None,
    ) -> None:
        """Create and register the collectors.

        Args:
            version: of the daemon.
            recent: latency records of recent requests; None for a private one.
        """
        self.registry = CollectorRegistry()
        build = Gauge(
            "gatewayd_build_info",
            "Version of gatewayd; always 1.",
            ["version"],
            registry=self.registry,
        )
        build.labels(version).set(1)
        answers = AnswersCollector()
        self.answered = answers.answered
        self.models = ModelsCollector()
        self.routes = RouteCollector()
        self.recent = RecentLatencyRecords() if recent is None else recent
        self.registry.register(self.models)
        self.registry.register(answers)
        self.registry.register(self.routes)

    def record_refusal(self, record: LatencyRecord) -> None:
        """Buffer the record of a refused request, which is counted by its HTTP status only."""
        self.recent.refuse(record)


class Metrics:
    """Metrics of one model.

    Attributes:
        gateway: metrics that all models share.
        model_name: value of the label.
        rejected: counts a request refused because the queue is full.
        ended: records an ended prompt, once, and the engine that had accepted it.
        gap_observer: returns an engine's observer of seconds between chunks of one choice.
        slo: SLO attainment of the classes.
    """

    def __init__(
        self,
        gateway: GatewayMetrics,
        fleet: Fleet,
        model_name: str,
        *,
        max_model_len: int,
        control: ControlFigures | None = None,
        slo: SloTable | None = None,
        running: Callable[[], Mapping[int | None, int]] = dict,
    ) -> None:
        """Create the collectors of a model and add them to the gateway's.

        Args:
            gateway: metrics that all models share.
            fleet: read at each scrape.
            model_name: value of the label.
            max_model_len: upper bound of the token-count histograms.
            control: source of strategy metrics.
            slo: SLO targets of the classes; None for the defaults.
            running: returns the generated tokens of running requests by engine; by default none,
                so that tokens are counted when a request ends.
        """
        self.gateway = gateway
        self.model_name = model_name
        requests = RequestCollector(fleet, model_name, max_model_len, running)
        rejections = RejectionCollector(model_name)
        self.slo = SloCollector(SloTable() if slo is None else slo, model_name)
        self._causes = CauseCollector(model_name)
        engines = FleetCollector(fleet, model_name, control)
        self._listeners: list[Callable[[LatencyRecord], None]] = []
        self._collectors = (engines, requests, rejections, self._causes, self.slo)
        gateway.models.add(self._collectors)
        self.rejected = rejections.rejected
        self.ended = requests.ended
        self.gap_observer = requests.gap_observer

    def record_latency(self, record: LatencyRecord) -> None:
        """Add the latency record of an ended request: buffer, causes and SLOs."""
        self.gateway.recent.add(record)
        self._causes.ended(record)
        self.slo.ended(record)
        for listen in self._listeners:
            listen(record)

    def listen(self, listener: Callable[[LatencyRecord], None]) -> Callable[[], None]:
        """Call a listener with each latency record; return what ends that."""
        self._listeners.append(listener)
        return partial(self._listeners.remove, listener)

    def close(self) -> None:
        """Remove the model's metrics."""
        self.gateway.models.discard(self._collectors)
