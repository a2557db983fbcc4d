"""How long steps take, by the tokens they compute: learnt, never assumed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WEIGHT = 0.15
"""Of the newest step in the running average."""
_OUTLIER = 2.0
"""A step counts for at most this much of the average: a hiccup is not a cost."""
_EXACT = 32
"""Up to so many tokens each size is kept by itself; beyond, sizes 10 % apart are one."""
_RATIO = 1.1
_SIZES = 160
"""Reaches beyond 10^6 tokens."""


class StepCost:
    """Seconds of a step with so many tokens."""

    def __init__(self) -> None:
        index = np.arange(_SIZES)
        self._at = np.where(
            index <= _EXACT, index, _EXACT * _RATIO ** (index - float(_EXACT))
        ).astype(np.float64)
        self._seconds = np.zeros(_SIZES)
        self._known: NDArray[np.int64] = np.zeros(0, np.int64)

    def note(self, num_tokens: int, seconds: float) -> None:
        """A step took so long."""
        i = self._index(num_tokens)
        before = self._seconds[i]
        if not before:
            self._seconds[i] = seconds
            self._known = np.flatnonzero(self._seconds)
        else:
            self._seconds[i] = before + _WEIGHT * (min(seconds, _OUTLIER * before) - before)

    def knows(self, num_tokens: int) -> bool:
        """Whether such a step was ever seen."""
        return bool(self._seconds[self._index(num_tokens)])

    def seconds(self, num_tokens: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected seconds of steps, shape ``[n]``; what was never seen lies between neighbours.

        Beyond the largest that was seen a token is taken to cost nothing more: so it is tried,
        and known from then on.
        """
        known = self._known
        if not len(known):
            return np.ones_like(num_tokens)
        # A larger step is never faster; where it seems so, both are the same within the noise.
        return np.interp(num_tokens, self._at[known], np.maximum.accumulate(self._seconds[known]))

    @staticmethod
    def _index(num_tokens: int) -> int:
        if num_tokens <= _EXACT:
            return num_tokens
        return min(round(_EXACT + float(np.log(num_tokens / _EXACT) / np.log(_RATIO))), _SIZES - 1)
