"""Who takes more time than its budget, again and again; never because its machine is slow.

A slow machine slows everything in a step alike. So a strategy is over its budget in a step only
if it also takes longer than all else in that step together. Where a call is not part of a step it
is its own work that counts, or its own sleep: not the time in which others had the processor.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_hooks.strategy import Kind

PATIENCE = 16
"""Steps, or calls, over the budget before it is a fault; each one below it makes one good."""
_ASLEEP = 16
"""A call that takes so many times the processor time it gets has waited for something itself."""

Key = tuple[Kind, str]


@dataclass(frozen=True, slots=True)
class Overrun:
    """A strategy that keeps exceeding its budget.

    Attributes:
        kind, name: which.
        reason: in figures.
    """

    kind: Kind
    name: str
    reason: str


class Arrears:
    """How often each strategy was over its budget, less how often it was not."""

    def __init__(self) -> None:
        self._times: dict[Key, int] = {}
        self._overruns: dict[Key, Overrun] = {}

    def judge_step(self, key: Key, spent: float, budget: float, seconds: float) -> None:
        """A strategy took so many seconds of a step.

        Args:
            key: which.
            spent: by it.
            budget: of it.
            seconds: that the step took as a whole.
        """
        if spent > budget and 2 * spent > seconds:
            figures = f"{1000 * spent:.0f} of the {1000 * seconds:.0f} ms of a step"
            self._count_over(key, figures, budget)
        elif key in self._times:
            self._count_below(key)

    def judge_call(self, key: Key, spent: float, budget: float, processor: float) -> None:
        """A strategy took so many seconds where there is no step.

        Args:
            key: which.
            spent: by it.
            budget: of it.
            processor: seconds in which its thread had a processor.
        """
        if spent > budget and (processor > budget or _ASLEEP * processor < spent):
            self._count_over(key, f"{1000 * spent:.0f} ms of a call", budget)
        elif key in self._times:
            self._count_below(key)

    def take(self, *kinds: Kind) -> list[Overrun]:
        """Whose patience is used up, of these kinds or of all, since the last call."""
        if not self._overruns:
            return []
        keys = [key for key in self._overruns if not kinds or key[0] in kinds]
        return [self._overruns.pop(key) for key in keys]

    def _count_over(self, key: Key, figures: str, budget: float) -> None:
        times = self._times[key] = self._times.get(key, 0) + 1
        if times == PATIENCE:
            del self._times[key]
            reason = f"{key[1]} took {figures}, as often before; its budget is {1000 * budget:g} ms"
            self._overruns[key] = Overrun(*key, reason)

    def _count_below(self, key: Key) -> None:
        self._times[key] -= 1
        if not self._times[key]:
            del self._times[key]
