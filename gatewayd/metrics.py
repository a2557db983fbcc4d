"""What ``/metrics`` shows: the names that dashboards for vLLM know, and our own.

Requests are counted once, at their end. Engine gauges are read from the fleet when somebody
scrapes. The one thing noted per chunk of tokens is the time since the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gatewayd.engines.seam import Fleet, ReplicaState, ReplicaStatus

# The bounds are those of vLLM's histograms, so that quantiles of both can be compared.
LATENCY = (.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)  # fmt: skip # noqa: E501
FIRST_TOKEN = (.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560)  # fmt: skip # noqa: E501
NEXT_TOKEN = (.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)  # fmt: skip # noqa: E501

ALL_ENGINES = "all"
"""The ``engine`` label of what is counted per request: a request does not know its replica."""


def token_bounds(max_model_len: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to the context."""
    bounds: list[int] = []
    scale = 1
    while True:
        for step in (1, 2, 5):
            if step * scale > max_model_len:
                return bounds
            bounds.append(step * scale)
        scale *= 10


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """When things happened to a request, by one clock, in seconds.

    Attributes:
        arrival: it came.
        first: its first token came, or None.
        last: its last token came, or None.
        end: the answer was complete.
        queue_seconds: spent in the engine's queue.
    """

    arrival: float
    first: float | None
    last: float | None
    end: float
    queue_seconds: float


class LightHistogram(Collector):
    """A histogram of one series, a quarter of the cost of the client library's."""

    def __init__(
        self, name: str, text: str, bounds: Sequence[float], labels: dict[str, str]
    ) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """Give the cumulative counts."""
        total, buckets = 0, []
        for bound, count in zip([*map(float, self._bounds), None], self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else repr(bound), float(total)))
        family = HistogramMetricFamily(self._name, self._text, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), buckets, self._sum)
        yield family


