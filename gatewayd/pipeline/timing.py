"""Timing breakdown of a request, from its arrival to its last token."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from gatewayd.errors import QueueTimeout
from gatewayd.pipeline.choice import Choice
from gatewayd.tracing.causes import AT_ENGINE, CAUSES
from gatewayd.tracing.timeline import Timeline


class RequestTiming(NamedTuple):
    """Timing breakdown of a response in seconds; None for phases that have not started.

    Those are always the last ones.

    Attributes:
        gateway: validation, tokenization and routing.
        queue: until an engine admitted it.
        prefill: from admission to the first token.
        decode: from the first to the latest token.
    """

    gateway: float
    queue: float | None = None
    prefill: float | None = None
    decode: float | None = None


def queue_timeout(seconds: float, timelines: Sequence[Timeline] = ()) -> QueueTimeout:
    """Return the error of a request whose queue timeout has expired, with the main wait cause.

    Args:
        seconds: its ``queue_timeout``.
        timelines: of its choices; none before it was sent to an engine.
    """
    now = time.monotonic()
    spent: defaultdict[int, float] = defaultdict(float)
    for timeline in timelines:
        for interval in timeline.intervals(now):
            spent[interval.cause] += interval.seconds
    what = ""
    if spent:
        what = f" (mostly: {CAUSES[AT_ENGINE[max(spent, key=spent.__getitem__)]]})"
    return QueueTimeout(
        f"no engine started the request within its queue_timeout of {seconds:g} s{what}: "
        "retry later, or with a longer queue_timeout",
        param="queue_timeout",
    )


def timing_of(choices: Sequence[Choice], arrival: float, submitted: float) -> RequestTiming:
    """Return the timing of a request, by the choice with the earliest token.

    Args:
        choices: of the request.
        arrival: time of its arrival.
        submitted: time at which it was sent to the engines.
    """
    gateway = submitted - arrival
    # Of the choice with the earliest token; before any token, of the first choice.
    queue, first, last = choices[0].queue_seconds, None, 0.0
    for choice in choices:
        if choice.first is None or choice.last is None:
            continue
        last = max(last, choice.last)
        if first is None or choice.first < first:
            first, queue = choice.first, choice.queue_seconds
    if queue is None or first is None:
        return RequestTiming(gateway, queue)
    # The engine measures `queue`, this process the rest: the difference may be slightly negative.
    prefill = max(0.0, first - submitted - queue)
    return RequestTiming(gateway, queue, prefill, last - first if last > first else None)
