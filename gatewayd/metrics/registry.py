"""What ``/metrics`` shows: the names that dashboards for vLLM know, and our own."""

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
from gatewayd.tracing.recent import Recent
from gatewayd.tracing.time_ledger import TimeLedger


class GatewayCollector(Collector):
    """Counts what needs no engine: HTTP answers, and requests refused because too many wait."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._rejections = Counter(max_num_queued_reqs=0, max_num_queued_tokens=0)

    def answered(self, endpoint: str, method: str, status: int) -> None:
        """Count an HTTP answer."""
        self._answers[endpoint, method, status] += 1

    def rejected(self, *, by_tokens: bool) -> None:
        """Count a request that found no room: the cap on tokens is reached, or that on requests."""
        self._rejections["max_num_queued_tokens" if by_tokens else "max_num_queued_reqs"] += 1

    def collect(self) -> Iterator[Metric]:
        """Give all counts."""
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
    """The registry and what the gateway counts in it.

    Attributes:
        registry: for ``/metrics`` and for plugins to add to.
        answered: told each HTTP answer: endpoint and method, from closed lists, and the status.
        rejected: told each request that found no room to wait.
        ended: told each prompt that the engines had taken, once, at its end, and the engine.
        gap_observer: of an engine; told the seconds between chunks of tokens of one choice.
    """

    def __init__(
        self,
        fleet: Fleet,
        model_name: str,
        *,
        version: str,
        max_model_len: int,
        control: ControlFigures | None = None,
        recent: Recent | None = None,
        slo: SloTable | None = None,
        running: Callable[[], Mapping[int | None, int]] = dict,
    ) -> None:
        """Register everything.

        Args:
            fleet: read at each scrape.
            model_name: the label's value.
            version: of the daemon.
            max_model_len: bounds the histograms of token counts.
            control: knows what strategies cost.
            recent: keeps the ledgers of the last requests; None for one that nobody asks.
            slo: what classes are promised; None for the defaults.
            running: tokens of the requests that have not ended, by engine; none where tokens
                count at the end.
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
        self._recent = Recent() if recent is None else recent
        self._causes = CauseCollector()
        self.slo = SloCollector(SloTable() if slo is None else slo)
        self.registry.register(self._causes)
        self.registry.register(self.slo)
        self.answered = gateway.answered
        self.rejected = gateway.rejected
        self.ended = requests.ended
        self.gap_observer = requests.gap_observer

    def explained(self, ledger: TimeLedger) -> None:
        """Keep where a request's time went, and count it."""
        self._recent.add(ledger)
        self._causes.ended(ledger)
        self.slo.ended(ledger)

    def refused(self, ledger: TimeLedger) -> None:
        """Keep why a request went no further than the gateway; it is counted by its status."""
        self._recent.refuse(ledger)
