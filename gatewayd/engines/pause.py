"""Whether new requests are taken: an operator may pause that, for a time or for good."""

from __future__ import annotations

import math
import time

from gatewayd.errors import AdmissionPaused

_AGAIN_SECONDS = 30.0
"""After which to try again where nobody knows how long it takes."""


class Pause:
    """One at a time: a later one replaces it."""

    def __init__(self) -> None:
        self._until = 0.0

    @property
    def is_on(self) -> bool:
        """Whether no new request is taken."""
        return time.monotonic() < self._until

    def begin(self, seconds: float | None) -> None:
        """Take none for so long; None until ``end``."""
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    def end(self) -> None:
        """Take them again."""
        self._until = 0.0

    def check(self) -> None:
        """Refuse a new request while it lasts.

        Raises:
            AdmissionPaused: with the time after which to try again.
        """
        left = self._until - time.monotonic()
        if left > 0:
            again = left if math.isfinite(left) else _AGAIN_SECONDS
            raise AdmissionPaused(
                "an operator has paused admission; try again later", retry_after=max(1.0, again)
            )
