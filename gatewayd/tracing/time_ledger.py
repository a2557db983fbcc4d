"""Where the time of one request went: parts of its time line, from its arrival to its end.

It is cut at moments, each part from one to the next, so that the parts add up to the whole. While
several choices are computed, the one that ended last is told of: the answer waited for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from gatewayd.tracing.causes import ANSWER, AT_ENGINE, CROWD, GATEWAY, PLUGIN
from gatewayd.tracing.request_trace import Span
from gatewayd.tracing.timeline import Stretch


class TimePart(NamedTuple):
    """Some of the time.

    Attributes:
        cause: a name of ``CAUSES``.
        begin: seconds after the arrival; None where it happened again and again.
        seconds: that it took.
        strategy: that it is due to: the name, of plugins in steps behind their kind; else empty.
    """

    cause: str
    begin: float | None
    seconds: float
    strategy: str = ""


class EndReason(msgspec.Struct, frozen=True, gc=False):
    """What ended a request that was not answered.

    Attributes:
        status: of its answer; 499 for a client that has left.
        code: of the error.
        message: of the error, where it tells nothing of what its client has said.
    """

    status: int
    code: str
    message: str = ""


class TimeLedger(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A request that has ended; times by one clock, in seconds.

    Attributes:
        request_id: the gateway's own.
        answered_id: the ``x-request-id`` that its client was told.
        endpoint: the route.
        tenant: whose it is.
        priority: its class, as ``Priority``.
        outcome: ``stop``, ``length``, ``abort`` or ``error``; ``refused`` if it was not sent to an
            engine.
        prompt_tokens: of all prompts.
        cached_tokens: of these, found in the prefix cache.
        completion_tokens: of all choices.
        num_choices: of all prompts together.
        num_preemptions: of all choices.
        unix: when it came, by the clock on the wall.
        arrival: when it came.
        spans: before it was sent.
        submitted: when it was sent to the engines.
        notified: when those were told who watch requests.
        stretches: of the choice that ended last.
        computed: when that was; None if the engines tell nothing.
        first: when the first token came; None without any.
        last: when the last one did.
        end: when the answer was complete.
        engine_seconds: that it took of engines, by its share of the tokens of their steps.
        why: what ended it; None if it was answered.
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
    stretches: Sequence[Stretch]
    computed: float | None
    first: float | None
    last: float | None
    end: float
    engine_seconds: float = 0.0
    why: EndReason | None = None

    @property
    def seconds(self) -> float:
        """From its arrival to its end."""
        return self.end - self.arrival

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first is None else self.first - self.arrival

    @property
    def tpot(self) -> float | None:
        """Mean seconds of a token behind the first of its choice; None without such."""
        later = self.completion_tokens / max(1, self.num_choices) - 1
        if self.first is None or self.last is None or later <= 0:
            return None
        return (self.last - self.first) / later

    def parts(self) -> list[TimePart]:
        """All of its time, cause by cause, in the order in which it went."""
        return [part for part in self._parts() if part.seconds > 0]

    def totals(self) -> dict[str, float]:
        """Seconds by cause, the largest first."""
        found: dict[str, float] = {}
        for part in self.parts():
            found[part.cause] = found.get(part.cause, 0.0) + part.seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def mostly(self, cause: str) -> str:
        """The strategy that most of a cause's time is due to; empty if none is."""
        found: dict[str, float] = {}
        for part in self.parts():
            if part.cause == cause:
                found[part.strategy] = found.get(part.strategy, 0.0) + part.seconds
        return max(found, key=found.__getitem__, default="")

    def _parts(self) -> Iterator[TimePart]:
        at = self.arrival
        for span in sorted(self.spans, key=lambda span: span.begin):
            begin, end = max(at, span.begin), min(span.end, self.notified)
            if end > begin:
                yield from self._own(at, begin)
                yield TimePart(span.cause, begin - self.arrival, end - begin, span.strategy)
                at = end
        yield from self._own(at, self.notified)
        at = self.notified
        if self.computed is None:
            yield self._part("engine", at, self.end)
            return
        spent: dict[str, float] = {}  # in strategies, by their names
        for stretch in self.stretches:
            if stretch.begin is None:
                yield from self._split(stretch, None, stretch.seconds, spent)
                at += stretch.seconds
                continue
            end = stretch.begin + stretch.seconds
            if end > at:
                yield from self._split(stretch, at, end - at, spent)
                at = end
        for strategy, seconds in sorted(spent.items(), key=lambda item: -item[1]):
            yield TimePart(PLUGIN, None, seconds, strategy)
        yield self._part(ANSWER, at, self.end)

    def _split(
        self, stretch: Stretch, begin: float | None, seconds: float, spent: dict[str, float]
    ) -> Iterator[TimePart]:
        """A stretch, or what is left of it behind what came before, by who used it."""
        left = seconds / stretch.seconds
        plugins, others = stretch.plugins * left, stretch.others * left
        since = None if begin is None else begin - self.arrival
        own = seconds - plugins - others
        yield TimePart(AT_ENGINE[stretch.cause], since, own, stretch.strategy)
        # They are spread over the stretch: there is no moment at which they began.
        yield TimePart(CROWD, None, others)
        for name, share in stretch.shares or (("", stretch.plugins),):
            spent[name] = spent.get(name, 0.0) + share * left

    def _own(self, begin: float, end: float) -> Iterator[TimePart]:
        """What no span speaks of: the gateway's, and those that are told of the request."""
        yield self._part(GATEWAY, begin, min(end, self.submitted))
        yield self._part(PLUGIN, max(begin, self.submitted), end)

    def _part(self, cause: str, begin: float, end: float) -> TimePart:
        return TimePart(cause, begin - self.arrival, end - begin)
