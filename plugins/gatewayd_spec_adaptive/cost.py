"""How long something takes, by its size: learnt, never assumed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_SLOWER, _FASTER = 0.1, 0.3
"""Weight of the newest step in the running averages. Other work on the machine makes steps slower
and never faster, so a fast one says more."""
_OUTLIER = 2.0
"""A step counts for at most this much of what was expected: a hiccup is not a cost."""
_EXACT = 32
"""Up to so many tokens each size is kept by itself; beyond, sizes 10 % apart are one."""
_RATIO = 1.1
_SIZES = 160
"""Reaches beyond 10^6 tokens."""


class StepCost:
    """Seconds of a step, by its tokens, or of guessing, by its depth.

    A machine that others use is slower at one time than at another, and steps of some sizes were
    last seen long ago. So two things are learnt: how long steps of one size take beside those of
    another, and how slow the machine is now.

    Attributes:
        slowness: of the machine now, as a factor.
    """

    def __init__(self) -> None:
        index = np.arange(_SIZES)
        self._at = np.where(
            index <= _EXACT, index, _EXACT * _RATIO ** (index - float(_EXACT))
        ).astype(np.float64)
        # A list: one size is noted in every step, all are looked at in few.
        self._seconds = [0.0] * _SIZES
        self._known: list[int] = []
        self.slowness = 1.0

    def note(self, size: int, seconds: float) -> None:
        """Something of this size took so long."""
        i = self._index(size)
        if not self._seconds[i]:
            self._seconds[i] = seconds / self.slowness
            self._known = [j for j in range(_SIZES) if self._seconds[j]]
            return
        ratio = min(seconds / (self._seconds[i] * self.slowness), _OUTLIER)
        factor = 1 + (_SLOWER if ratio > 1 else _FASTER) * (ratio - 1)
        self._seconds[i] *= factor
        self.slowness *= factor

    def knows(self, size: int) -> bool:
        """Whether this size was ever seen."""
        return bool(self._seconds[self._index(size)])

    def seconds(self, size: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds now, shape ``[n]``; sizes never seen lie between others.

        Beyond the largest that was seen a token is taken to cost nothing more: so it is tried,
        and known from then on. As long as nothing was seen, nothing costs anything.
        """
        if not self._known:
            return np.zeros_like(size)
        # A smaller step is never slower; where it seems so, a hiccup was all that was seen of it.
        known = np.array([self._seconds[i] for i in self._known])
        rising = np.minimum.accumulate(known[::-1])[::-1]
        return self.slowness * np.interp(size, self._at[self._known], rising)

    @staticmethod
    def _index(size: int) -> int:
        if size <= _EXACT:
            return size
        return min(round(_EXACT + float(np.log(size / _EXACT) / np.log(_RATIO))), _SIZES - 1)
