"""What a sequence's grammar may cost the steps that others share with it.

No check foresees it: an ambiguous grammar is compiled at once and takes longer with every token.
Each has a pace of its own, and all of them together have a share of every step.
"""

from __future__ import annotations

from gatewayd_engine.process.config import GuideLimits
from gatewayd_hooks.guiding import GuideFailed

_SLOW = 0.02
"""Seconds of masks at which somebody is suspected."""
_WATCHED, _TRUSTED = 16, 16
"""Steps."""
_UNKNOWN = 0.002
"""Seconds that a mask is taken to need before there was one."""
_COSTLY = 0.002
"""Seconds of a token up to which a sequence is not ended for what others cost."""


class GrammarCostLimit:
    """What one sequence has spent beyond its tokens' worth.

    Args:
        token_seconds: that a token may take.
        most: seconds beyond that it may have spent at any time.

    Attributes:
        mask_seconds: of its last mask, or of the average where it was filled with others.
    """

    __slots__ = (
        "_before",
        "_earlier",
        "_most",
        "_now",
        "_over",
        "_token_seconds",
        "mask_seconds",
    )

    def __init__(self, token_seconds: float, most: float) -> None:
        self._token_seconds = token_seconds
        self._most = most
        self._over = 0.0
        self.mask_seconds = _UNKNOWN
        self._now = self._before = self._earlier = 0.0

    @property
    def cost(self) -> float:
        """Seconds of its last token, or of the one that is due if that has taken more by now."""
        return max(self._now, self._before)

    @property
    def is_costly(self) -> bool:
        """Whether it may be ended for what all cost together: not for one token, as the first."""
        return min(self._before, self._earlier) > _COSTLY

    def spend(self, seconds: float) -> bool:
        """Time of one thread; whether it is too much by now."""
        self._over += seconds
        self._now += seconds
        return self._over > self._most

    def earn(self, tokens: int) -> None:
        """So many more tokens have come."""
        self._over = max(0.0, self._over - self._token_seconds * tokens)
        if tokens:
            self._earlier, self._before = self._before, self._now / tokens
            self._now = 0.0


class Share:
    """What the grammars of all sequences may take of one step.

    Args:
        seconds: that they may.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0

    @property
    def is_over(self) -> bool:
        """Whether they have taken all of it."""
        return self._spent > self._seconds

    def spend(self, seconds: float) -> None:
        """Somebody has taken so much."""
        self._spent += seconds

    def renew(self) -> None:
        """The masks of a step are there: what comes belongs to the next."""
        self._spent = 0.0


class GrammarSuspicion:
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
        if self._steps < 0 and seconds < 5 * _SLOW:
            self._steps += 1
        elif self._steps <= 0:
            self._steps = int(seconds > _SLOW)
        elif longest > _SLOW / 4:
            self._steps = _WATCHED
        else:
            self._steps = self._steps - 1 or -_TRUSTED


def too_slow(limits: GuideLimits) -> GuideFailed:
    """What a client is told whose grammar takes too long."""
    most = f"{1000 * limits.token_seconds:g}"
    return GuideFailed(f"the grammar takes longer than {most} ms a token; make it simpler")


def too_many(limits: GuideLimits) -> GuideFailed:
    """What a client is told whose grammar is one of many that together do."""
    most = f"{1000 * limits.step_seconds:g}"
    return GuideFailed(
        f"the grammars of all requests together take longer than {most} ms a token, and this is "
        "one of the costliest; make it simpler, or try again later"
    )
