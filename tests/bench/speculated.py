"""What steps with drafts and without were like, and what the formula makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gatewayd.bench.speedup import estimate


@dataclass(frozen=True, slots=True)
class Step:
    """A step in which everybody decodes.

    Attributes:
        seconds: all that it took.
        drafting: seconds of guessing among them.
        tokens: that came of it.
        depths: of the drafts of each sequence, 0 where it had none, shape ``[n]``.
        accepted: how many of them were kept, shape ``[n]``.
    """

    seconds: float
    drafting: float
    tokens: int
    depths: NDArray[np.int64]
    accepted: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Compared:
    """Both sides of a comparison."""

    none: list[Step]
    ours: list[Step]

    @property
    def speed_up(self) -> float:
        """Tokens per second beside those without drafts."""
        return rate(self.ours) / rate(self.none)

    @property
    def acceptance(self) -> float:
        """Part of the drafts that were looked at and kept."""
        depths, accepted = _flat(self.ours)
        tried = accepted.sum() + np.count_nonzero(accepted < depths)
        return float(accepted.sum() / max(tried, 1))

    @property
    def drafts(self) -> float:
        """Of a sequence in a step."""
        return float(_flat(self.ours)[0].mean())

    @property
    def tokens_per_step(self) -> float:
        """Of a sequence."""
        return 1 + float(_flat(self.ours)[1].mean())

    def predict(self) -> dict[str, float]:
        """Tokens of a step and speed-up by the formula, from acceptance and measured times.

        Each step's own number of drafts is taken, and the time of a step without drafts for as
        many sequences.
        """
        by_size: dict[int, list[float]] = {}
        for step in self.none:
            by_size.setdefault(len(step.depths), []).append(step.seconds)
        sizes = sorted(by_size)
        means = [float(np.mean(by_size[size])) for size in sizes]
        plain = [float(np.interp(len(step.depths), sizes, means)) for step in self.ours]
        tokens = [
            float(np.mean([estimate(self.acceptance, k, 0.0).tokens_per_step for k in step.depths]))
            for step in self.ours
        ]
        lines = [len(step.depths) for step in self.ours]
        seconds = sum(step.seconds for step in self.ours)
        drafting = sum(step.drafting for step in self.ours)
        return {
            "predicted_tokens_per_step": float(np.average(tokens, weights=lines)),
            "predicted_speed_up": float(np.dot(tokens, plain)) / seconds,
            "guessing": drafting / sum(plain),
            "verifying": (seconds - drafting) / sum(plain),
        }


def rate(steps: Sequence[Step]) -> float:
    """Tokens per second."""
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _flat(steps: Sequence[Step]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return (
        np.concatenate([step.depths for step in steps]),
        np.concatenate([step.accepted for step in steps]),
    )
