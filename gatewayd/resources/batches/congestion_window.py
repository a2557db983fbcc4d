"""Congestion window for batch lines of a tenant: shrinks after refusals, grows after responses.

A congestion window with a slow-start threshold. A refusal sets it to the number still running, and
nothing is sent until a backoff is over; with none running, a single line probes then and the others
wait for its outcome. Each answer widens the window by one up to the size at the last refusal, and
beyond that size only some backoffs later.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_FIRST_SECONDS, _MOST_SECONDS = 0.25, 30.0
_PAUSES = 8
"""Backoffs after a refusal before the window may exceed its size then: probing a limit costs a
ninth of the time at most."""


class CongestionWindow:
    """Congestion window of one tenant.

    Attributes:
        num_running: number of running lines.
        backoff_seconds: the next backoff, unless the refusal names one.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_running = 0
        self.backoff_seconds = _FIRST_SECONDS
        self._clock = clock
        self._size = self._threshold = math.inf
        self._resume_at = self._widen_at = -math.inf
        # Counts refusals; lines sent before one say nothing about the limit after it.
        self._era = 0

    @property
    def delay(self) -> float | None:
        """Seconds until another line may be sent; None until one of the running lines has ended."""
        if self.num_running >= self._size:
            return None
        return max(0.0, self._resume_at - self._clock())

    def start_line(self) -> int:
        """Count a line that starts; return the era to pass to ``answered`` or ``refused``."""
        self.num_running += 1
        return self._era

    def end_line(self) -> None:
        """Count a line that has ended, whatever its outcome."""
        self.num_running -= 1

    def answered(self, era: int) -> None:
        """Widen the window after a response; call before ``end_line``."""
        if era != self._era:
            return  # sent before the last refusal
        self.backoff_seconds = _FIRST_SECONDS
        # Up to the size at the last refusal: a line more for each response.
        if self._size < self._threshold:
            self._size += 1
        # Beyond it: the next responses widen the window until a refusal finds the limit.
        elif self._clock() >= self._widen_at:
            self._threshold = math.inf

    def refused(self, era: int, seconds: float) -> None:
        """Shrink the window after a refusal; call after ``end_line``.

        Args:
            era: from ``start_line``.
            seconds: duration of the backoff.
        """
        # Of lines refused at once the first alone starts a backoff, or it would double for each.
        if era == self._era:
            self._era += 1
            self._resume_at = self._clock() + seconds
            self._widen_at = self._resume_at + _PAUSES * seconds
            self.backoff_seconds = min(2 * self.backoff_seconds, _MOST_SECONDS)
        # Lines that were sent together are refused one after the other.
        self._size = max(1, self.num_running)
        self._threshold = self.num_running or math.inf  # with none running the limit is unknown
