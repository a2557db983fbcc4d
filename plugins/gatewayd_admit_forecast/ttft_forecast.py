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
        # Decayed sums of 1, x, y, x * x and x * y, where x is tokens and y is seconds.
        self._sums = [0.0] * 5
        self.seen = 0

    def expected(self, tokens: int) -> float:
        """Return the median time to first token, in seconds."""
        count, x, y, xx, xy = self._sums
        if not count:
            return 0.0
        mean_x, mean_y = x / count, y / count
        # A line through the origin, while all token counts are about the same.
        slope = mean_y / max(mean_x, 1.0)
        variance = xx / count - mean_x**2
        if variance > 1e-6 * mean_x**2:
            # More tokens never take less time, and a steeper line than that through the origin
            # would have a negative time for no tokens.
            slope = min(slope, max(0.0, (xy / count - mean_x * mean_y) / variance))
        return max(1e-6, mean_y + slope * (tokens - mean_x))

    def promised(self, tokens: int) -> float:
        """Return the time to first token that holds at the configured confidence, in seconds."""
        return self.expected(tokens) * math.exp(self._stretch)

    def record(self, tokens: int, seconds: float) -> None:
        """Update the fit with an observed first token."""
        # The forecast is judged as it was at admission, before the fit includes this outcome.
        if self.seen:
            is_broken = seconds > self.promised(tokens)
            self._stretch += _GAIN * (is_broken - (1 - self._confidence))
            # Bounded to factors from 0.05 to 148, so that one outage does not distort forecasts for
            # long.
            self._stretch = min(max(self._stretch, -3.0), 5.0)
        self.seen += 1
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [old * _FADING + one for old, one in zip(self._sums, new, strict=True)]
