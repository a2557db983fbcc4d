"""Where a choice's time goes while the engines have it, by what they tell once per step.

Every moment belongs to one stretch, so that the stretches add up to the whole, whatever is told.
What an engine tells speaks of the time since its step before; the times are those at which frames
came, by this process's clock. A stretch in which steps were made is shared between the sequence
itself, the prompts of others in the same steps, and strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gatewayd_engine.process.messages import StepOutput
from gatewayd_engine.process.time_causes import Cause

NO_ENGINE = -1
"""Beside the engines' causes: none is ready, or the one that had it was lost."""
SENT = -2
"""It was sent to an engine, which has never said anything of it."""

_STEPPING = frozenset((Cause.PREFILL, Cause.RECOMPUTE))
_MOST = 48
"""Stretches that are told one by one; those behind them are summed up by their causes."""


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """Some time that was spent on one thing; thousands are kept, and no collector looks at them.

    Attributes:
        cause: a ``Cause``, ``NO_ENGINE`` or ``SENT``.
        begin: seconds of the clock; None for a sum of several.
        seconds: that it lasted.
        others: of these, those in which others' prompts were computed.
        plugins: of these, those in strategies.
        shares: of those, the seconds of each, by ``kind.name``.
        strategy: that the cause is due to; empty if none decides about it.
    """

    cause: int
    begin: float | None
    seconds: float
    others: float = 0.0
    plugins: float = 0.0
    shares: Sequence[tuple[str, float]] = ()
    strategy: str = ""


class Totals(NamedTuple):
    """What the steps of an engine were spent on until some moment.

    Attributes:
        crowd: seconds in which chunks of prompts were computed.
        plugins: seconds in strategies.
        shares: of those, the seconds of each; never changed.
    """

    crowd: float = 0.0
    plugins: float = 0.0
    shares: Mapping[str, float] = {}


_NOTHING = Totals()


class TokenPace:
    """What the steps of one engine were spent on, as running totals.

    Args:
        strategy_of: names the strategy that a cause is due to, now.

    Attributes:
        at: when the last step was told of.
        totals: until then.
        before: the same two for the step before it.
    """

    __slots__ = ("_step", "at", "before", "strategy_of", "totals")

    def __init__(self, strategy_of: Callable[[int], str] = lambda cause: "") -> None:
        self.at, self.totals = 0.0, _NOTHING
        self.before = (0.0, _NOTHING)
        self.strategy_of = strategy_of
        self._step = -1

    def note(self, step: StepOutput, now: float) -> None:
        """A frame has come; those that tell of no step change nothing."""
        if step.stats.step == self._step:
            return
        self._step = step.stats.step
        self.before = self.at, self.totals
        seconds = now - self.at if self.at else 0.0
        crowd, plugins, shares = self.totals
        whole = sum([told for told in step.plugins.values() if told > 0])
        in_plugins = min(seconds, whole)
        if in_plugins > 0:
            shares, scale = {**shares}, in_plugins / whole
            for name, told in step.plugins.items():
                if told > 0:
                    shares[name] = shares.get(name, 0.0) + told * scale
        crowd += (seconds - in_plugins) * min(1.0, max(0.0, step.crowd))
        self.totals = Totals(crowd, plugins + in_plugins, shares)
        self.at = now


