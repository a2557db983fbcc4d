"""What ``/metrics`` shows: the names that dashboards for vLLM know, and our own.

Requests are noted once, at their end, and counted by the hundred or when somebody scrapes. The
one thing counted per chunk of tokens is the time since the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.engines.seam import Fleet
from gatewayd.metrics_fleet import FleetCollector

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


_FOLD_AT = 256
"""Ended requests that wait to be counted: half a millisecond of the event loop."""


class Ended(NamedTuple):
    """A request that an engine had taken and that has ended; times by one clock, in seconds.

    Attributes:
        outcome: ``stop``, ``length``, ``abort`` or ``error``.
        prompt_tokens: of all prompts.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: of all choices.
        num_choices: for each prompt.
        max_tokens: asked for.
        arrival: when it came.
        first: when its first token came, or None.
        last: when its last token came, or None.
        end: when the answer was complete.
        queue_seconds: spent in the engine's queue.
    """

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    num_choices: int
    max_tokens: int
    arrival: float
    first: float | None
    last: float | None
    end: float
    queue_seconds: float


class Histogram:
    """Counts values between bounds, one by one or many at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = list(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Sequence[float]) -> None:
        """Count many values, at a tenth of the cost for each."""
        for at, count in Counter(map(bisect_left, repeat(self._bounds), values)).items():
            self._counts[at] += count
        self._sum += sum(values)

    def family(self, name: str, text: str, labels: dict[str, str]) -> Metric:
        """The cumulative counts, as Prometheus has them."""
        total, buckets = 0, []
        for bound, count in zip([*map(float, self._bounds), None], self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound is None else repr(bound), float(total)))
        family = HistogramMetricFamily(name, text, labels=list(labels))
        family.add_metric(list(labels.values()), buckets, self._sum)
        return family


