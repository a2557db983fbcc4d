"""Counters of engine steps and of the tokens they computed."""

from __future__ import annotations

from bisect import bisect_left

from gatewayd_engine.process.engine_stats import STEP_SIZES


class StepCounts:
    """Step and token counters of the engine.

    Attributes:
        steps: number of steps, including those that computed nothing.
        tokens: tokens computed by all steps.
        last_tokens: tokens computed by the last step.
        last_seconds: duration of the last step.
        sizes: histogram of non-empty steps by token count; see ``EngineStats.step_sizes``.
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
