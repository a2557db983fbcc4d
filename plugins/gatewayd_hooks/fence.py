"""Counts the faults of strategies and says when one has had its last."""

from __future__ import annotations

from collections import Counter


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
