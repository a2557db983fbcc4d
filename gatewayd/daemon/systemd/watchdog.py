"""What must move for the daemon to be alive: the event loop, the engines, the store's writer.

systemd ends a daemon that does not say ``WATCHDOG=1`` in time. It is said only after all three
have been looked at, on the event loop itself: one that is blocked says nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gatewayd.errors import GatewayError

LAG_SECONDS = 2.0
"""That the event loop may be late."""

STORE_SECONDS = 10.0
"""That the store's writer may take for a piece of work that writes nothing."""

_MOST_SECONDS = 5.0


def interval(environ: Mapping[str, str]) -> float | None:
    """Seconds between two signs of life; None where nobody waits for them.

    ``WATCHDOG_USEC`` of 30 s gives 5.0, of 2 s 0.5: several may be missed.
    """
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or not int(usec):
        return None
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # it is for the process that has started this one
    return min(int(usec) / 1e6 / 4, _MOST_SECONDS)


class LivenessProgress:
    """Looks at what must move.

    Args:
        engines: says what is wrong with them, a sentence each.
        store: is done when the store's writer has done something, or has said that it cannot.
        clock: seconds.
    """

    def __init__(
        self,
        engines: Callable[[], Sequence[str]],
        store: Callable[[], Awaitable[object]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engines = engines
        self._store = store
        self._clock = clock
        self._lag = 0.0
        self._probe: asyncio.Task[None] | None = None
        self._asked_at = 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep, and note by how much the loop is late."""
        due = self._clock() + seconds
        await asyncio.sleep(seconds)
        self._lag = max(self._lag, self._clock() - due)

    def trouble(self) -> str:
        """What does not move, since the last call; empty if all is well."""
        lag, self._lag = self._lag, 0.0
        if lag >= LAG_SECONDS:
            return f"the event loop was blocked for {lag:.1f} s"
        if troubles := self._engines():
            return "; ".join(troubles)
        return self._look_at_store()

    def close(self) -> None:
        """Forget the store: it is about to be closed."""
        if self._probe is not None:
            self._probe.cancel()
        self._store = _nothing

    def _look_at_store(self) -> str:
        waited = self._clock() - self._asked_at
        if self._probe is not None and not self._probe.done():
            return f"the store has not answered for {waited:.0f} s" * (waited > STORE_SECONDS)
        self._asked_at = self._clock()
        self._probe = asyncio.create_task(self._ask(), name="store probe")
        return ""

    async def _ask(self) -> None:
        # A full disk is an answer; so is a writer that is closed.
        with contextlib.suppress(GatewayError, RuntimeError):
            await self._store()


async def _nothing() -> None:
    return None
