"""Streams of snapshots to watchers; while there are none, no snapshots are built.

Snapshots are shared: one is built when the first waiting watcher is due, and sent to all that are
due soon. A slow reader does not block others, and gets the first snapshot built after it is ready
again: it skips those in between, and nothing queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gatewayd.errors import GatewayError
from gatewayd.wire.snapshot import Snapshot

MOST_WATCHERS = 8


class TooManyWatchers(GatewayError):
    """The maximum of snapshot streams is open."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_watchers"


class WatcherEnded(Exception):
    """A watcher's stream must end."""


class Watcher:
    """A stream of snapshots.

    Args:
        interval: seconds between two snapshots.

    Attributes:
        due: ``time.monotonic`` when its next snapshot is due.
        wanted: future of its next snapshot; None while it sends the last one.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        # At once, for the first snapshot.
        self.due = 0.0
        self.wanted: asyncio.Future[Snapshot] | None = None
        self.has_left = False

    def deliver(self, snapshot: Snapshot, now: float) -> None:
        """Deliver the snapshot that it waits for."""
        self.due = now + self.interval
        if self.wanted is not None and not self.wanted.done():
            self.wanted.set_result(snapshot)
        self.wanted = None

    def end(self) -> None:
        """End the stream: its client has disconnected, or the daemon stops."""
        self.has_left = True
        if self.wanted is not None and not self.wanted.done():
            self.wanted.set_exception(WatcherEnded())


class SnapshotBroadcast:
    """All watchers.

    Args:
        make: builds a snapshot.
    """

    def __init__(self, make: Callable[[], Awaitable[Snapshot]]) -> None:
        self._make = make
        self._watchers: dict[Watcher, None] = {}
        self._making: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watchers)

    @property
    def is_making(self) -> bool:
        """Whether snapshots are being built."""
        return self._making is not None and not self._making.done()

    def add(self, interval: float) -> Watcher:
        """Add a watcher.

        Raises:
            TooManyWatchers: the maximum is reached.
        """
        if len(self._watchers) >= MOST_WATCHERS:
            raise TooManyWatchers(
                f"{MOST_WATCHERS} streams of snapshots are open, which is the limit; close one, or "
                "ask for single ones by GET /admin/snapshot",
                retry_after=5,
            )
        watcher = Watcher(interval)
        self._watchers[watcher] = None
        if not self.is_making:
            self._making = asyncio.create_task(self._run(), name="snapshots")
        return watcher

    def remove(self, watcher: Watcher) -> None:
        """Remove a watcher; the last one stops the building of snapshots."""
        self._watchers.pop(watcher, None)
        if not self._watchers and self._making is not None:
            self._making.cancel()
            self._making = None

    def close(self) -> None:
        """End all streams, because the daemon stops."""
        for watcher in self._watchers:
            watcher.end()

    async def next(self, watcher: Watcher) -> Snapshot:
        """Wait for a watcher's next snapshot.

        Raises:
            WatcherEnded: the stream must end.
        """
        # It may have left while its last snapshot was sent, when no future was pending.
        if watcher.has_left:
            raise WatcherEnded
        watcher.wanted = asyncio.get_running_loop().create_future()
        self._changed.set()
        return await watcher.wanted

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
            # Cleared before the watchers are read: one that asks later sets it again.
            self._changed.clear()
            waiting = [one for one in self._watchers if one.wanted is not None]
            pause = min((one.due for one in waiting), default=None)
            if pause is None or pause > now():
                try:
                    left = None if pause is None else pause - now()
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    pass
                continue
            began = now()
            try:
                snapshot = await self._make()
            except Exception as error:  # noqa: BLE001 - raised in the waiting watchers
                for one in waiting:
                    if one.wanted is not None and not one.wanted.done():
                        one.wanted.set_exception(error)
                    one.wanted = None
                continue
            # Watchers that are due soon get it now: from then on they are due together.
            soon = began + min(one.interval for one in self._watchers) / 2
            for one in list(self._watchers):
                if one.wanted is not None and one.due <= soon:
                    # From the beginning of the build, whose duration must not stretch the interval.
                    one.deliver(snapshot, began)
