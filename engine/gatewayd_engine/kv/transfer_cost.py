"""What things take, learned from what they took: a straight line through weighted samples."""

from __future__ import annotations

_KEPT = 0.98
"""Of a sample's weight, after the next one: the last fifty or so count."""


class CostLine:
    """Seconds as ``fixed + each * amount``, by least squares; older samples count less.

    Neither is ever negative: if the samples say so, the other one explains them alone.
    """

    __slots__ = ("_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """So much took so long."""
        keep = _KEPT
        self._weight = self._weight * keep + 1
        self._x = self._x * keep + amount
        self._y = self._y * keep + seconds
        self._xx = self._xx * keep + amount * amount
        self._xy = self._xy * keep + amount * seconds

    @property
    def line(self) -> tuple[float, float]:
        """``fixed`` and ``each``, seconds; zeros before the first sample."""
        if not self._x:
            return 0.0, 0.0
        spread = self._weight * self._xx - self._x * self._x
        # Samples of one size say nothing about what is fixed.
        if spread <= 1e-9 * self._weight * self._xx:
            return 0.0, self._y / self._x
        each = (self._weight * self._xy - self._x * self._y) / spread
        fixed = (self._y - each * self._x) / self._weight
        if each < 0:
            return self._y / self._weight, 0.0
        if fixed < 0:
            return 0.0, self._xy / self._xx
        return fixed, each

    def seconds(self, amount: float) -> float:
        """What so much takes."""
        fixed, each = self.line
        return fixed + each * amount
