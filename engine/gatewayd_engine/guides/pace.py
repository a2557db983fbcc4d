"""What a sequence's grammar may cost the steps that others share with it.

No check foresees it: an ambiguous grammar is compiled at once and takes longer with every token.
"""

from __future__ import annotations

_SLOW = 0.02
"""Seconds of masks at which somebody is suspected."""
_WATCHED, _TRUSTED = 16, 16
"""Steps."""


class Pace:
    """What one sequence has spent beyond its tokens' worth.

    Args:
        token_seconds: that a token may take.
        most: seconds beyond that it may have spent at any time.
    """

    __slots__ = ("_most", "_over", "_token_seconds")

    def __init__(self, token_seconds: float, most: float) -> None:
        self._token_seconds = token_seconds
        self._most = most
        self._over = 0.0

    def spend(self, seconds: float) -> bool:
        """Time of one thread; whether it is too much by now."""
        self._over += seconds
        return self._over > self._most

    def earn(self, tokens: int) -> None:
        """So many more tokens have come."""
        self._over = max(0.0, self._over - self._token_seconds * tokens)


class Suspicion:
    """Whether masks are filled one by one, to see whose takes long; together is faster."""

    def __init__(self) -> None:
        self._steps = 0  # yet to be watched; those yet to be trusted below zero

    @property
    def is_any(self) -> bool:
        """Whether to fill one by one."""
        return self._steps > 0

    def note(self, seconds: float, longest: float) -> None:
        """Masks were filled.

        Args:
            seconds: that they took.
            longest: that one of them took, if they were filled one by one.
        """
        if self._steps < 0:
            self._steps += 1
        elif not self._steps:
            self._steps = int(seconds > _SLOW)
        elif longest > _SLOW / 4:
            self._steps = _WATCHED
        else:
            self._steps = self._steps - 1 or -_TRUSTED
