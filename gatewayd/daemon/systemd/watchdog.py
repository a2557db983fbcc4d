"""Liveness checks of the daemon: the event loop, the engines, the store's writer.

systemd restarts a daemon that does not send ``WATCHDOG=1`` in time. It is sent only after all three
were checked, on the event loop itself, so that a blocked one sends nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from gatewayd.errors import GatewayError

LAG_SECONDS = 2.0
"""Maximum delay of the event loop."""

STORE_SECONDS = 10.0
"""Maximum time for the store's writer to process an empty piece of work."""

_MOST_SECONDS = 5.0


def interval(environ: Mapping[str, str]) -> float | None:
    """Interval of keep-alives in seconds; None if the watchdog is not enabled.

    ``WATCHDOG_USEC`` of 30 s gives 5.0, of 2 s 0.5: several may be missed.
    """
    usec = environ.get("WATCHDOG_USEC", "")
    if not usec.isdigit() or not int(usec):
        return None
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None  # it is meant for the parent process
    return min(int(usec) / 1e6 / 4, _MOST_SECONDS)


@dataclass(slots=True, eq=False, repr=False)
class LivenessProgress:
    """Checks that the parts of the daemon make progress.

    Args:
        engines: describes unresolved problems of engines, a sentence each.
        store: completes when the store's writer has processed, or refused, a piece of work.
        clock: seconds.
    """

    _engines: Callable[[], Sequence[str]]
    _store: Callable[[], Awaitable[object]]
    _clock: Callable[[], float] = time.monotonic
    _lag: float = 0.0
    _probe: asyncio.Task[None] | None = None
    _asked_at: float = 0.0

    async def sleep(self, seconds: float) -> None:
        """Sleep, and record the delay of the event loop."""
        due = self._clock() + seconds
        await asyncio.sleep(seconds)
        self._lag = max(self._lag, self._clock() - due)

    def problem(self) -> str:
        """Describe what has stopped making progress since the last call; empty for nothing."""
        # A delay is reported once: if this runs, the loop does.
        lag, self._lag = self._lag, 0.0
        if lag >= LAG_SECONDS:
            return f"the event loop was blocked for {lag:.1f} s"
        if troubles := self._engines():
            return "; ".join(troubles)
        return self._check_store()

    def close(self) -> None:
        """Stop checking the store, which is about to be closed."""
        if self._probe is not None:
            self._probe.cancel()
        self._store = _nothing

    def _check_store(self) -> str:
        waited = self._clock() - self._asked_at
        # One probe at a time: a writer that hangs does not collect more of them.
        if self._probe is not None and not self._probe.done():
            return f"the store has not answered for {waited:.0f} s" * (waited > STORE_SECONDS)
        self._asked_at = self._clock()
        self._probe = asyncio.create_task(self._probe_store(), name="store probe")
        return ""

    async def _probe_store(self) -> None:
        # An error such as a full disk or a closed writer also shows that the writer is alive.
        with contextlib.suppress(GatewayError, RuntimeError):
            await self._store()


async def _nothing() -> None:
    return None
