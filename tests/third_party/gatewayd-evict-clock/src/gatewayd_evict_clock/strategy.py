"""A hand goes round over the cached pages: one that was hit is spared, once for each hit.

The clock of Corbato (1968), with a counter in place of the bit (Smith 1978). A page that nobody has
wanted for its time to live goes before all others, whatever it was worth.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from gatewayd_evict_clock.config import ClockSettings

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources


class ClockEviction:
    """An order of the cached pages that nobody holds."""

    def __init__(self, config: ClockSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = config.chances
        self._ttl = config.ttl_seconds
        self._clock = clock
        # The hand stands before the first; whom it passes goes to the end.
        self._ring: OrderedDict[int, None] = OrderedDict()
        self._since: OrderedDict[int, float] = OrderedDict()
        self._chances: dict[int, int] = {}

    def open(self, resources: EngineResources) -> None:
        """The number of pages does not matter here."""

    def close(self) -> None:
        """Nothing to give back."""

    def release(self, page: int) -> None:
        """Its last holder has left: it stands behind the hand, and its time begins."""
        self._ring[page] = None
        self._since[page] = self._clock()

    def reuse(self, page: int) -> None:
        """Somebody has found it: one more chance."""
        del self._ring[page]
        del self._since[page]
        self._chances[page] = min(self._chances.get(page, 0) + 1, self._most)

    def victim(self) -> int:
        """Choose the page whose time is over, else the first that has no chance left."""
        if not self._ring:
            raise LookupError("no page may be evicted")
        page, since = next(iter(self._since.items()))
        if self._clock() - since < self._ttl:
            page = self._turn()
        del self._ring[page]
        del self._since[page]
        self._chances.pop(page, None)
        return page

    def _turn(self) -> int:
        """Move the hand; every page that it spares has paid for it by a hit."""
        while True:
            page = next(iter(self._ring))
            if not self._chances.get(page):
                return page
            self._chances[page] -= 1
            self._ring.move_to_end(page)

    def __len__(self) -> int:
        return len(self._ring)
