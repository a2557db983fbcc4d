"""Estimate of step durations: a fixed part, and a part per token."""

from __future__ import annotations

_FADING = 0.98
"""Weight of a step relative to the next one: about the last fifty count."""


class StepTimeEstimate:
    """Linear fit of step durations, by least squares with exponential forgetting.

    Attributes:
        step_seconds: fixed duration of a step.
        token_seconds: additional duration per token.
    """

    def __init__(self) -> None:
        self.step_seconds = 0.0
        self.token_seconds = 0.0
        self._count = self._tokens = self._seconds = self._squares = self._products = 0.0

    def record_step(self, tokens: int, seconds: float) -> None:
        """Update the fit with a step."""
        self._count = self._count * _FADING + 1
        self._tokens = self._tokens * _FADING + tokens
        self._seconds = self._seconds * _FADING + seconds
        self._squares = self._squares * _FADING + tokens * tokens
        self._products = self._products * _FADING + tokens * seconds
        mean_tokens, mean_seconds = self._tokens / self._count, self._seconds / self._count
        variance = self._squares / self._count - mean_tokens**2
        # A line through the origin, while all steps are about the same size.
        slope = mean_seconds / max(mean_tokens, 1.0)
        if variance > 1e-6 * mean_tokens**2:
            covariance = self._products / self._count - mean_tokens * mean_seconds
            # Neither a negative time per token nor a negative fixed time.
            slope = min(slope, max(0.0, covariance / variance))
        self.token_seconds = slope
        self.step_seconds = max(0.0, mean_seconds - slope * mean_tokens)
