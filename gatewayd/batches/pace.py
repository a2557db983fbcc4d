"""How many lines of a tenant run at once: fewer after refusals, more after answers.

A congestion window: a refusal sets it to what still runs, and nothing is sent until a pause is
over; with nothing running one line is sent then, and the others wait for what becomes of it. Each
answer widens it by one up to where the last refusal came, and beyond that some pauses later.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_FIRST_SECONDS, _MOST_SECONDS = 0.25, 30.0
_PAUSES = 8
"""After a refusal, until more is tried than ran then: a limit costs a ninth of the time at most."""


class Pace:
    """Of one tenant.

    Attributes:
        num_running: lines now.
        backoff_seconds: of the next pause, if the refusal says nothing else.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_running = 0
        self.backoff_seconds = _FIRST_SECONDS
        self._clock = clock
        self._window = self._threshold = math.inf
        self._resume_at = self._widen_at = -math.inf
        self._era = 0

    @property
    def delay(self) -> float | None:
        """Seconds until another line may be sent; None for when one of those that run has ended."""
        if self.num_running >= self._window:
            return None
        return max(0.0, self._resume_at - self._clock())

    def begin(self) -> int:
        """Another line runs; returns what its end is told with."""
        self.num_running += 1
        return self._era

    def end(self) -> None:
        """A line runs no more, whatever became of it."""
        self.num_running -= 1

    def answered(self, era: int) -> None:
        """A line that is about to end has its answer."""
        if era != self._era:
            return  # it was sent before the last refusal
        self.backoff_seconds = _FIRST_SECONDS
        if self._window < self._threshold:
            self._window += 1
        elif self._clock() >= self._widen_at:
            self._threshold = math.inf

    def refused(self, era: int, seconds: float) -> None:
        """A line that has ended was refused.

        Args:
            era: from ``begin``.
            seconds: until another attempt is worth it.
        """
        if era == self._era:
            self._era += 1
            self._resume_at = self._clock() + seconds
            self._widen_at = self._resume_at + _PAUSES * seconds
            self.backoff_seconds = min(2 * self.backoff_seconds, _MOST_SECONDS)
        # Those that were sent together are refused one after the other.
        self._window = max(1, self.num_running)
        self._threshold = self.num_running or math.inf  # where nothing runs, nothing is known
