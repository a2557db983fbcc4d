"""What ``/metrics`` shows of requests: each prompt with its choices, at the engine that served it.

Requests are noted once, at their end, and counted by the hundred or when somebody scrapes. The
one thing counted per chunk of tokens is the time since the one before. Tokens generated are the
exception: long answers would make their rate nothing for minutes and then a peak, so that a scrape
adds those of the requests that still run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The ``engine`` of requests that ended while they waited for one to be ready."""

_FOLD_AT = 128
"""Ended requests that wait to be counted: half a millisecond of the event loop."""


class EndedRequest(NamedTuple):
    """A prompt that the gateway had taken and that has ended; times by one clock, in seconds.

    Attributes:
        outcome: ``stop``, ``length``, ``abort`` or ``error``.
        prompt_tokens: of the prompt.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: of all choices.
        longest: tokens of the choice that has most.
        is_prefilled: whether the prompt was computed to its end.
        is_corrupted: whether it failed because the model's logits were not numbers.
        num_preemptions: how often its choices gave up their memory for others.
        num_choices: asked for.
        max_tokens: asked for, of each choice.
        queue_seconds: spent in the engine's queue; None if it never left it.
        arrival: when it came.
        first: when its first token came, or None.
        last: when its last token came, or None.
        end: when the answer was complete.
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
    """Counts the requests that one engine served.

    Attributes:
        outcomes: requests by how they ended.
        inter_token: seconds between chunks of tokens of one choice.
        generated_tokens: of requests that have ended.
        told_tokens: the same and those of the requests that ran at the last scrape.
    """

    def __init__(self, max_model_len: int) -> None:
        self._waiting: list[EndedRequest] = []
        self.outcomes: Counter[str] = Counter(stop=0, length=0, abort=0, error=0)
        self.prompt_tokens = self.cached_tokens = self.generated_tokens = self.corrupted = 0
        self.told_tokens = 0
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
        """Prompt tokens by where they came from."""
        cached = self.cached_tokens
        return {"local_compute": self.prompt_tokens - cached, "local_cache_hit": cached}

    def ended(self, request: EndedRequest) -> None:
        """Note a request; it is counted with others."""
        self._waiting.append(request)
        if len(self._waiting) >= _FOLD_AT:
            self.fold()

    def tell(self, running_tokens: int) -> None:
        """Bring ``told_tokens`` up to date.

        A request whose engine is lost starts over, and has fewer tokens than a moment ago: what has
        been told stays until it is reached again, as nothing may make a counter smaller.
        """
        self.told_tokens = max(self.told_tokens, self.generated_tokens + running_tokens)

    def fold(self) -> None:
        """Count what waits, figure by figure."""
        requests, self._waiting = self._waiting, []
        if not requests:
            return
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
        """Count the times of requests that got tokens."""
        ttft, prefill, decode, per_token = [], [], [], []
        for one in requests:
            if one.first is None or one.last is None:
                continue
            first, decoding = one.first - one.arrival, one.last - one.first
            ttft.append(first)
            prefill.append(max(0.0, first - (one.queue_seconds or 0.0)))
            decode.append(decoding)
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
    ("generation_tokens", "told_tokens", "Generated tokens, including running requests."),
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


class RequestCollector(Collector):
    """Counts requests by engine; gives the counts when somebody scrapes.

    Args:
        fleet: has the engines.
        model_name: the label's value.
        max_model_len: bounds the histograms of token counts.
        running: tokens of the requests that have not ended, by engine.
    """

    def __init__(
        self,
        fleet: Fleet,
        model_name: str,
        max_model_len: int,
        running: Callable[[], Mapping[int | None, int]] = dict,
    ) -> None:
        self._running = running
        self._fleet = fleet
        self._model_name = model_name
        self._max_model_len = max_model_len
        self._engines: dict[int | None, EngineRequests] = {}

    def ended(self, engine: int | None, request: EndedRequest) -> None:
        """Note a request; None for the engine if it never got to one."""
        self._of(engine).ended(request)

    def gap_observer(self, engine: int | None) -> Callable[[float], None]:
        """Who is told the seconds between chunks of tokens of one choice."""
        return self._of(engine).inter_token.observe

    def _of(self, engine: int | None) -> EngineRequests:
        found = self._engines.get(engine)
        if found is None:
            found = self._engines[engine] = EngineRequests(self._max_model_len)
        return found

    def collect(self) -> Iterator[Metric]:
        """Give all counts, those that wait included, and zeros for idle engines."""
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
            counts.tell(running.get(engine, 0))
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
