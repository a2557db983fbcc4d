"""The fence around strategies: what a fault is called, and who has had too many."""

from __future__ import annotations

from collections import Counter

from gatewayd_hooks.strategy import Kind


class StrategyFault(Exception):
    """A strategy broke its contract; the default answers in its place.

    Attributes:
        kind: which slot it fills.
        reason: what it did.
        name: its own, where its kind has several beside each other.
    """

    def __init__(self, kind: Kind, reason: str, name: str | None = None) -> None:
        super().__init__(f"{kind if name is None else f'{kind}.{name}'}: {reason}")
        self.kind = kind
        self.reason = reason
        self.name = name


class StrategyHang(StrategyFault):
    """A call of a strategy did not come back in time and was interrupted."""


class Fence:
    """Faults per strategy against a limit.

    Attributes:
        limit: the fault at which a strategy is quarantined, at least 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"fault limit is {limit}; it must be at least 1")
        self.limit = limit
        self._faults: Counter[tuple[str, str]] = Counter()

    def record(self, kind: str, name: str) -> bool:
        """Count a fault; whether the strategy is to be quarantined now.

        True once, at the fault that reaches the limit.
        """
        self._faults[kind, name] += 1
        return self._faults[kind, name] == self.limit

    def faults(self, kind: str, name: str) -> int:
        """Faults of a strategy so far."""
        return self._faults[kind, name]

    def is_quarantined(self, kind: str, name: str) -> bool:
        """Whether a strategy has had its last fault."""
        return self._faults[kind, name] >= self.limit

    def exclude(self, kind: str, name: str) -> None:
        """Quarantine a strategy whatever its faults: its last one ended another process."""
        self._faults[kind, name] = self.limit

    def forgive(self, kind: str, name: str) -> None:
        """Forget the faults of a strategy that somebody has chosen anew."""
        del self._faults[kind, name]
