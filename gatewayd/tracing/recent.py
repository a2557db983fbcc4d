"""The ledgers of the last requests, found by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain, islice

from gatewayd.tracing.time_ledger import TimeLedger

MOST = 4096
REFUSED = 1024
"""Of requests that no engine was sent, in a ring of their own: who hammers pushes out no others."""


class Ring:
    """What comes beyond its size lets go of the oldest.

    Args:
        most: requests that are kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.line: deque[TimeLedger] = deque()
        self._own: dict[str, TimeLedger] = {}
        self._told: dict[str, TimeLedger] = {}

    def add(self, ledger: TimeLedger) -> None:
        """A request has ended."""
        self.line.append(ledger)
        self._own[ledger.request_id] = ledger
        if ledger.answered_id != ledger.request_id:
            self._told[ledger.answered_id] = ledger
        if len(self.line) > self._most:
            oldest = self.line.popleft()
            for names, name in (
                (self._own, oldest.request_id),
                (self._told, oldest.answered_id),
            ):
                # A client may use an id again: the latest has it.
                if names.get(name) is oldest:
                    del names[name]

    def owns(self, request_id: str) -> TimeLedger | None:
        """By the gateway's own id."""
        return self._own.get(request_id)

    def told(self, answered_id: str) -> TimeLedger | None:
        """By the one that its client was told: the latest of them."""
        return self._told.get(answered_id)


class Recent:
    """Those that engines were sent, and those that were refused.

    Args:
        most: requests that are kept of the first.
        keep: told each of the first, too.
        keep_refused: told each of the others.
    """

    def __init__(
        self,
        most: int = MOST,
        keep: Callable[[TimeLedger], None] = lambda ledger: None,
        keep_refused: Callable[[TimeLedger], None] = lambda ledger: None,
    ) -> None:
        self._most = most
        self._keep, self._keep_refused = keep, keep_refused
        self._served, self._refused = Ring(most), Ring(min(most, REFUSED))

    def __len__(self) -> int:
        return len(self._served.line)

    @property
    def most(self) -> int:
        """Requests that are kept."""
        return self._most

    def add(self, ledger: TimeLedger) -> None:
        """A request has ended that an engine was sent."""
        self._keep(ledger)
        self._served.add(ledger)

    def refuse(self, ledger: TimeLedger) -> None:
        """One has ended that none was sent."""
        self._keep_refused(ledger)
        self._refused.add(ledger)

    def find(self, request_id: str) -> TimeLedger | None:
        """By the gateway's own id, else by the one that the client was told: the latest of them."""
        rings = self._served, self._refused
        for named in (Ring.owns, Ring.told):
            found = [ledger for ring in rings if (ledger := named(ring, request_id)) is not None]
            if found:
                return max(found, key=_end)
        return None

    def backwards(self) -> Iterator[TimeLedger]:
        """The latest first of those that engines were sent; nothing may be added meanwhile."""
        return reversed(self._served.line)

    def newest(self, count: int) -> list[TimeLedger]:
        """The latest first."""
        both = merge(
            reversed(self._served.line), reversed(self._refused.line), key=_end, reverse=True
        )
        return list(islice(both, count))

    def slowest(self, count: int) -> list[TimeLedger]:
        """Of all that are kept, the longest first."""
        both = chain(self._served.line, self._refused.line)
        return sorted(both, key=lambda ledger: -ledger.seconds)[:count]


def _end(ledger: TimeLedger) -> float:
    return ledger.end
