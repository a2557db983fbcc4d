"""Restart backoff: recent failures of engines, and the delay before the next start."""

from __future__ import annotations

from gatewayd.engines.replicas.engine_process import backoff

MAX_FAILED_STARTS = 3
MAX_BRIEF_LIVES = 5
"""Consecutive short-lived engines before starts are delayed: one request may cost that many."""
BRIEF_SECONDS = 10.0


class RestartBackoff:
    """Counts consecutive failed starts and short-lived engines of a replica."""

    def __init__(self) -> None:
        self._failed = self._brief = 0

    def record(self, uptime: float | None) -> None:
        """Record the end of an engine.

        Args:
            uptime: seconds for which it served; None if it never did.
        """
        self._failed = self._failed + 1 if uptime is None else 0
        self._brief = self._brief + 1 if uptime is not None and uptime < BRIEF_SECONDS else 0

    @property
    def are_too_many(self) -> bool:
        """Whether further starts are pointless."""
        return self._failed >= MAX_FAILED_STARTS

    def pause(self) -> float:
        """Seconds to wait before the next start."""
        return backoff(max(self._failed, self._brief - MAX_BRIEF_LIVES))
