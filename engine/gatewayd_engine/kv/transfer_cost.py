"""Measured costs of transfers and computation: linear regression over weighted samples."""

from __future__ import annotations

_DECAY = 0.98
"""Decay of a sample's weight with each further one: about the last fifty count."""


class CostLine:
    """Cost model ``fixed + each * amount`` in seconds, by least squares with decaying weights.

    Neither coefficient is negative: where the fit is, the other one alone explains the samples.
    """

    __slots__ = ("_weight", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def add(self, amount: float, seconds: float) -> None:
        """Add a sample."""
        # Decayed sums are sufficient for the fit: no samples are stored.
        decay = _DECAY
        self._weight = self._weight * decay + 1
        self._x = self._x * decay + amount
        self._y = self._y * decay + seconds
        self._xx = self._xx * decay + amount * amount
        self._xy = self._xy * decay + amount * seconds

    @property
    def line(self) -> tuple[float, float]:
        """The coefficients ``fixed`` and ``each``, in seconds; zeros before the first sample."""
        if not self._x:
            return 0.0, 0.0
        spread = self._weight * self._xx - self._x * self._x
        # Samples of one size do not determine the fixed part.
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
        """Return the expected seconds for an amount."""
        fixed, each = self.line
        return fixed + each * amount