class RequestCollector(Collector):
    """Counts requests; gives the counts when somebody scrapes.

    Attributes:
        inter_token: seconds between chunks of tokens of one choice.
    """

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self._labels = {"model_name": model_name, "engine": ALL_ENGINES}
        self._waiting: list[Ended] = []
        self._outcomes: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        self._answers: Counter[tuple[str, str, int]] = Counter()
        self._prompt_tokens = self._cached_tokens = self._generated_tokens = 0
        counts = token_bounds(max_model_len)
        self.inter_token = Histogram(NEXT_TOKEN)
        self._ttft = Histogram(FIRST_TOKEN)
        self._per_token = Histogram(NEXT_TOKEN)
        self._e2e = Histogram(LATENCY)
        self._queue = Histogram(LATENCY)
        self._prefill = Histogram(LATENCY)
        self._decode = Histogram(LATENCY)
        self._inference = Histogram(LATENCY)
        self._prompt_len = Histogram(counts)
        self._output_len = Histogram(counts)
        self._n = Histogram((1, 2, 5, 10, 20))
        self._max_tokens = Histogram(counts)

    def answered(self, endpoint: str, method: str, status: int) -> None:
        """Count an HTTP answer."""
        self._answers[endpoint, method, status] += 1

    def ended(self, request: Ended) -> None:
        """Note a request; it is counted with others."""
        self._waiting.append(request)
        if len(self._waiting) >= _FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        """Count what waits, column by column."""
        requests, self._waiting = self._waiting, []
        if not requests:
            return
        columns = list(zip(*requests, strict=True))
        outcomes, prompt, cached, completion, num_choices, max_tokens = columns[:6]
        self._outcomes.update(outcomes)
        self._prompt_tokens += sum(prompt)
        self._cached_tokens += sum(cached)
        self._generated_tokens += sum(completion)
        self._prompt_len.observe_all(prompt)
        self._output_len.observe_all(completion)
        self._n.observe_all(num_choices)
        self._max_tokens.observe_all(max_tokens)
        self._queue.observe_all(columns[-1])
        self._e2e.observe_all([one.end - one.arrival for one in requests])
        self._fold_times(requests)

    def _fold_times(self, requests: Sequence[Ended]) -> None:
        """Count the times of requests that got tokens."""
        ttft, prefill, decode, per_token = [], [], [], []
        for one in requests:
            if one.first is None or one.last is None:
                continue
            first, decoding = one.first - one.arrival, one.last - one.first
            ttft.append(first)
            prefill.append(max(0.0, first - one.queue_seconds))
            decode.append(decoding)
            if one.completion_tokens > one.num_choices:
                per_token.append(decoding / (one.completion_tokens / one.num_choices - 1))
        self._ttft.observe_all(ttft)
        self._prefill.observe_all(prefill)
        self._decode.observe_all(decode)
        self._inference.observe_all([sum(pair) for pair in zip(prefill, decode, strict=True)])
        self._per_token.observe_all(per_token)

    def collect(self) -> Iterator[Metric]:
        """Give all counts, those that wait included."""
        self._fold()
        yield from self._histograms()
        yield from self._counters()

    def _histograms(self) -> Iterator[Metric]:
        for histogram, name, text in (
            (
                self.inter_token,
                "inter_token_latency_seconds",
                "Between chunks of tokens of one choice.",
            ),
            (self._ttft, "time_to_first_token_seconds", "Arrival to first token."),
            (
                self._per_token,
                "request_time_per_output_token_seconds",
                "Mean time of a later token.",
            ),
            (self._e2e, "e2e_request_latency_seconds", "Arrival to end."),
            (self._queue, "request_queue_time_seconds", "In the queue."),
            (self._prefill, "request_prefill_time_seconds", "Queue to first token."),
            (self._decode, "request_decode_time_seconds", "First to last."),
            (self._inference, "request_inference_time_seconds", "Queue to last token."),
            (self._prompt_len, "request_prompt_tokens", "Prompt tokens."),
            (self._output_len, "request_generation_tokens", "Tokens made."),
            (self._n, "request_params_n", "Choices asked for."),
            (self._max_tokens, "request_params_max_tokens", "Tokens asked for."),
        ):
            yield histogram.family(f"vllm:{name}", text, self._labels)

    def _counters(self) -> Iterator[Metric]:
        key = list(self._labels.values())
        for count, name, text in (
            (self._prompt_tokens, "prompt_tokens", "Prompt tokens."),
            (self._cached_tokens, "prompt_tokens_cached", "Of these, found in the cache."),
            (self._generated_tokens, "generation_tokens", "Tokens generated."),
        ):
            family = CounterMetricFamily(f"vllm:{name}", text, labels=list(self._labels))
            family.add_metric(key, count)
            yield family
        ended = CounterMetricFamily(
            "vllm:request_success",
            "Requests by how they ended.",
            labels=[*self._labels, "finished_reason"],
        )
        for outcome, count in self._outcomes.items():
            ended.add_metric([*key, outcome], count)
        answers = CounterMetricFamily(
            "gatewayd_http_requests",
            "HTTP requests; 499 for clients that left.",
            labels=["endpoint", "method", "status"],
        )
        for (endpoint, method, status), count in self._answers.items():
            answers.add_metric([endpoint, method, str(status)], count)
        yield from (ended, answers)


class Metrics:
    """The registry and what the gateway counts in it.

    Attributes:
        registry: for ``/metrics`` and for plugins to add to.
        answered: told each HTTP answer: endpoint and method, from closed lists, and the status.
        ended: told each request that an engine had taken, once, at its end.
        observe_gap: told the seconds between chunks of tokens of one choice.
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
        build = Gauge(
            "gatewayd_build_info", "Always 1; the version.", ["version"], registry=self.registry
        )
        build.labels(version).set(1)
        requests = RequestCollector(model_name, max_model_len)
        self.registry.register(FleetCollector(fleet, model_name))
        self.registry.register(requests)
        self.answered = requests.answered
        self.ended = requests.ended
        self.observe_gap = requests.inter_token.observe
