"""Statistics of steps with and without drafts, and the speedup formula's prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewayd.cli.bench.speedup import estimate


@dataclass(frozen=True, slots=True)
class Step:
    """A step in which a full batch decodes.

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


_HICCUP = 2.0
"""No step counts for more of the median of its like: the machine is not what is compared."""


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

        Each sequence's own number of drafts is taken.
        """
        depths, counts = np.unique(_flat(self.ours)[0], return_counts=True)
        tokens = [estimate(self.acceptance, k, 0.0).tokens_per_step for k in depths.tolist()]
        tokens_per_step = float(np.average(tokens, weights=counts))
        plain = float(np.mean([step.seconds for step in self.none]))
        seconds = float(np.mean([step.seconds for step in self.ours])) / plain
        drafting = float(np.mean([step.drafting for step in self.ours])) / plain
        return {
            "predicted_tokens_per_step": tokens_per_step,
            "predicted_speed_up": tokens_per_step / seconds,
            "guessing": drafting,
            "verifying": seconds - drafting,
        }


def rate(steps: Sequence[Step]) -> float:
    """Tokens per second."""
    return sum(step.tokens for step in steps) / sum(step.seconds for step in steps)


def _flat(steps: Sequence[Step]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return (
        np.concatenate([step.depths for step in steps]),
        np.concatenate([step.accepted for step in steps]),
    )


def calm(steps: Sequence[Step]) -> list[Step]:
    """The same steps without hiccups of the machine."""
    alike: dict[int, list[float]] = {}
    for step in steps:
        alike.setdefault(int(step.depths.sum()), []).append(step.seconds)
    most = {drafts: _HICCUP * float(np.median(seconds)) for drafts, seconds in alike.items()}
    return [
        replace(step, seconds=min(step.seconds, most[int(step.depths.sum())])) for step in steps
    ]
