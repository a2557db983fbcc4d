"""Prometheus metrics of requests: per prompt with its choices, labelled by the serving engine.

Requests are recorded once, at their end, and aggregated in batches or at a scrape. Only the
inter-token latency is observed per chunk of tokens. Generated tokens also include those of running
requests at each scrape, because long responses would otherwise make their rate zero for minutes
and then a peak.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gatewayd.engines.api import Fleet
from gatewayd.metrics.histograms import (
    FIRST_TOKEN,
    LATENCY,
    NEXT_TOKEN,
    NUM_CHOICES,
    NUM_PREEMPTIONS,
    Histogram,
    token_bounds,
)

_LABELS = ("model_name", "engine")

_NO_ENGINE = "none"
"""Label ``engine`` of requests that ended while they waited for an engine to be ready."""

_FOLD_AT = 128
"""Batch size of aggregation: half a millisecond of the event loop."""


class EndedRequest(NamedTuple):
    """An accepted prompt that has ended; times by one monotonic clock, in seconds.

    Attributes:
        outcome: ``stop``, ``length``, ``abort`` or ``error``.
        prompt_tokens: of the prompt.
        cached_tokens: of these, prefix-cache hits.
        completion_tokens: of all choices.
        longest: tokens of the longest choice.
        is_prefilled: whether the prefill was completed.
        is_corrupted: whether it failed because of NaN or infinite logits.
        num_preemptions: preemptions of all its choices.
        num_choices: parameter ``n``.
        max_tokens: parameter ``max_tokens``, of each choice.
        queue_seconds: spent in the engine's queue; None if it was never admitted.
        arrival: time of the request's arrival.
        first: time of its first token, or None.
        last: time of its last token, or None.
        end: time at which the response was complete.
    """

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    longest: int
    is_prefilled: bool
    is_corrupted: bool
    num_preemptions: int
    num_choices: int
    max_tokens: int
    queue_seconds: float | None
    arrival: float
    first: float | None
    last: float | None
    end: float


class EngineRequests:
    """Counters and histograms of the requests that one engine served.

    Attributes:
        outcomes: number of requests by outcome.
        inter_token: seconds between chunks of tokens of one choice.
        generated_tokens: of ended requests.
        reported_tokens: of ended requests and of those running at the last scrape.
    """

    def __init__(self, max_model_len: int) -> None:
        self._waiting: list[EndedRequest] = []
        self.outcomes: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.corrupted = 0
        self.reported_tokens = 0
        tokens = token_bounds(max_model_len)
        self.inter_token = Histogram(NEXT_TOKEN)
        self.ttft = Histogram(FIRST_TOKEN)
        self.per_token = Histogram(NEXT_TOKEN)
        self.e2e = Histogram(LATENCY)
        self.queue = Histogram(LATENCY)
        self.prefill = Histogram(LATENCY)
        self.decode = Histogram(LATENCY)
        self.inference = Histogram(LATENCY)
        self.prompt_len = Histogram(tokens)
        self.computed_len = Histogram(tokens)
        self.output_len = Histogram(tokens)
        self.longest = Histogram(tokens)
        self.preemptions = Histogram(NUM_PREEMPTIONS)
        self.n = Histogram(NUM_CHOICES)
        self.max_tokens = Histogram(tokens)

    @property
    def sources(self) -> dict[str, int]:
        """Prompt tokens by source: computed or prefix-cache hits."""
        cached = self.cached_tokens
        # vLLM's values of the label ``source``.
        return {"local_compute": self.prompt_tokens - cached, "local_cache_hit": cached}

    def ended(self, request: EndedRequest) -> None:
        """Record an ended request; it is aggregated with others later."""
        self._waiting.append(request)
        if len(self._waiting) >= _FOLD_AT:
            self.fold()

    def update_reported_tokens(self, running_tokens: int) -> None:
        """Update ``reported_tokens`` for a scrape.

        A request whose engine is lost starts over with fewer tokens than before. The reported value
        then stays until it is reached again, because a counter must not decrease.
        """
        self.reported_tokens = max(self.reported_tokens, self.generated_tokens + running_tokens)

    def fold(self) -> None:
        """Aggregate the recorded requests."""
        requests, self._waiting = self._waiting, []
        if not requests:
            return
        # Lists rather than generators in all sums: they are faster, and this blocks the event loop.
        self.outcomes.update([one.outcome for one in requests])
        self.corrupted += sum([one.is_corrupted for one in requests])
        self.prompt_len.observe_all([one.prompt_tokens for one in requests])
        self.preemptions.observe_all([one.num_preemptions for one in requests])
        self.n.observe_all([one.num_choices for one in requests])
        self.max_tokens.observe_all([one.max_tokens for one in requests])
        completion = [one.completion_tokens for one in requests]
        self.generated_tokens += sum(completion)
        self.output_len.observe_all(completion)
        self.longest.observe_all([one.longest for one in requests])
        prefilled = [one for one in requests if one.is_prefilled]
        self.prompt_tokens += sum([one.prompt_tokens for one in prefilled])
        self.cached_tokens += sum([one.cached_tokens for one in prefilled])
        self.computed_len.observe_all([one.prompt_tokens - one.cached_tokens for one in prefilled])
        queued = [one.queue_seconds for one in requests]
        self.queue.observe_all([seconds for seconds in queued if seconds is not None])
        self.e2e.observe_all([one.end - one.arrival for one in requests])
        self._fold_times(requests)

    def _fold_times(self, requests: Sequence[EndedRequest]) -> None:
        """Observe the latencies of requests that received tokens."""
        ttft, prefill, decode, per_token = [], [], [], []
        for one in requests:
            if one.first is None or one.last is None:
                continue
            first, decoding = one.first - one.arrival, one.last - one.first
            ttft.append(first)
            # By the engine's clock, so that the difference may be slightly negative.
            prefill.append(max(0.0, first - (one.queue_seconds or 0.0)))
            decode.append(decoding)
            # The first token of each choice belongs to the TTFT.
            if one.completion_tokens > one.num_choices:
                per_token.append(decoding / (one.completion_tokens / one.num_choices - 1))
        self.ttft.observe_all(ttft)
        self.prefill.observe_all(prefill)
        self.decode.observe_all(decode)
        self.inference.observe_all([sum(pair) for pair in zip(prefill, decode, strict=True)])
        self.per_token.observe_all(per_token)


_HISTOGRAMS: tuple[tuple[str, str, str], ...] = (
    (
        "inter_token_latency_seconds",
        "inter_token",
        ("Inter-token latency, between chunks of one choice."),
    ),
    ("time_to_first_token_seconds", "ttft", "Time to first token, from arrival."),
    (
        "request_time_per_output_token_seconds",
        "per_token",
        ("Mean time per output token after the first."),
    ),
    ("e2e_request_latency_seconds", "e2e", "End-to-end request latency."),
    ("request_queue_time_seconds", "queue", "Time in the queue."),
    (
        "request_prefill_time_seconds",
        "prefill",
        ("Prefill time, from the end of queueing to the first token."),
    ),
    ("request_decode_time_seconds", "decode", "Decode time, from the first to the last token."),
    (
        "request_inference_time_seconds",
        "inference",
        ("Inference time, from the end of queueing to the last token."),
    ),
    ("request_prompt_tokens", "prompt_len", "Prompt tokens per request."),
    (
        "request_prefill_kv_computed_tokens",
        "computed_len",
        ("Prompt tokens computed per request, without prefix-cache hits."),
    ),
    ("request_generation_tokens", "output_len", "Generated tokens per request, of all choices."),
    (
        "request_max_num_generation_tokens",
        "longest",
        ("Generated tokens of the longest choice of a request."),
    ),
    ("request_num_preemptions", "preemptions", "Preemptions per request."),
    ("request_params_n", "n", "Parameter n of requests."),
    ("request_params_max_tokens", "max_tokens", "Parameter max_tokens of requests."),
)

_COUNTERS: tuple[tuple[str, str, str], ...] = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens of completed prefills."),
    (
        "prompt_tokens_cached",
        "cached_tokens",
        ("Prompt tokens of completed prefills that were prefix-cache hits."),
    ),
    ("generation_tokens", "reported_tokens", "Generated tokens, including running requests."),
    ("corrupted_requests", "corrupted", "Requests that failed with NaN or infinite logits."),
)

_SPLIT_COUNTERS: tuple[tuple[str, str, str, str], ...] = (
    ("request_success", "outcomes", "finished_reason", "Finished requests by finish reason."),
    (
        "prompt_tokens_by_source",
        "sources",
        "source",
        ("Prompt tokens by source: computed or cached."),
    ),
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RequestCollector(Collector):
    """Prometheus collector of request metrics by engine.

    Args:
        fleet: of the engines.
        model_name: value of the label.
        max_model_len: upper bound of the token-count histograms.
        running: returns the generated tokens of running requests by engine.
    """

    _fleet: Fleet
    _model_name: str
    _max_model_len: int
    _running: Callable[[], Mapping[int | None, int]] = dict
    _engines: dict[int | None, EngineRequests] = field(default_factory=dict)

    def ended(self, engine: int | None, request: EndedRequest) -> None:
        """Record an ended request; the engine is None if it never reached one."""
        self._of(engine).ended(request)

    def gap_observer(self, engine: int | None) -> Callable[[float], None]:
        """Return the observer of seconds between chunks of tokens of one choice."""
        return self._of(engine).inter_token.observe

    def _of(self, engine: int | None) -> EngineRequests:
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = EngineRequests(self._max_model_len)
        return found

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, including requests not yet aggregated, and zeros for idle engines."""
        # Created before the loops below: a dict must not grow while it is iterated.
        for replica in self._fleet.status():
            self._of(replica.index)
        running = self._running()
        for engine in running:
            self._of(engine)
        engines = [
            ((self._model_name, _NO_ENGINE if engine is None else str(engine)), counts)
            for engine, counts in self._engines.items()
        ]
        for engine, counts in self._engines.items():
            counts.fold()
            counts.update_reported_tokens(running.get(engine, 0))
        for name, attribute, text in _HISTOGRAMS:
            histogram = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            for key, counts in engines:
                getattr(counts, attribute).show(histogram, key)
            yield histogram
        for name, attribute, text in _COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            for key, counts in engines:
                counter.add_metric(key, getattr(counts, attribute))
            yield counter
        for name, attribute, label, text in _SPLIT_COUNTERS:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=[*_LABELS, label])
            for key, counts in engines:
                for part, count in getattr(counts, attribute).items():
                    counter.add_metric([*key, part], count)
            yield counter
