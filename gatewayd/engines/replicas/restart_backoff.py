"""How often engines have died lately, and how long to wait before the next one."""

from __future__ import annotations

from gatewayd.engines.replicas.engine_process import backoff

MAX_FAILED_STARTS = 3
MAX_BRIEF_LIVES = 5
"""Engines in a row that may die young before the next ones are waited for: one request may cost
so many."""
BRIEF_SECONDS = 10.0


class Setbacks:
    """Counts the engines of one replica that did not start, and those that died young."""

    def __init__(self) -> None:
        self._failed = self._brief = 0

    def note(self, uptime: float | None) -> None:
        """An engine has died.

        Args:
            uptime: seconds for which it served; None if it never did.
        """
        self._failed = self._failed + 1 if uptime is None else 0
        self._brief = self._brief + 1 if uptime is not None and uptime < BRIEF_SECONDS else 0

    @property
    def are_too_many(self) -> bool:
        """Whether starting another is in vain."""
        return self._failed >= MAX_FAILED_STARTS

    def pause(self) -> float:
        """Seconds to wait before another is started."""
        return backoff(max(self._failed, self._brief - MAX_BRIEF_LIVES))
