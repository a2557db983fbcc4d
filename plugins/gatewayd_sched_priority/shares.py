"""Weighted deficit round robin between classes, one round per step."""

from __future__ import annotations

from collections.abc import Sequence


class Shares:
    """Service received by each class relative to its weight.

    The level of a class is the tokens it was served, divided by its weight. A budget raises the
    lowest levels first, so a class's deficit in one step is compensated in the next ones, and in
    the long run the tokens of classes that always want more are proportional to their weights.

    Attributes:
        levels: tokens served per weight, by class.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = tuple(weights)
        self.levels = [0.0] * len(weights)

    def charge(self, number: int, tokens: int) -> None:
        """Add the tokens served to a class."""
        self.levels[number] += tokens / self.weights[number]

    def remove_credit(self, backlogged: Sequence[bool]) -> None:
        """Remove the credit of classes that got all they wanted.

        They are lifted to the lowest level of those that want more, so that classes that were idle
        start level with the others, without credit or debt for the idle time.
        """
        wanting = [level for level, b in zip(self.levels, backlogged, strict=True) if b]
        # If all got what they wanted, all start level.
        floor = min(wanting) if wanting else max(self.levels)
        self.levels = [
            level if b else max(level, floor)
            for level, b in zip(self.levels, backlogged, strict=True)
        ]

    def divide(self, budget: int, demands: Sequence[int]) -> list[int]:
        """Divide a budget: the lowest levels rise together until it is used up (water filling).

        Args:
            budget: tokens to distribute.
            demands: maximum for each class.

        Returns:
            Tokens for each class; their sum is the smaller of budget and total demand.
        """
        if sum(demands) <= budget:
            return list(demands)
        line = self._water_line(budget, demands)
        grants = [int(grant) for grant in self._filled(line, demands)]
        # At most one token per class was lost to rounding.
        for _ in range(budget - sum(grants)):
            number = min(
                (i for i, demand in enumerate(demands) if grants[i] < demand),
                key=lambda i: self.levels[i] + grants[i] / self.weights[i],
            )
            grants[number] += 1
        return grants

    def _filled(self, line: float, demands: Sequence[int]) -> list[float]:
        """Return the tokens that raise each class to a level, within its demand."""
        return [
            min(max(0.0, (line - level) * weight), demand)
            for level, weight, demand in zip(self.levels, self.weights, demands, strict=True)
        ]

    def _water_line(self, budget: int, demands: Sequence[int]) -> float:
        """Return the level that a budget below the total demand reaches."""
        full = [
            level + demand / weight
            for level, weight, demand in zip(self.levels, self.weights, demands, strict=True)
        ]
        # Between two of these points the tokens needed grow linearly.
        low, used = min(self.levels), 0.0
        for high in sorted(self.levels + full):
            needed = sum(self._filled(high, demands))
            if needed >= budget:
                return low + (high - low) * (budget - used) / max(needed - used, 1e-9)
            low, used = high, needed
        return low
