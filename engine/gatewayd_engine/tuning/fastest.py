"""Selection of the fastest candidate by measured times."""

from __future__ import annotations

import math

MARGIN = 0.02
"""Share of the default's time that another candidate must save to be chosen."""


def usable(microseconds: float) -> float | None:
    """Return a measured time; None if it is invalid."""
    return microseconds if math.isfinite(microseconds) and microseconds > 0 else None


def fastest(found: dict[str, float | None], default: str) -> str:
    """Return the fastest candidate; the default unless another saves more than ``MARGIN``.

    Args:
        found: microseconds of each candidate; None for one that failed.
        default: the default candidate, also returned if it has no time.
    """
    times = {name: time for name, time in found.items() if time is not None}
    base = times.get(default)
    # Without the default's time, nothing says that another candidate is faster.
    if base is None:
        return default
    best = min(times, key=lambda name: times[name])
    return best if times[best] < base * (1 - MARGIN) else default
