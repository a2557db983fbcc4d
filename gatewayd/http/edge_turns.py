"""In which order connections go on whose next request has come before its turn.

Some of all of them in each turn of the event loop: the loop accepts one connection in a turn, and
reads what others have sent, so a turn must not be as long as there are connections.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

MOST = 8
"""That go on in one turn: about a millisecond of requests that are refused."""

SECONDS = 0.002
"""After which no other one does: chunks of a byte each take longer to parse."""


class Waiting(Protocol):
    """A connection with bytes to parse."""

    def go_on(self) -> None:
        """It has its turn; it may have been closed meanwhile."""


class Turns:
    """First come, first served; each is in the queue once at most, which it sees to itself.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._queue: deque[Waiting] = deque()
        self._is_due = False

    def ask(self, connection: Waiting) -> None:
        """Let it go on in a later turn of the event loop."""
        self._queue.append(connection)
        self._call()

    def _call(self) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        end = self._clock() + SECONDS
        try:
            for _ in range(min(MOST, len(self._queue))):
                self._queue.popleft().go_on()
                if self._clock() > end:
                    break
        finally:
            self._call()