class FleetCollector(Collector):
    """Reads the engines when somebody scrapes."""

    def __init__(self, fleet: Fleet, model_name: str) -> None:
        self._fleet = fleet
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        """Give one sample for each replica."""
        replicas = self._fleet.status()
        yield from self._gauges(replicas)
        yield from self._counters(replicas)
        yield from self._states(replicas)

    def _gauges(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        running = self._gauge("vllm:num_requests_running", "Sequences in the batch.")
        waiting = self._gauge("vllm:num_requests_waiting", "Sequences in the queue.")
        usage = self._gauge("vllm:kv_cache_usage_perc", "Pages that sequences hold, 0 to 1.")
        pages = self._gauge("gatewayd_kv_pages", "Pages of the KV pool.", "state")
        config = self._gauge(
            "vllm:cache_config_info", "Sizes of the KV pool.", "block_size", "num_gpu_blocks"
        )
        for replica in replicas:
            key, stats = [self._model_name, str(replica.index)], replica.stats
            running.add_metric(key, stats.num_running)
            waiting.add_metric(key, stats.num_waiting)
            states = {
                "free": stats.free_pages,
                "cached": stats.cached_pages,
                "held": stats.held_pages,
            }
            usage.add_metric(key, stats.held_pages / max(1, sum(states.values())))
            for state, count in states.items():
                pages.add_metric([*key, state], count)
            if replica.model is not None:
                sizes = [str(replica.model.page_size), str(replica.model.num_pages)]
                config.add_metric([*key, *sizes], 1)
        yield from (running, waiting, usage, pages, config)

    def _counters(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        for name, text, attribute in (
            ("vllm:num_preemptions", "Sequences that had to wait again.", "preemptions"),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", "prefix_queries"),
            ("vllm:prefix_cache_hits", "Prompt tokens found.", "prefix_hits"),
            ("gatewayd_engine_steps", "Steps of the engine.", "step"),
            ("gatewayd_engine_computed_tokens", "Tokens computed.", "computed_tokens"),
            ("gatewayd_strategy_faults", "Strategy faults answered by the default.", "faults"),
        ):
            family = CounterMetricFamily(name, text, labels=["model_name", "engine"])
            for replica in replicas:
                value = getattr(replica.stats, attribute)
                family.add_metric([self._model_name, str(replica.index)], value)
            yield family

    def _states(self, replicas: Sequence[ReplicaStatus]) -> Iterator[Metric]:
        state = self._gauge("gatewayd_replica_state", "1 for the replica's state.", "state")
        restarts = CounterMetricFamily(
            "gatewayd_engine_restarts", "Engines lost.", labels=["model_name", "engine"]
        )
        for replica in replicas:
            key = [self._model_name, str(replica.index)]
            restarts.add_metric(key, replica.restarts)
            for one in ReplicaState:
                state.add_metric([*key, one.value], float(one is replica.state))
        yield from (state, restarts)

    def _gauge(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(name, text, labels=["model_name", "engine", *labels])


class Metrics:
    """The registry and what the gateway counts in it.

    Attributes:
        registry: for ``/metrics`` and for plugins to add to.
        inter_token: seconds between chunks of tokens of one choice.
    """

    def __init__(self, fleet: Fleet, model_name: str, *, version: str, max_model_len: int) -> None:
        """Register everything.

        Args:
            fleet: read at each scrape.
            model_name: the label's value.
            version: of the daemon.
            max_model_len: bounds the histograms of token counts.
        """
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": ALL_ENGINES}
        self.registry.register(FleetCollector(fleet, model_name))
        build = Counter(
            "gatewayd_build", "Always 1; the version.", ["version"], registry=self.registry
        )
        build.labels(version).inc()
        self.inter_token = self._histogram(
            "inter_token_latency_seconds", "Between chunks of tokens of one choice.", NEXT_TOKEN
        )
        counts = token_bounds(max_model_len)
        self._ttft = self._histogram(
            "time_to_first_token_seconds", "Arrival to first token.", FIRST_TOKEN
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time of a later token.", NEXT_TOKEN
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to end.", LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "In the queue.", LATENCY)
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "Queue to first token.", LATENCY
        )
        self._decode = self._histogram("request_decode_time_seconds", "First to last.", LATENCY)
        self._inference = self._histogram(
            "request_inference_time_seconds", "Queue to last token.", LATENCY
        )
        self._prompt_len = self._histogram("request_prompt_tokens", "Prompt tokens.", counts)
        self._output_len = self._histogram("request_generation_tokens", "Tokens made.", counts)
        self._n = self._histogram("request_params_n", "Choices asked for.", (1, 2, 5, 10, 20))
        self._max_tokens = self._histogram("request_params_max_tokens", "Tokens asked for.", counts)
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._cached = self._counter("prompt_tokens_cached", "Of these, found in the cache.")
        self._generated = self._counter("generation_tokens", "Tokens generated.")
        ended = Counter(
            "vllm:request_success",
            "Requests by how they ended.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._ended = {
            outcome: ended.labels(*self._labels.values(), outcome)
            for outcome in ("stop", "length", "abort", "error")
        }
        self._http = Counter(
            "gatewayd_http_requests",
            "HTTP requests; 499 for clients that left.",
            ["endpoint", "method", "status"],
            registry=self.registry,
        )
        self._http_children: dict[tuple[str, str, int], Counter] = {}

    def _histogram(self, name: str, text: str, bounds: Sequence[float]) -> LightHistogram:
        histogram = LightHistogram(f"vllm:{name}", text, bounds, self._labels)
        self.registry.register(histogram)
        return histogram

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(f"vllm:{name}", text, list(self._labels), registry=self.registry)
        return family.labels(*self._labels.values())

    def http_answered(self, endpoint: str, method: str, status: int) -> None:
        """An HTTP request was answered; ``endpoint`` and ``method`` from closed lists."""
        key = (endpoint, method, status)
        child = self._http_children.get(key)
        if child is None:
            child = self._http_children[key] = self._http.labels(endpoint, method, str(status))
        child.inc()

    def request_ended(
        self,
        *,
        outcome: str,
        times: RequestTimes,
        prompt_tokens: int,
        cached_tokens: int,
        completion_tokens: int,
        num_choices: int,
        max_tokens: int,
    ) -> None:
        """A request that an engine had taken ended; called once for each."""
        self._ended[outcome].inc()
        self._prompt.inc(prompt_tokens)
        self._cached.inc(cached_tokens)
        self._generated.inc(completion_tokens)
        self._prompt_len.observe(prompt_tokens)
        self._output_len.observe(completion_tokens)
        self._n.observe(num_choices)
        self._max_tokens.observe(max_tokens)
        self._e2e.observe(times.end - times.arrival)
        self._queue.observe(times.queue_seconds)
        if times.first is None or times.last is None:
            return
        self._ttft.observe(times.first - times.arrival)
        decode = times.last - times.first
        prefill = max(0.0, times.first - times.arrival - times.queue_seconds)
        self._prefill.observe(prefill)
        self._decode.observe(decode)
        self._inference.observe(prefill + decode)
        if completion_tokens > num_choices:
            self._per_token.observe(decode / (completion_tokens / num_choices - 1))
