"""Time ledgers of recent requests, indexed by request id."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain, islice

from gatewayd.tracing.time_ledger import TimeLedger

MOST = 4096
REFUSED = 1024
"""Capacity for refused requests; a separate ring, so that floods of them evict no served ones."""


class LedgerRing:
    """Ring buffer of ledgers with an index; the oldest entry is evicted when it is full.

    Args:
        most: capacity, in requests.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.entries: deque[TimeLedger] = deque()
        self._by_request_id: dict[str, TimeLedger] = {}
        self._by_answered_id: dict[str, TimeLedger] = {}

    def add(self, ledger: TimeLedger) -> None:
        """Add the ledger of an ended request."""
        self.entries.append(ledger)
        self._by_request_id[ledger.request_id] = ledger
        if ledger.answered_id != ledger.request_id:
            self._by_answered_id[ledger.answered_id] = ledger
        if len(self.entries) > self._most:
            oldest = self.entries.popleft()
            for names, name in (
                (self._by_request_id, oldest.request_id),
                (self._by_answered_id, oldest.answered_id),
            ):
                # A client may reuse an id; the index then refers to the latest request.
                if names.get(name) is oldest:
                    del names[name]

    def by_request_id(self, request_id: str) -> TimeLedger | None:
        """Find a ledger by the gateway's own id."""
        return self._by_request_id.get(request_id)

    def by_answered_id(self, answered_id: str) -> TimeLedger | None:
        """Find the latest ledger by the ``x-request-id`` of its response."""
        return self._by_answered_id.get(answered_id)


class RecentLedgers:
    """Ledgers of recent requests, in separate rings for served and refused ones.

    Args:
        most: capacity for served requests.
        keep: also called with the ledger of each served request.
        keep_refused: also called with the ledger of each refused request.
    """

    def __init__(
        self,
        most: int = MOST,
        keep: Callable[[TimeLedger], None] = lambda ledger: None,
        keep_refused: Callable[[TimeLedger], None] = lambda ledger: None,
    ) -> None:
        self._most = most
        self._keep, self._keep_refused = keep, keep_refused
        self._served, self._refused = LedgerRing(most), LedgerRing(min(most, REFUSED))

    def __len__(self) -> int:
        return len(self._served.entries)

    @property
    def most(self) -> int:
        """Capacity for served requests."""
        return self._most

    def add(self, ledger: TimeLedger) -> None:
        """Add the ledger of an ended request that was sent to an engine."""
        self._keep(ledger)
        self._served.add(ledger)

    def refuse(self, ledger: TimeLedger) -> None:
        """Add the ledger of a request that was refused before reaching an engine."""
        self._keep_refused(ledger)
        self._refused.add(ledger)

    def find(self, request_id: str) -> TimeLedger | None:
        """Find a ledger by the gateway's own id, else the latest by its ``x-request-id``."""
        rings = self._served, self._refused
        for named in (LedgerRing.by_request_id, LedgerRing.by_answered_id):
            found = [ledger for ring in rings if (ledger := named(ring, request_id)) is not None]
            if found:
                return max(found, key=_end)
        return None

    def backwards(self) -> Iterator[TimeLedger]:
        """Iterate over served requests, newest first; nothing may be added during iteration."""
        return reversed(self._served.entries)

    def newest(self, count: int) -> list[TimeLedger]:
        """Return the ``count`` newest requests, newest first."""
        both = merge(
            reversed(self._served.entries), reversed(self._refused.entries), key=_end, reverse=True
        )
        return list(islice(both, count))

    def slowest(self, count: int) -> list[TimeLedger]:
        """Return the ``count`` slowest buffered requests, slowest first."""
        both = chain(self._served.entries, self._refused.entries)
        return sorted(both, key=lambda ledger: -ledger.seconds)[:count]


def _end(ledger: TimeLedger) -> float:
    return ledger.end
