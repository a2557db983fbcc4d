"""The engine's log lines; told like the daemon's, of which it is one more voice."""

from __future__ import annotations

import time

_QUIET_SECONDS = 60.0


class Rarely:
    """Lets what is said again and again through once in a while.

    Args:
        seconds: for which the same words are not repeated.
    """

    def __init__(self, seconds: float = _QUIET_SECONDS) -> None:
        self._seconds = seconds
        self._until: dict[str, float] = {}

    def may(self, words: str) -> bool:
        """Whether to say this now."""
        now = time.monotonic()
        if now < self._until.get(words, now):
            return False
        # Few are alike for long; what is over is forgotten.
        self._until = {other: until for other, until in self._until.items() if until > now}
        self._until[words] = now + self._seconds
        return True
