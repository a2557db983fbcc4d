"""Pause of admission by an operator, for a time or until resumed."""

from __future__ import annotations

import math
import time

from gatewayd.errors import AdmissionPaused

_AGAIN_SECONDS = 30.0
"""Hint for retries during a pause of unknown length."""


class Pause:
    """Pause of admission; a later one replaces it."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether admission is paused."""
        return time.monotonic() < self._until

    def start(self, seconds: float | None) -> None:
        """Pause admission for a time; None until ``end``."""
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    def end(self) -> None:
        """Resume admission."""
        self._until = 0.0

    def check(self) -> None:
        """Refuse a new request during the pause.

        Raises:
            AdmissionPaused: with the time after which to try again.
        """
        left = self._until - time.monotonic()
        if left > 0:
            again = left if math.isfinite(left) else _AGAIN_SECONDS
            raise AdmissionPaused(
                "an operator has paused admission; try again later", retry_after=max(1.0, again)
            )
