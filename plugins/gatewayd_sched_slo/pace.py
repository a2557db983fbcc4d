"""How long steps take: so much each, and so much for each token."""

from __future__ import annotations

_FADING = 0.98
"""What a step counts for after the next one: the last fifty or so are remembered."""


class TokenPaceEstimate:
    """A line through the last steps, by least squares with fading memory.

    Attributes:
        step_seconds: of a step that computes nothing.
        token_seconds: of each token more.
    """

    def __init__(self) -> None:
        self.step_seconds = 0.0
        self.token_seconds = 0.0
        self._count = self._tokens = self._seconds = self._squares = self._products = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """A step was computed."""
        self._count = self._count * _FADING + 1
        self._tokens = self._tokens * _FADING + tokens
        self._seconds = self._seconds * _FADING + seconds
        self._squares = self._squares * _FADING + tokens * tokens
        self._products = self._products * _FADING + tokens * seconds
        mean_tokens, mean_seconds = self._tokens / self._count, self._seconds / self._count
        variance = self._squares / self._count - mean_tokens**2
        slope = mean_seconds / max(mean_tokens, 1.0)
        if variance > 1e-6 * mean_tokens**2:
            covariance = self._products / self._count - mean_tokens * mean_seconds
            slope = min(slope, max(0.0, covariance / variance))
        self.token_seconds = slope
        self.step_seconds = max(0.0, mean_seconds - slope * mean_tokens)