class Timeline:
    """One choice.

    Attributes:
        end: when it was over; None while it is not.
    """

    __slots__ = (
        "_begun",
        "_cause",
        "_line",
        "_others",
        "_pace",
        "_plugins",
        "_silence",
        "_since",
        "_split_until",
        "_sums",
        "end",
    )

    _cause: int
    _since: float
    _others: float
    _plugins: float
    _split_until: float

    def __init__(self, now: float) -> None:
        self._line: list[Stretch] = []
        self._sums: dict[int, Stretch] = {}
        self.end: float | None = None
        self._pace = TokenPace()
        self._silence = Cause.TURN
        self._begin(NO_ENGINE, now, _NOTHING)

    @property
    def cause(self) -> int:
        """What its time is spent on now: a ``Cause``, ``NO_ENGINE`` or ``SENT``."""
        return self._cause

    def sent(self, now: float, pace: TokenPace, *, follows: bool = False) -> None:
        """It was sent to an engine whose steps have this pace.

        Args:
            now: when.
            pace: of the engine.
            follows: whether another choice of the same prompt computes that for it.
        """
        self._keep(now, self._pace.totals)
        self._pace = pace
        # An engine reads what it is sent when the step is over that it is in.
        self._silence = Cause.LEADER if follows else Cause.TURN
        self._begin(SENT, now, pace.totals)

    def lost(self, now: float) -> None:
        """Its engine is gone."""
        if self.end is None:
            self._keep(now, self._pace.totals)
            self._begin(NO_ENGINE, now, _NOTHING)

    def moved(self, cause: int, share: float) -> None:
        """The engine tells what it did in the step that its pace was just told of.

        Args:
            cause: that.
            share: of the step's tokens, those that were a chunk of its own prompt.
        """
        if self.end is not None:
            return
        pace = self._pace
        before, totals = pace.before
        if cause != self._cause:
            began = max(before, self._since)
            if self._cause == SENT:
                self._cause = self._silence
            self._keep(began, totals)
            self._begin(cause, began, totals)
        if cause in _STEPPING:
            seconds = max(0.0, pace.at - max(before, self._split_until))
            in_plugins = min(seconds, pace.totals.plugins - totals.plugins)
            self._plugins += in_plugins
            self._others += (seconds - in_plugins) * (1.0 - min(1.0, max(0.0, share)))
            self._split_until = pace.at

    def stop(self, now: float) -> None:
        """It is over; what is told later changes nothing."""
        if self.end is None:
            self._keep(now, self._pace.totals)
            self.end = now
            self._pace = TokenPace()

    def stretches(self, now: float) -> list[Stretch]:
        """All of it until its end, or until now; their seconds add up."""
        found = [*self._line, *self._sums.values()]
        if self.end is None:
            found.append(self._stretch(now, self._pace.totals))
        return found

    def _begin(self, cause: int, at: float, totals: Totals) -> None:
        self._cause, self._since, self._begun = cause, at, totals
        self._others = self._plugins = 0.0
        self._split_until = at

    def _stretch(self, end: float, totals: Totals) -> Stretch:
        """What goes on, if it ended then, when the engine had these totals."""
        seconds = end - self._since
        if self._cause == Cause.DECODE:
            in_plugins = totals.plugins - self._begun.plugins
            others = totals.crowd - self._begun.crowd
        else:
            in_plugins, others = self._plugins, self._others
        in_plugins = min(seconds, in_plugins)
        others = min(seconds - in_plugins, others)
        shares = _shared(in_plugins, self._begun, totals) if in_plugins > 0 else ()
        strategy = self._pace.strategy_of(self._cause)
        return Stretch(self._cause, self._since, seconds, others, in_plugins, shares, strategy)

    def _keep(self, end: float, totals: Totals) -> None:
        one = self._stretch(end, totals)
        if one.seconds <= 0:
            return
        if len(self._line) < _MOST:
            self._line.append(one)
            return
        sum_ = self._sums.get(one.cause, Stretch(one.cause, None, 0.0))
        self._sums[one.cause] = Stretch(
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
    """Seconds of strategies, each once."""
    found = dict(some)
    for name, seconds in more:
        found[name] = found.get(name, 0.0) + seconds
    return tuple(found.items())


def _shared(seconds: float, begun: Totals, totals: Totals) -> Sequence[tuple[str, float]]:
    """So much time, by what each strategy took between two moments."""
    spent = [(name, told - begun.shares.get(name, 0.0)) for name, told in totals.shares.items()]
    whole = sum([told for _, told in spent])
    if whole <= 0:
        return ()  # lost in the rounding of the totals
    return tuple([(name, seconds * told / whole) for name, told in spent if told > 0])
