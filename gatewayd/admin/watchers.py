"""Whoever watches the daemon gets snapshots; while nobody does, none is made.

All watchers share them: one is made when the first of those is due who wait for one, and goes to
all who are about to be. Who reads slowly waits for none meanwhile, and gets the first one made
after it is back: what it missed is gone, and nothing queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gatewayd.errors import GatewayError
from gatewayd.wire.snapshot import Snapshot

MOST_WATCHERS = 8


class TooManyWatchers(GatewayError):
    """Snapshots are streamed to as many as may be."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_watchers"


class Left(Exception):
    """A watcher is to end."""


class Watcher:
    """One stream.

    Args:
        interval: seconds between two snapshots.

    Attributes:
        due: ``time.monotonic`` when it wants the next one.
        wanted: what it waits for; None while it is busy with the last one.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.due = 0.0
        self.wanted: asyncio.Future[Snapshot] | None = None
        self.has_left = False

    def give(self, snapshot: Snapshot, now: float) -> None:
        """What it waited for."""
        self.due = now + self.interval
        if self.wanted is not None and not self.wanted.done():
            self.wanted.set_result(snapshot)
        self.wanted = None

    def leave(self) -> None:
        """It is to end: its client has gone, or the daemon ends."""
        self.has_left = True
        if self.wanted is not None and not self.wanted.done():
            self.wanted.set_exception(Left())


class Watching:
    """All watchers.

    Args:
        make: a snapshot.
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
        """Whether anything is done for anybody."""
        return self._making is not None and not self._making.done()

    def enter(self, interval: float) -> Watcher:
        """Another one.

        Raises:
            TooManyWatchers: there is no room.
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

    def leave(self, watcher: Watcher) -> None:
        """It watches no more; with the last one all work ends."""
        self._watchers.pop(watcher, None)
        if not self._watchers and self._making is not None:
            self._making.cancel()
            self._making = None

    def close(self) -> None:
        """The daemon ends: so do all streams."""
        for watcher in self._watchers:
            watcher.leave()

    async def next(self, watcher: Watcher) -> Snapshot:
        """Wait until one is due and made.

        Raises:
            Left: the watcher is to end.
        """
        if watcher.has_left:
            raise Left
        watcher.wanted = asyncio.get_running_loop().create_future()
        self._changed.set()
        return await watcher.wanted

    async def _run(self) -> None:
        now = asyncio.get_running_loop().time
        while True:
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
            except Exception as error:  # noqa: BLE001 - whoever waits must be told
                for one in waiting:
                    if one.wanted is not None and not one.wanted.done():
                        one.wanted.set_exception(error)
                    one.wanted = None
                continue
            # Who is due soon takes it now: then they are due together.
            soon = began + min(one.interval for one in self._watchers) / 2
            for one in list(self._watchers):
                if one.wanted is not None and one.due <= soon:
                    one.give(snapshot, began)
