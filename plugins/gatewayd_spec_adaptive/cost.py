"""Measured durations by size."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SLOWER, _FASTER = 0.1, 0.3
"""Weight of the latest step in the running averages. Other load on the machine makes steps slower
and never faster, so a fast one is more informative."""
_OUTLIER = 2.0
"""A step counts for at most this multiple of the expected duration, to ignore hiccups."""
_EXACT = 32
"""Up to this number of tokens each size has its own average; beyond, sizes within 10 % share
one."""
_RATIO = 1.1
_SIZES = 160
"""Number of averages; reaches beyond 10^6 tokens."""


class StepCost:
    """Seconds of a step by its tokens, or of drafting by its depth.

    On a shared machine the speed varies, and steps of some sizes were last seen long ago. So two
    things are measured: the relative durations of sizes, and the present slowness of the machine.

    Attributes:
        slowness: present slowness of the machine, as a factor.
    """

    def __init__(self) -> None:
        index = np.arange(_SIZES)
        self._at = np.where(
            index <= _EXACT, index, _EXACT * _RATIO ** (index - float(_EXACT))
        ).astype(np.float64)
        # A list: one size is updated in every step, all are read in few.
        self._seconds = [0.0] * _SIZES
        self._known: list[int] = []
        self.slowness = 1.0

    def record(self, size: int, seconds: float) -> None:
        """Update the average of a size."""
        i = self._index(size)
        if not self._seconds[i]:
            self._seconds[i] = seconds / self.slowness
            self._known = [j for j in range(_SIZES) if self._seconds[j]]
            return
        ratio = min(seconds / (self._seconds[i] * self.slowness), _OUTLIER)
        factor = 1 + (_SLOWER if ratio > 1 else _FASTER) * (ratio - 1)
        # Whether this size or the whole machine has changed cannot be told apart: both follow.
        self._seconds[i] *= factor
        self.slowness *= factor

    def knows(self, size: int) -> bool:
        """Whether this size was measured."""
        return bool(self._seconds[self._index(size)])

    def seconds(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected seconds now, shape ``[n]``; unmeasured sizes are interpolated.

        Beyond the largest measured size a token is assumed to be free: so it is tried, and
        measured. Before any measurement, everything is assumed to be free.
        """
        if not self._known:
            return np.zeros_like(size)
        # A smaller step is never slower; where it seems so, its only measurement was a hiccup.
        known = np.array([self._seconds[i] for i in self._known])
        rising = np.minimum.accumulate(known[::-1])[::-1]
        return self.slowness * np.interp(size, self._at[self._known], rising)

    @staticmethod
    def _index(size: int) -> int:
        if size <= _EXACT:
            return size
        return min(round(_EXACT + float(np.log(size / _EXACT) / np.log(_RATIO))), _SIZES - 1)
