"""Where a choice's time goes while the engines have it, by what they tell once per step.

Every moment belongs to one stretch, so that the stretches add up to the whole, whatever is told.
What an engine tells speaks of the time since its step before; the times are those at which frames
came, by this process's clock. A stretch in which steps were made is shared between the sequence
itself, the prompts of others in the same steps, and strategies.
"""

from __future__ import annotations

import msgspec

from gatewayd_engine.causes import Cause
from gatewayd_engine.messages import StepOutput

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
    """

    cause: int
    begin: float | None
    seconds: float
    others: float = 0.0
    plugins: float = 0.0


class Pace:
    """What the steps of one engine were spent on, as running totals.

    Attributes:
        at: when the last step was told of.
        crowd: seconds until then in which chunks of prompts were computed.
        plugins: seconds until then in strategies.
        before: the same three for the step before it.
    """

    __slots__ = ("_step", "at", "before", "crowd", "plugins")

    def __init__(self) -> None:
        self.at = self.crowd = self.plugins = 0.0
        self.before = (0.0, 0.0, 0.0)
        self._step = -1

    def note(self, step: StepOutput, now: float) -> None:
        """A frame has come; those that tell of no step change nothing."""
        if step.stats.step == self._step:
            return
        self._step = step.stats.step
        self.before = self.at, self.crowd, self.plugins
        seconds = now - self.at if self.at else 0.0
        plugins = min(seconds, max(0.0, step.plugin_seconds))
        self.plugins += plugins
        self.crowd += (seconds - plugins) * min(1.0, max(0.0, step.crowd))
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
        self._pace = Pace()
        self._silence = Cause.TURN
        self._begin(NO_ENGINE, now, 0.0, 0.0)

    @property
    def cause(self) -> int:
        """What its time is spent on now: a ``Cause``, ``NO_ENGINE`` or ``SENT``."""
        return self._cause

    def sent(self, now: float, pace: Pace, *, follows: bool = False) -> None:
        """It was sent to an engine whose steps have this pace.

        Args:
            now: when.
            pace: of the engine.
            follows: whether another choice of the same prompt computes that for it.
        """
        self._keep(now, self._pace.crowd, self._pace.plugins)
        self._pace = pace
        # An engine reads what it is sent when the step is over that it is in.
        self._silence = Cause.LEADER if follows else Cause.TURN
        self._begin(SENT, now, pace.crowd, pace.plugins)

    def lost(self, now: float) -> None:
        """Its engine is gone."""
        if self.end is None:
            self._keep(now, self._pace.crowd, self._pace.plugins)
            self._begin(NO_ENGINE, now, 0.0, 0.0)

    def moved(self, cause: int, share: float) -> None:
        """The engine tells what it did in the step that its pace was just told of.

        Args:
            cause: that.
            share: of the step's tokens, those that were a chunk of its own prompt.
        """
        if self.end is not None:
            return
        pace = self._pace
        before, crowd, plugins = pace.before
        if cause != self._cause:
            began = max(before, self._since)
            if self._cause == SENT:
                self._cause = self._silence
            self._keep(began, crowd, plugins)
            self._begin(cause, began, crowd, plugins)
        if cause in _STEPPING:
            seconds = max(0.0, pace.at - max(before, self._split_until))
            in_plugins = min(seconds, pace.plugins - plugins)
            self._plugins += in_plugins
            self._others += (seconds - in_plugins) * (1.0 - min(1.0, max(0.0, share)))
            self._split_until = pace.at

    def stop(self, now: float) -> None:
        """It is over; what is told later changes nothing."""
        if self.end is None:
            self._keep(now, self._pace.crowd, self._pace.plugins)
            self.end = now
            self._pace = Pace()

    def stretches(self, now: float) -> list[Stretch]:
        """All of it until its end, or until now; their seconds add up."""
        found = [*self._line, *self._sums.values()]
        if self.end is None:
            found.append(self._stretch(now, self._pace.crowd, self._pace.plugins))
        return found

    def _begin(self, cause: int, at: float, crowd: float, plugins: float) -> None:
        self._cause, self._since, self._begun = cause, at, (crowd, plugins)
        self._others = self._plugins = 0.0
        self._split_until = at

    def _stretch(self, end: float, crowd: float, plugins: float) -> Stretch:
        """What goes on, if it ended then, when the engine had these totals."""
        seconds = end - self._since
        if self._cause == Cause.DECODE:
            in_plugins, others = plugins - self._begun[1], crowd - self._begun[0]
        else:
            in_plugins, others = self._plugins, self._others
        in_plugins = min(seconds, in_plugins)
        others = min(seconds - in_plugins, others)
        return Stretch(self._cause, self._since, seconds, others, in_plugins)

    def _keep(self, end: float, crowd: float, plugins: float) -> None:
        one = self._stretch(end, crowd, plugins)
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
        )
