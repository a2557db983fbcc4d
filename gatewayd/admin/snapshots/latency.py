"""Latencies of requests that ended within the last minute."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd.wire.snapshot import LatencyView

_SECONDS = 60.0
# Failed and aborted requests have no comparable end-to-end latency.
_ANSWERED = ("stop", "length")


class _Times(NamedTuple):
    """Latencies of a request, in seconds; None for missing ones."""

    end: float
    ttft: float | None
    tpot: float | None
    e2e: float | None


class LastMinute:
    """Sliding window over request timelines; reads each timeline once.

    Args:
        recent: the timelines; if it holds less than a minute, its latest ones count.
        model: name of the model that they are about.
    """

    def __init__(self, recent: RecentLatencyRecords, model: str) -> None:
        self._recent = recent
        self._model = model
        self._seen: LatencyRecord | None = None
        self._times: list[_Times] = []

    def views(self, now: float) -> list[LatencyView]:
        """Latencies of requests that ended within the minute before ``now``."""
        since = now - _SECONDS
        # Not in the order of their ends: a record is added once the engines have reported the
        # request's usage.
        self._times = [one for one in self._times if one.end >= since]
        for record in self._recent.backwards():
            # All records behind this one were read before.
            if record is self._seen:
                break
            if record.end >= since and record.model == self._model:
                self._times.append(_times(record))
        self._seen = next(self._recent.backwards(), None)
        return [
            _view("ttft", [one.ttft for one in self._times if one.ttft is not None]),
            _view("tpot", [one.tpot for one in self._times if one.tpot is not None]),
            _view("e2e", [one.e2e for one in self._times if one.e2e is not None]),
        ]


def _times(record: LatencyRecord) -> _Times:
    e2e = record.seconds if record.outcome in _ANSWERED else None
    return _Times(record.end, record.ttft, record.tpot, e2e)


def _view(name: str, seconds: Sequence[float]) -> LatencyView:
    in_order = sorted(seconds)
    p50, p95, p99 = (_nearest(in_order, share) for share in (0.5, 0.95, 0.99))
    return LatencyView(name=name, p50=p50, p95=p95, p99=p99, count=len(in_order))


def _nearest(in_order: Sequence[float], share: float) -> float | None:
    """The nearest-rank quantile, in milliseconds; None without any."""
    if not in_order:
        return None
    return 1000 * in_order[math.ceil(share * len(in_order)) - 1]
