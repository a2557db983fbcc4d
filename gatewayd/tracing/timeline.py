"""Timeline of a choice at the engines, built from their reports after each step.

Every moment belongs to one interval, so that the intervals add up to the whole, whatever engines
report. A report covers the time since the previous step; times are those at which frames were
received, by this process's clock. An interval with steps is divided among the sequence itself,
prefills of other sequences in the same steps, and strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

import msgspec

from gatewayd_engine.process.messages import StepOutput
from gatewayd_engine.process.time_causes import Cause

NO_ENGINE = -1
"""In addition to ``Cause``: no engine is ready, or the engine of the choice was lost."""
SENT = -2
"""Sent to an engine that has not reported on it yet."""
UPSTREAM_SLOT = -3
"""Waits for one of the requests that an upstream may have at a time."""
UPSTREAM = -4
"""Sent to an upstream, which has not answered yet."""
RELAYING = -5
"""An upstream streams its answer."""

# Reported with every step. Other causes are reported only when they change, so the split of decode
# intervals is taken from the engine's totals.
_STEPPING = frozenset((Cause.PREFILL, Cause.RECOMPUTE))
_MOST = 48
"""Maximum of individual intervals; later ones are summed by cause."""


class CauseInterval(msgspec.Struct, frozen=True, gc=False):
    """Interval with one cause; thousands are stored, so the garbage collector does not track them.

    Attributes:
        cause: a ``Cause``, ``NO_ENGINE`` or ``SENT``.
        begin: time of the clock, in seconds; None for a sum of several.
        seconds: its duration.
        others: seconds of these in prefills of other sequences.
        plugins: seconds of these in strategies.
        shares: strategy seconds by ``kind.name``.
        strategy: responsible for the cause; empty if none is.
    """

    cause: int
    begin: float | None
    seconds: float
    others: float = 0.0
    plugins: float = 0.0
    shares: Sequence[tuple[str, float]] = ()
    strategy: str = ""


class Totals(NamedTuple):
    """Cumulative seconds of an engine's steps, by use.

    Attributes:
        crowd: seconds of prefill chunks.
        plugins: seconds in strategies.
        shares: strategy seconds by ``kind.name``; never mutated.
    """

    crowd: float = 0.0
    plugins: float = 0.0
    shares: Mapping[str, float] = {}


_NOTHING = Totals()


class StepTimeTotals:
    """Running totals of what one engine's steps were spent on.

    Args:
        strategy_of: returns the strategy currently responsible for a cause.

    Attributes:
        at: time of the last step's report.
        totals: up to that time.
        before: the same two for the previous step.
    """

    __slots__ = ("_step", "at", "before", "strategy_of", "totals")

    def __init__(self, strategy_of: Callable[[int], str] = lambda cause: "") -> None:
        self.at, self.totals = 0.0, _NOTHING
        self.before = (0.0, _NOTHING)
        self.strategy_of = strategy_of
        self._step = -1

    def record_step(self, step: StepOutput, now: float) -> None:
        """Add the step of a received frame; frames without a new step are ignored."""
        if step.stats.step == self._step:
            return
        self._step = step.stats.step
        self.before = self.at, self.totals
        # The beginning of the first step is unknown.
        seconds = now - self.at if self.at else 0.0
        crowd, plugins, shares = self.totals
        whole = sum([reported for reported in step.plugins.values() if reported > 0])
        # By the engine's own clock: bounded by the time between two frames.
        in_plugins = min(seconds, whole)
        if in_plugins > 0:
            # Copied, because earlier totals share the mapping.
            shares, scale = {**shares}, in_plugins / whole
            for name, reported in step.plugins.items():
                if reported > 0:
                    shares[name] = shares.get(name, 0.0) + reported * scale
        crowd += (seconds - in_plugins) * min(1.0, max(0.0, step.crowd))
        self.totals = Totals(crowd, plugins + in_plugins, shares)
        self.at = now


@dataclass(slots=True, eq=False, repr=False)
class Timeline:
    """Timeline of one choice.

    Attributes:
        end: time of its end; None while it runs.
    """

    now: InitVar[float]
    end: float | None = None
    _intervals: list[CauseInterval] = field(default_factory=list)
    _sums: dict[int, CauseInterval] = field(default_factory=dict)
    _pace: StepTimeTotals = field(default_factory=StepTimeTotals)
    _silence: Cause = Cause.TURN
    _cause: int = field(init=False)
    _since: float = field(init=False)
    _others: float = field(init=False)
    _plugins: float = field(init=False)
    _split_until: float = field(init=False)
    _begun: Totals = field(init=False)

    def __post_init__(self, now: float) -> None:
        self._open_interval(NO_ENGINE, now, _NOTHING)

    @property
    def cause(self) -> int:
        """Current cause: a ``Cause``, ``NO_ENGINE`` or ``SENT``."""
        return self._cause

    def sent(self, now: float, pace: StepTimeTotals, *, follows: bool = False) -> None:
        """Record that the choice was sent to an engine.

        Args:
            now: time of sending.
            pace: step times of the engine.
            follows: whether another choice of the same prompt computes the prompt.
        """
        self._close_interval(now, self._pace.totals)
        self._pace = pace
        # An engine reads its messages after the step in progress.
        self._silence = Cause.LEADER if follows else Cause.TURN
        self._open_interval(SENT, now, pace.totals)

    def enter(self, cause: int, now: float) -> None:
        """Record that another cause begins, of which no engine reports."""
        if self.end is None:
            self._close_interval(now, _NOTHING)
            self._open_interval(cause, now, _NOTHING)

    def lost(self, now: float) -> None:
        """Record that the engine was lost."""
        if self.end is None:
            self._close_interval(now, self._pace.totals)
            self._open_interval(NO_ENGINE, now, _NOTHING)

    def on_step(self, cause: int, share: float) -> None:
        """Record the engine's report on the step that was last recorded in its step times.

        Args:
            cause: reported for the choice.
            share: fraction of the step's tokens that were a prefill chunk of the choice.
        """
        if self.end is not None:
            return
        pace = self._pace
        before, totals = pace.before
        if cause != self._cause:
            # A report covers the time since the previous step, within the present interval.
            began = max(before, self._since)
            # Before the step of this first report the choice was in the engine's queue.
            if self._cause == SENT:
                self._cause = self._silence
            self._close_interval(began, totals)
            self._open_interval(cause, began, totals)
        if cause in _STEPPING:
            # From the last split on, so that no moment is split twice.
            seconds = max(0.0, pace.at - max(before, self._split_until))
            in_plugins = min(seconds, pace.totals.plugins - totals.plugins)
            self._plugins += in_plugins
            self._others += (seconds - in_plugins) * (1.0 - min(1.0, max(0.0, share)))
            self._split_until = pace.at

    def stop(self, now: float) -> None:
        """End the timeline; later reports are ignored."""
        if self.end is None:
            self._close_interval(now, self._pace.totals)
            self.end = now
            self._pace = StepTimeTotals()

    def intervals(self, now: float) -> list[CauseInterval]:
        """Return all intervals until the end, or until now; their seconds add up to the whole."""
        found = [*self._intervals, *self._sums.values()]
        if self.end is None:
            found.append(self._interval(now, self._pace.totals))
        return found

    def _open_interval(self, cause: int, at: float, totals: Totals) -> None:
        self._cause, self._since, self._begun = cause, at, totals
        self._others = self._plugins = 0.0
        self._split_until = at

    def _interval(self, end: float, totals: Totals) -> CauseInterval:
        """Return the current interval as if it ended at ``end``, with the engine's totals then."""
        seconds = end - self._since
        # A decoding sequence waits for whole steps, so all that the totals grew by counts for it.
        if self._cause == Cause.DECODE:
            in_plugins = totals.plugins - self._begun.plugins
            others = totals.crowd - self._begun.crowd
        else:
            in_plugins, others = self._plugins, self._others
        # Bounded in this order, so that the three parts always add up to the interval.
        in_plugins = min(seconds, in_plugins)
        others = min(seconds - in_plugins, others)
        shares = _strategy_shares(in_plugins, self._begun, totals) if in_plugins > 0 else ()
        strategy = self._pace.strategy_of(self._cause)
        return CauseInterval(
            self._cause, self._since, seconds, others, in_plugins, shares, strategy
        )

    def _close_interval(self, end: float, totals: Totals) -> None:
        one = self._interval(end, totals)
        if one.seconds <= 0:
            return
        if len(self._intervals) < _MOST:
            self._intervals.append(one)
            return
        sum_ = self._sums.get(one.cause, CauseInterval(one.cause, None, 0.0))
        self._sums[one.cause] = CauseInterval(
            one.cause,
            None,
            sum_.seconds + one.seconds,
            sum_.others + one.others,
            sum_.plugins + one.plugins,
            added(sum_.shares, one.shares),
            one.strategy,
        )


def added(
    some: Sequence[tuple[str, float]], more: Sequence[tuple[str, float]]
) -> Sequence[tuple[str, float]]:
    """Sum the seconds of each strategy."""
    found = dict(some)
    for name, seconds in more:
        found[name] = found.get(name, 0.0) + seconds
    return tuple(found.items())


def _strategy_shares(seconds: float, begun: Totals, totals: Totals) -> Sequence[tuple[str, float]]:
    """Divide ``seconds`` by the time of each strategy between two totals."""
    spent = [(name, total - begun.shares.get(name, 0.0)) for name, total in totals.shares.items()]
    whole = sum([one for _, one in spent])
    if whole <= 0:
        return ()  # vanished in the rounding of the totals
    return tuple([(name, seconds * one / whole) for name, one in spent if one > 0])
