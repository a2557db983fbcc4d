"""Time budgets of strategies, which tolerate slow machines.

A slow machine slows everything in a step alike. So a strategy exceeds its budget in a step only if
it also takes longer than everything else in that step together. For a call outside a step its own
processor time or its own sleep counts, not the time in which other threads had the processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_hooks.strategy import Kind

PATIENCE = 16
"""Steps, or calls, over the budget that make a fault; each one within the budget cancels one."""
_ASLEEP = 16
"""Ratio of elapsed to processor time above which a call must have been waiting itself."""

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Overrun:
    """Strategy that keeps exceeding its budget.

    Attributes:
        kind, name: of the strategy.
        reason: with figures.
    """

    kind: Kind
    name: str
    reason: str


class OverrunCounts:
    """Per strategy, the number of budget overruns less the number of calls within budget."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._overruns: dict[Key, Overrun] = {}

    def judge_step(self, key: Key, spent: float, budget: float, seconds: float) -> None:
        """Count a strategy's time in a step.

        Args:
            key: of the strategy.
            spent: its seconds.
            budget: its budget in seconds.
            seconds: duration of the whole step.
        """
        if spent > budget and 2 * spent > seconds:
            figures = f"{1000 * spent:.0f} of the {1000 * seconds:.0f} ms of a step"
            self._count_over(key, figures, budget)
        elif key in self._times:
            self._count_below(key)

    def judge_call(self, key: Key, spent: float, budget: float, processor: float) -> None:
        """Count a strategy's time in a call outside of steps.

        Args:
            key: of the strategy.
            spent: its seconds.
            budget: its budget in seconds.
            processor: processor time of its thread in seconds.
        """
        if spent > budget and (processor > budget or _ASLEEP * processor < spent):
            self._count_over(key, f"{1000 * spent:.0f} ms of a call", budget)
        elif key in self._times:
            self._count_below(key)

    def pop_overruns(self, *kinds: Kind) -> list[Overrun]:
        """Return and clear the overruns of these kinds, or of all, since the last call."""
        if not self._overruns:
            return []
        keys = [key for key in self._overruns if not kinds or key[0] in kinds]
        return [self._overruns.pop(key) for key in keys]

    def _count_over(self, key: Key, figures: str, budget: float) -> None:
        times = self._times[key] = self._times.get(key, 0) + 1
        if times == PATIENCE:
            # Counted from 0 again, as the overrun is reported.
            del self._times[key]
            reason = f"{key[1]} took {figures}, as often before; its budget is {1000 * budget:g} ms"
            self._overruns[key] = Overrun(*key, reason)

    def _count_below(self, key: Key) -> None:
        self._times[key] -= 1
        if not self._times[key]:
            del self._times[key]
