"""Clock for expiry: the wall clock, except for an hour after it has jumped.

A clock that is a year ahead, by a mistake or a flat battery, must not delete a year's files within
a minute. A jump is accepted once it has persisted for an hour; until then the previous time
continues.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_JUMP_SECONDS = 600.0
"""Smaller steps are normal when a clock is set."""

_HOLD_SECONDS = 3600.0
"""Time for which a jump must persist; as long as the shortest lifetime."""

_AWAY_SECONDS = 86_400.0
"""A longer time without a daemon looks like a jump, and is treated as one: an hour is harmless."""


def _uptime() -> float:
    """Seconds since boot, including suspend, which setting the clock does not change."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StoreClock:
    """Time for expiry; thread-safe.

    Args:
        last: time of the last use of the store, by the previous process; None if unknown.
        wall: Unix time, which may be set.
        uptime: monotonic seconds.
    """

    def __init__(
        self,
        last: float | None,
        *,
        wall: Callable[[], float] = time.time,
        uptime: Callable[[], float] = _uptime,
    ) -> None:
        self._wall, self._uptime = wall, uptime
        self._lock = threading.Lock()
        begun = wall()
        # Continue from the last use: `now` then sees the difference as a jump.
        if last is not None and not -_JUMP_SECONDS <= begun - last <= _AWAY_SECONDS:
            begun = last
        # Believed wall time minus uptime, and the same of the wall clock when it was last read.
        self._offset = self._seen = begun - uptime()
        self._jumped_at: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether it follows the wall clock."""
        # Only reading the clock detects a jump.
        self.now()
        return self._jumped_at is None

    def stamp(self) -> float:
        """Unix time for new records, late enough that they do not expire too early.

        The later one of the wall clock and expiry time; ``expiry`` corrects times in the future.
        """
        return max(self.now(), self._wall())

    def now(self) -> float:
        """Unix time by which expiry is decided."""
        with self._lock:
            uptime = self._uptime()
            offset = self._wall() - uptime
            # The wall clock agrees, or a jump was undone: follow it, small steps included.
            if abs(offset - self._offset) <= _JUMP_SECONDS:
                self._offset, self._jumped_at = offset, None
            # A first jump, or another one while one is pending: each has an hour of its own.
            elif self._jumped_at is None or abs(offset - self._seen) > _JUMP_SECONDS:
                self._jumped_at = uptime
                _log.warning(
                    "system clock jumped by %+.0f s since the store was last used: expiry "
                    "uses the previous time until the clock has been stable for an hour",
                    offset - self._offset,
                )
            elif uptime - self._jumped_at >= _HOLD_SECONDS:
                _log.warning("system clock is stable: expiry uses it again")
                self._offset, self._jumped_at = offset, None
            # Updated at each call, so that slow drift during a jump is not another jump.
            self._seen = offset
            return uptime + self._offset
