"""Eviction by retention priority with a time to live; a page is never locked.

A page has its priority for some seconds after its last use, and the normal one afterwards. A pinned
page is evicted after all others, and so are those before it: each page is pinned as long as a pin
that ends at it, or at one of its descendants. Within a priority eviction is least recently used,
and when nothing else is left every page is evicted.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from gatewayd_hooks.caching import NORMAL_PRIORITY, PageOrigin
from gatewayd_hooks.helpers.handover import HandoverState
from gatewayd_hooks.helpers.lineage import Lineage

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources

_PINNED = 101
_PLAIN = PageOrigin(-1, 0)
_FORM = "retention/2"


class Retention:
    """Cached pages by level: 0 to 100 are priorities, 101 is for pins.

    Args:
        clock: monotonic time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lineage = Lineage(0)
        self._origin: list[PageOrigin] = []
        self._ticket: list[int] = []  # of the latest release; 0 while a page is held
        self._until: list[float] = []  # when its priority becomes the normal one
        self._pin_end: list[float] = []  # of the pin that ends at a page
        self._pinned_children: list[set[int]] = []  # pinned children
        self._pinned_until: list[float] = []  # the maximum of its own pin and its children's
        self._pinned: set[int] = set()  # pages with a pin, expired or not
        self._level: list[int] = []
        self._end: list[float] = []  # when its level changes; 0 if it stays
        self._order: list[tuple[int, int, int]] = []  # a heap of level, ticket and page
        self._ends: list[tuple[float, int, int]] = []  # a heap of a time, a ticket and a page
        self._last_ticket = 0
        self._count = 0

    def open(self, resources: EngineResources) -> None:
        """Allocate per-page state."""
        num_pages = resources.num_pages
        self._lineage = Lineage(num_pages)
        self._origin = [_PLAIN] * num_pages
        self._ticket = [0] * num_pages
        self._until = [0.0] * num_pages
        self._pin_end = [0.0] * num_pages
        self._pinned_children = [set() for _ in range(num_pages)]
        self._pinned_until = [0.0] * num_pages
        self._pinned = set()
        self._level = [0] * num_pages
        self._end = [0.0] * num_pages

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def export_state(self) -> HandoverState:
        """Return origins, levels and times, which are of the process's clock."""
        pages = (self._origin, self._ticket, self._until, self._pinned_until)
        levels = (self._level, self._end, self._order, self._ends)
        pins = (self._pin_end, self._pinned_children)
        return HandoverState(
            _FORM, (self._lineage, pages + levels + pins, self._last_ticket, self._count)
        )

    def import_state(self, state: HandoverState) -> bool:
        """Take over those of another with the same number of pages."""
        if state.form != _FORM:
            return False
        lineage, columns, last_ticket, count = state.content
        if len(columns[0]) != len(self._origin):
            return False
        pages, levels, pins = columns[:4], columns[4:8], columns[8:]
        self._origin, self._ticket, self._until, self._pinned_until = map(list, pages)
        self._level, self._end, self._order, self._ends = map(list, levels)
        self._pin_end, self._pinned_children = list(pins[0]), list(map(set, pins[1]))
        self._lineage, self._last_ticket, self._count = lineage, last_ticket, count
        self._pinned = {page for page, until in enumerate(self._pinned_until) if until}
        return True

    def cached(self, page: int, origin: PageOrigin) -> None:
        """Set the page's retention; it counts from its next release."""
        self._lineage.add(page, origin.parent)
        self._origin[page] = origin

    def pin(self, page: int, seconds: float) -> None:
        """Evict a page and those before it after all others for a time."""
        # A cached page has an origin, or at least was released.
        if not self._lineage.is_known(page) and not self._ticket[page]:
            return
        until = self._clock() + seconds if seconds > 0 else 0.0
        # A pin is never shortened, only removed.
        self._pin_end[page] = max(until, self._pin_end[page]) if until else 0.0
        self._propagate_pin(page)

    def pinned(self) -> list[int]:
        """Return the pages pinned now."""
        now = self._clock()
        return [page for page in self._pinned if self._pinned_until[page] > now]

    def _propagate_pin(self, page: int) -> None:
        """Propagate a changed pin to the pages before it, as far as anything changes."""
        while page >= 0:
            ends = [self._pinned_until[heir] for heir in self._pinned_children[page]]
            # An invariant: a page is pinned as long as its own pin and those of its pinned
            # children.
            until = max([self._pin_end[page], *ends])
            if until == self._pinned_until[page]:
                return
            self._pinned_until[page] = until
            (self._pinned.add if until else self._pinned.discard)(page)
            # A held page gets its rank when it is released.
            if self._ticket[page]:
                self._rank(page)
            parent = self._lineage.parent(page)
            if parent >= 0:
                if until:
                    self._pinned_children[parent].add(page)
                else:
                    self._pinned_children[parent].discard(page)
            page = parent

    def release(self, page: int) -> None:
        """Append the page to its level."""
        self._last_ticket += 1
        self._ticket[page] = self._last_ticket
        self._until[page] = self._clock() + self._origin[page].seconds
        self._count += 1
        self._rank(page)

    def reuse(self, page: int) -> None:
        """Remove the page from the order."""
        self._ticket[page] = 0
        self._count -= 1

    def victim(self) -> int:
        """Evict the first page of the lowest level."""
        if not self._count:
            raise LookupError("no page may be evicted")
        now = self._clock()
        # First move the pages whose level has ended: their retention or their pin.
        while self._ends and self._ends[0][0] <= now:
            end, ticket, page = heapq.heappop(self._ends)
            if self._ticket[page] == ticket and self._end[page] == end:
                self._rank(page)
        # Entries with an older ticket or level are stale: a heap cannot remove them earlier.
        while True:
            level, ticket, page = heapq.heappop(self._order)
            if self._ticket[page] == ticket and self._level[page] == level:
                break
        self._leave(page)
        return page

    def drop(self, page: int) -> None:
        """Evict a page that the caller chose, pinned or not."""
        self._leave(page)

    def _leave(self, page: int) -> None:
        self._ticket[page] = 0
        parent = self._lineage.drop(page)
        if parent >= 0:
            # The rest of a pinned prompt ends there now.
            self._pin_end[parent] = max(self._pin_end[parent], self._pinned_until[page])
            self._pinned_children[parent].discard(page)
        self._pin_end[page] = self._pinned_until[page] = 0.0
        self._pinned.discard(page)
        self._pinned_children[page].clear()
        self._origin[page] = _PLAIN
        self._count -= 1

    def __len__(self) -> int:
        return self._count

    def _rank(self, page: int) -> None:
        """Insert a cached page at its current level, and schedule the end of that."""
        now, ticket = self._clock(), self._ticket[page]
        priority, end = self._origin[page].priority, 0.0
        if self._pinned_until[page] > now:
            level, end = _PINNED, self._pinned_until[page]
        elif priority > NORMAL_PRIORITY and self._until[page] > now:
            level, end = priority, self._until[page]
        else:
            # Only a higher priority expires; a lower one lasts.
            level = min(priority, NORMAL_PRIORITY)
        self._level[page], self._end[page] = level, end
        heapq.heappush(self._order, (level, ticket, page))
        if end:
            heapq.heappush(self._ends, (end, ticket, page))
        # Bounds the heaps, however many of their entries are stale.
        if len(self._order) + len(self._ends) > 4 * len(self._ticket):
            self._compact_order()

    def _compact_order(self) -> None:
        """Discard stale entries; amortized, a few per release."""
        self._order = list(
            {e for e in self._order if (self._level[e[2]], self._ticket[e[2]]) == e[:2]}
        )
        self._ends = list({e for e in self._ends if (self._end[e[2]], self._ticket[e[2]]) == e[:2]})
        heapq.heapify(self._order)
        heapq.heapify(self._ends)
