"""Limits on the time that grammars of sequences take of the steps they share with others.

It cannot be checked in advance: an ambiguous grammar compiles quickly and takes longer with every
token. Each sequence has its own limit, and all of them together have a share of every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from gatewayd_engine.process.config import GuideLimits
from gatewayd_hooks.guiding import GuideFailed

_SLOW = 0.02
"""Seconds of a step's masks from which on a slow grammar is suspected."""
_WATCHED, _TRUSTED = 16, 16
"""Steps during which masks are computed one by one, and not suspected afterwards."""
_UNKNOWN = 0.002
"""Assumed seconds of a sequence's first mask."""
_COSTLY = 0.002
"""Seconds per token up to which a sequence is not ended for exceeding the shared limit."""


@dataclass(slots=True, eq=False, repr=False)
class GrammarCostLimit:
    """Leaky bucket of the time that a sequence's grammar takes beyond its allowance per token.

    Args:
        token_seconds: allowance per token.
        most: most seconds in excess of the allowance at any time.

    Attributes:
        mask_seconds: time of its last mask, or the average of those computed together.
    """

    _token_seconds: float
    _most: float
    _over: float = 0.0
    mask_seconds: float = _UNKNOWN
    _now: float = 0.0
    _before: float = 0.0
    _earlier: float = 0.0

    @property
    def cost(self) -> float:
        """Seconds of the last token, or of the current one if it has already taken more."""
        return max(self._now, self._before)

    @property
    def is_costly(self) -> bool:
        """Whether it may be ended for exceeding the shared limit; one slow token is tolerated."""
        return min(self._before, self._earlier) > _COSTLY

    def spend(self, seconds: float) -> bool:
        """Charge thread time; return whether the limit is exceeded."""
        self._over += seconds
        self._now += seconds
        return self._over > self._most

    def credit(self, tokens: int) -> None:
        """Credit the allowance of ``tokens`` new tokens."""
        self._over = max(0.0, self._over - self._token_seconds * tokens)
        if tokens:
            self._earlier, self._before = self._before, self._now / tokens
            self._now = 0.0


class StepBudget:
    """Time budget of all sequences' grammars in one step.

    Args:
        seconds: the budget.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent = 0.0

    @property
    def is_over(self) -> bool:
        """Whether the budget is exceeded."""
        return self._spent > self._seconds

    def spend(self, seconds: float) -> None:
        """Charge time to the step."""
        self._spent += seconds

    def reset(self) -> None:
        """Reset the budget after the masks of a step; later time is charged to the next step."""
        self._spent = 0.0


class SlowGrammarDetector:
    """Decides when to compute masks one by one to find slow grammars; batches are faster."""

    def __init__(self) -> None:
        self._steps = 0  # steps left to watch; if negative, steps left without suspicion

    @property
    def is_any(self) -> bool:
        """Whether to compute masks one by one."""
        return self._steps > 0

    def record(self, seconds: float, longest: float) -> None:
        """Record the time of a step's masks.

        Args:
            seconds: time of all masks.
            longest: time of the slowest, if they were computed one by one.
        """
        # Trusted for some steps, unless one is far slower than what was tolerated.
        if self._steps < 0 and seconds < 5 * _SLOW:
            self._steps += 1
        # After a slow step the masks of the next one are computed one by one.
        elif self._steps <= 0:
            self._steps = int(seconds > _SLOW)
        # A single mask is slow, and is watched for longer; the sum of many cheap ones is not.
        elif longest > _SLOW / 4:
            self._steps = _WATCHED
        else:
            self._steps = self._steps - 1 or -_TRUSTED


def too_slow(limits: GuideLimits) -> GuideFailed:
    """Return the error for a client whose grammar exceeds its limit."""
    most = f"{1000 * limits.token_seconds:g}"
    return GuideFailed(f"the grammar takes longer than {most} ms a token; make it simpler")


def too_many(limits: GuideLimits) -> GuideFailed:
    """Return the error for a client whose grammar is among the costliest of a step over budget."""
    most = f"{1000 * limits.step_seconds:g}"
    return GuideFailed(
        f"the grammars of all requests together take longer than {most} ms a token, and this is "
        "one of the costliest; make it simpler, or try again later"
    )
