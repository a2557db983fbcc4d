"""Fault isolation of strategies: faults, their counts, and quarantine."""

from __future__ import annotations

from collections import Counter

from gatewayd_hooks.strategy import Kind


class StrategyFault(Exception):
    """Raised when a strategy broke its contract; the default strategy answers instead.

    Attributes:
        kind: of the strategy.
        reason: what it did.
        name: of the strategy, if several of its kind run at once.
    """

    def __init__(self, kind: Kind, reason: str, name: str | None = None) -> None:
        super().__init__(f"{kind if name is None else f'{kind}.{name}'}: {reason}")
        self.kind = kind
        self.reason = reason
        self.name = name


class StrategyHang(StrategyFault):
    """A call of a strategy did not return in time and was interrupted."""


class Fence:
    """Fault counts of strategies, with a limit.

    Attributes:
        limit: number of faults at which a strategy is quarantined, at least 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"fault limit is {limit}; it must be at least 1")
        self.limit = limit
        self._faults: Counter[tuple[str, str]] = Counter()

    def record(self, kind: str, name: str) -> bool:
        """Count a fault; return whether the strategy is to be quarantined now.

        True once, at the fault that reaches the limit.
        """
        self._faults[kind, name] += 1
        return self._faults[kind, name] == self.limit

    def faults(self, kind: str, name: str) -> int:
        """Return the faults of a strategy so far."""
        return self._faults[kind, name]

    def is_quarantined(self, kind: str, name: str) -> bool:
        """Whether a strategy has reached the fault limit."""
        return self._faults[kind, name] >= self.limit

    def exclude(self, kind: str, name: str) -> None:
        """Quarantine a strategy whatever its fault count: its last fault ended another process."""
        self._faults[kind, name] = self.limit

    def reset_faults(self, kind: str, name: str) -> None:
        """Reset the fault count of a strategy that an operator has selected again."""
        del self._faults[kind, name]
