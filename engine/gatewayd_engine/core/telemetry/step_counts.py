"""Steps so far: how many there were, and how much each computed."""

from __future__ import annotations

from bisect import bisect_left

from gatewayd_engine.process.engine_stats import STEP_SIZES


class StepCounts:
    """Counts steps.

    Attributes:
        steps: all, also those that computed nothing.
        tokens: computed by all of them.
        last_tokens: computed by the last one.
        last_seconds: that it took.
        sizes: steps that computed something, by how much; see ``EngineStats.step_sizes``.
    """

    def __init__(self) -> None:
        self.steps = self.tokens = self.last_tokens = 0
        self.last_seconds = 0.0
        self.sizes = [0] * (len(STEP_SIZES) + 1)

    def add(self, num_tokens: int, seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        self.tokens += num_tokens
        self.last_tokens, self.last_seconds = num_tokens, seconds
        if num_tokens:
            self.sizes[bisect_left(STEP_SIZES, num_tokens)] += 1
