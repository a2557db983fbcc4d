"""When a first token comes, by the tokens that are computed before it."""

from __future__ import annotations

import math

_FADING = 0.98
"""What an outcome counts for after the next one: the last fifty or so are remembered."""
_GAIN = 0.1


class PrefillPace:
    """A line through what was seen, and a factor that keeps its promise as often as it says.

    The line is least squares with fading memory. The factor is moved after each outcome, up when
    the promise was broken and down when it was kept, by steps whose balance is at the wanted share
    (adaptive conformal inference: Gibbs and Candes, NeurIPS 2021). That holds whatever the load
    does, and however wrong the line is.

    Args:
        confidence: share of promises that are to be kept.
    """

    def __init__(self, confidence: float) -> None:
        self._confidence = confidence
        self._stretch = 0.0  # logarithm
        self._sums = [0.0] * 5
        self.seen = 0

    def expected(self, tokens: int) -> float:
        """Seconds until the first token, in the middle."""
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
        """Seconds within which it comes, as often as is wanted."""
        return self.expected(tokens) * math.exp(self._stretch)

    def note(self, tokens: int, seconds: float) -> None:
        """A first token has come."""
        if self.seen:
            is_broken = seconds > self.promised(tokens)
            self._stretch += _GAIN * (is_broken - (1 - self._confidence))
            self._stretch = min(max(self._stretch, -3.0), 5.0)
        self.seen += 1
        new = (1.0, tokens, seconds, tokens * tokens, tokens * seconds)
        self._sums = [old * _FADING + one for old, one in zip(self._sums, new, strict=True)]
