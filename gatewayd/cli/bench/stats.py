"""Exact percentiles and totals of one load level."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gatewayd.cli.bench.record import RequestRecord


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of an ascending sequence, linearly interpolated.

    ``percentile([1, 2, 3, 4], 50) == 2.5``

    Raises:
        ValueError: the sequence is empty.
    """
    if not ordered:
        raise ValueError("no values: a percentile needs at least one")
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


@dataclass(frozen=True, slots=True)
class LatencyDistribution:
    """Distribution of a latency over the requests of a level, milliseconds."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float


def latency_distribution(seconds: Sequence[float]) -> LatencyDistribution | None:
    """Summarize latencies given in seconds; None if there are none."""
    if not seconds:
        return None
    ordered = sorted(1000 * value for value in seconds)
    p50, p90, p99 = (percentile(ordered, percent) for percent in (50, 90, 99))
    return LatencyDistribution(math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


@dataclass(frozen=True, slots=True)
class Level:
    """Measurements at one concurrency or one rate; latencies in milliseconds.

    Attributes:
        load: ``concurrency`` or ``rate``.
        value: concurrent requests, or requests per second.
        seconds: from the first scheduled request to the end of the last.
        succeeded: successful requests; all figures below are of these.
        errors: number of failed requests by error code.
        cold_ttft: TTFT of the very first request, before the warm-up; None without warm-up.
    """

    load: str
    value: float
    seconds: float
    succeeded: int
    errors: dict[str, int]
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: LatencyDistribution | None
    tpot: LatencyDistribution | None
    itl: LatencyDistribution | None
    e2e: LatencyDistribution | None
    cold_ttft: float | None

    @property
    def requests_per_second(self) -> float:
        """Throughput of successful requests."""
        return self.succeeded / self.seconds if self.seconds else 0.0

    @property
    def output_tokens_per_second(self) -> float:
        """Output throughput of successful requests."""
        return self.output_tokens / self.seconds if self.seconds else 0.0


def summarize(
    load: str, value: float, records: Sequence[RequestRecord], cold: RequestRecord | None = None
) -> Level:
    """Summarize the records of one level."""
    good = [record for record in records if record.error is None]
    # From the scheduled time, as the latencies.
    begin = min((record.intended for record in records), default=0.0)
    end = max((record.ended for record in records), default=0.0)
    return Level(
        load=load,
        value=value,
        seconds=end - begin,
        succeeded=len(good),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        prompt_tokens=sum(record.prompt_tokens for record in good),
        cached_tokens=sum(record.cached_tokens for record in good),
        output_tokens=sum(record.output_tokens for record in good),
        ttft=latency_distribution([record.ttft for record in good]),
        tpot=latency_distribution([tpot for record in good if (tpot := record.tpot) is not None]),
        itl=latency_distribution([gap for record in good for gap in record.itl]),
        e2e=latency_distribution([record.e2e for record in good]),
        cold_ttft=1000 * cold.ttft if cold is not None and cold.error is None else None,
    )
