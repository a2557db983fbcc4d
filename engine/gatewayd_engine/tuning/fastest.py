"""Which of some measured times wins."""

from __future__ import annotations

import math

MARGIN = 0.02
"""Part of the default's time that another candidate has to save to be chosen."""


def usable(microseconds: float) -> float | None:
    """A time; None for what is none."""
    return microseconds if math.isfinite(microseconds) and microseconds > 0 else None


def fastest(found: dict[str, float | None], default: str) -> str:
    """The fastest candidate; the default, unless another saves more than ``MARGIN`` of its time.

    Args:
        found: microseconds of each candidate; None for one that failed.
        default: what is taken if it has no time, too.
    """
    times = {name: time for name, time in found.items() if time is not None}
    base = times.get(default)
    if base is None:
        return default
    best = min(times, key=lambda name: times[name])
    return best if times[best] < base * (1 - MARGIN) else default
