"""The time by which things expire: the wall clock's, except while that has just jumped.

A clock that is a year ahead, by a mistake or a flat battery, must not delete a year's files in a
minute. So a jump is believed once it has stayed for an hour; until then time goes on from before.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_log = logging.getLogger(__name__)

_JUMP_SECONDS = 600.0
"""A smaller step is one that any clock may take when it is set."""

_HOLD_SECONDS = 3600.0
"""That a jump must stay; as long as what expires soonest is kept."""

_AWAY_SECONDS = 86_400.0
"""Longer without a daemon looks like a jump, and is treated as one: nothing is lost by an hour."""


def _uptime() -> float:
    """Seconds that no setting of the clock changes; sleep of the machine counts."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class StoreClock:
    """Believed time; may be asked in any thread.

    Args:
        last: when the store was last used, by this clock in the life before; None if nobody knows.
        wall: Unix time, which somebody may set.
        uptime: seconds that nobody sets.
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
        if last is not None and not -_JUMP_SECONDS <= begun - last <= _AWAY_SECONDS:
            begun = last
        self._offset = self._seen = begun - uptime()
        self._jumped_at: float | None = None

    @property
    def is_steady(self) -> bool:
        """Whether it is the wall clock's time."""
        self.now()
        return self._jumped_at is None

    def stamp(self) -> float:
        """Unix time to write down: what is kept from now on must not be over too early.

        Of the wall clock and believed time the later one; ``expiry`` mends what was too late.
        """
        return max(self.now(), self._wall())

    def now(self) -> float:
        """Unix time to judge by what is over."""
        with self._lock:
            uptime = self._uptime()
            offset = self._wall() - uptime
            if abs(offset - self._offset) <= _JUMP_SECONDS:
                self._offset, self._jumped_at = offset, None
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
            self._seen = offset
            return uptime + self._offset
