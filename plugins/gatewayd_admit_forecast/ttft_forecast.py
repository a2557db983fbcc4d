"""Forecast of the time to first token, by the number of tokens computed before it."""

from __future__ import annotations

import math

_FADING = 0.98
"""Weight of an outcome relative to the next one: about the last fifty count."""
_GAIN = 0.1


class TtftForecast:
    """Linear fit of observed times, with a factor that makes forecasts hold as often as configured.

    The fit is least squares with exponential forgetting. The factor is adjusted after each outcome,
    up when the forecast was exceeded and down when it held, by steps that balance at the wanted
    fraction (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021). That works for any
    load, and however wrong the fit is.

    Args:
        confidence: fraction of forecasts that should hold.
    """

    def __init__(self, confidence: float) -> None:
        self._confidence = confidence
        self._stretch = 0.0  # logarithm
        self._sums = [0.0] * 5
        self.seen = 0

    def expected(self, tokens: int) -> float:
        """Return the median time to first token, in seconds."""
        count, x, y, xx, xy = self._sums
        if not count:
            return 0.0
        mean_x, mean_y = x / count, y / count
        slope = mean_y / max(mean_x, 1.0)
        variance = xx / count - mean_x**2
        if variance > 1e-6 * mean_x**2:
            slope = min(slope, max(0.0, (xy / count - mean_x * mean_y) / variance))
        return max(1e-6, mean_y + slope * (tokens - mean_x))

    def promised(self, tokens: int) -> float:
        """Return the time to first token that holds at the configured confidence, in seconds."""
        return self.expected(tokens) * math.exp(self._stretch)

    def record(self, tokens: int, seconds: float) -> None:
        """Update the fit with an observed first token."""
        if self.seen:
            is_broken = seconds > self.promised(tokens)
            self._stretch += _GAIN * (is_broken - (1 - self._confidence))
            self._stretch = min(max(self._stretch, -3.0), 5.0)
        self.seen += 1
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [old * _FADING + one for old, one in zip(self._sums, new, strict=True)]
