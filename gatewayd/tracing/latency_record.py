"""Latency record of a request: its latency from arrival to end, broken down by cause.

The timeline is cut into contiguous parts, so that they add up to the whole. Of several choices,
the one that ended last is described, because the response waited for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gatewayd.tracing.causes import ANSWER, AT_ENGINE, CROWD, GATEWAY, PLUGIN
from gatewayd.tracing.request_trace import Span
from gatewayd.tracing.route_record import RouteRecord
from gatewayd.tracing.timeline import CauseInterval


class TimePart(NamedTuple):
    """Part of a request's time, due to one cause.

    Attributes:
        cause: a name of ``CAUSES``.
        begin: seconds after the arrival; None for a sum of several intervals.
        seconds: its duration.
        strategy: responsible strategy by name, ``kind.name`` for plugins in steps; empty if none.
    """

    cause: str
    begin: float | None
    seconds: float
    strategy: str = ""


AddPart = Callable[[str, float | None, float, str], None]
"""Takes a part: its cause, the time of its begin, None for a sum, its seconds, its strategy."""


class EndReason(msgspec.Struct, frozen=True, gc=False):
    """Reason why a request ended without being answered.

    Attributes:
        status: HTTP status of its response; 499 if the client disconnected.
        code: of the error.
        message: of the error; empty where it may quote the request.
    """

    status: int
    code: str
    message: str = ""


class LatencyRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Latency record of an ended request; times by one monotonic clock, in seconds.

    Attributes:
        request_id: the gateway's own.
        answered_id: the ``x-request-id`` of its response.
        endpoint: the route.
        tenant: that sent it.
        priority: its class, as ``Priority``.
        outcome: ``stop``, ``length``, ``abort`` or ``error``; ``refused`` if it was not sent to an
            engine.
        prompt_tokens: of all prompts.
        cached_tokens: of these, prefix-cache hits.
        completion_tokens: of all choices.
        num_choices: of all prompts together.
        num_preemptions: of all choices.
        unix: wall-clock time of its arrival.
        arrival: time of its arrival.
        spans: timed before it was submitted.
        submitted: time at which it was sent to the engines.
        notified: time at which request observers had been notified of its admission.
        intervals: of the choice that ended last.
        computed: time at which that choice ended; None if the engines report no timelines.
        first: time of the first token; None without any.
        last: time of the last token.
        end: time at which the response was complete.
        engine_seconds: engine time, by its share of the tokens of each step.
        why: reason of its end; None if it was answered.
        route: decision of its route; None without a route.
        model: name of the model; empty if it was refused before a model was chosen.
    """

    request_id: str
    answered_id: str
    endpoint: str
    tenant: str
    priority: int
    outcome: str
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    num_choices: int
    num_preemptions: int
    unix: float
    arrival: float
    spans: Sequence[Span]
    submitted: float
    notified: float
    intervals: Sequence[CauseInterval]
    computed: float | None
    first: float | None
    last: float | None
    end: float
    engine_seconds: float = 0.0
    why: EndReason | None = None
    route: RouteRecord | None = None
    model: str = ""

    @property
    def seconds(self) -> float:
        """Latency from arrival to end."""
        return self.end - self.arrival

    @property
    def ttft(self) -> float | None:
        """Time to first token, in seconds; None without tokens."""
        return None if self.first is None else self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean time per output token after the first of each choice; None without such tokens."""
        later = self.completion_tokens / max(1, self.num_choices) - 1
        if self.first is None or self.last is None or later <= 0:
            return None
        return (self.last - self.first) / later

    def parts(self) -> list[TimePart]:
        """Return its parts with their causes, in chronological order."""
        found: list[TimePart] = []

        def add(cause: str, begin: float | None, seconds: float, strategy: str) -> None:
            since = None if begin is None else begin - self.arrival
            found.append(TimePart(cause, since, seconds, strategy))

        self.each_part(add)
        return found

    def totals(self) -> dict[str, float]:
        """Return the seconds of each cause, largest first."""
        found: dict[str, float] = {}
        for part in self.parts():
            found[part.cause] = found.get(part.cause, 0.0) + part.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def dominant_strategy(self, cause: str) -> str:
        """Return the strategy responsible for most of a cause's time; empty if none is."""
        found: dict[str, float] = {}
        for part in self.parts():
            if part.cause == cause:
                found[part.strategy] = found.get(part.strategy, 0.0) + part.seconds
        return max(found, key=found.__getitem__, default="")

    def each_part(self, add: AddPart) -> None:
        """Call ``add`` with each part, in chronological order, without those of no time."""
        at = self.arrival
        spans = self.spans
        if len(spans) > 1:
            spans = sorted(spans, key=_begin)
        for span in spans:
            # Spans may overlap: each moment belongs to the span that began first.
            begin, end = max(at, span.begin), min(span.end, self.notified)
            if end > begin:
                self._outside_spans(add, at, begin)
                add(span.cause, begin, end - begin, span.strategy)
                at = end
        self._outside_spans(add, at, self.notified)
        at = self.notified
        if self.computed is None:
            if self.end > at:
                add("engine", at, self.end - at, "")
            return
        spent: dict[str, float] = {}  # in strategies, by their names
        for interval in self.intervals:
            # Sums come last and have no position; they advance the time by their length.
            if interval.begin is None:
                _split(add, interval, None, interval.seconds, spent)
                at += interval.seconds
                continue
            end = interval.begin + interval.seconds
            # Intervals start with the submission; until ``notified`` the time is that of observers.
            if end > at:
                _split(add, interval, at, end - at, spent)
                at = end
        for strategy, seconds in sorted(spent.items(), key=lambda item: -item[1]):
            if seconds > 0:
                add(PLUGIN, None, seconds, strategy)
        if self.end > at:
            add(ANSWER, at, self.end - at, "")

    def _outside_spans(self, add: AddPart, begin: float, end: float) -> None:
        """Add time outside of spans: of the gateway until submission, then of observers."""
        sent = self.submitted
        if min(end, sent) > begin:
            add(GATEWAY, begin, min(end, sent) - begin, "")
        if end > sent and end > begin:
            since = max(begin, sent)
            add(PLUGIN, since, end - since, "")


def _begin(span: Span) -> float:
    return span.begin


def _split(
    add: AddPart,
    interval: CauseInterval,
    begin: float | None,
    seconds: float,
    spent: dict[str, float],
) -> None:
    """Split the last ``seconds`` of an interval: own time, other prefills, plugins."""
    left = seconds / interval.seconds
    plugins, others = interval.plugins * left, interval.others * left
    own = seconds - plugins - others
    if own > 0:
        add(AT_ENGINE[interval.cause], begin, own, interval.strategy)
    # They are spread over the interval, so they have no begin.
    if others > 0:
        add(CROWD, None, others, "")
    # Without shares, which may vanish in rounding, the time is still that of plugins.
    for name, share in interval.shares or (("", interval.plugins),):
        spent[name] = spent.get(name, 0.0) + share * left
