"""The ledgers of the last requests, found by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gatewayd.explain.ledger import Ledger

MOST = 4096


class Recent:
    """A ring: what comes beyond its size lets go of the oldest.

    Args:
        most: requests that are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._line: deque[Ledger] = deque()
        self._by_id: dict[str, Ledger] = {}

    def __len__(self) -> int:
        return len(self._line)

    @property
    def most(self) -> int:
        """Requests that are kept."""
        return self._most

    def add(self, ledger: Ledger) -> None:
        """A request has ended."""
        self._line.append(ledger)
        self._by_id[ledger.request_id] = self._by_id[ledger.answered_id] = ledger
        if len(self._line) > self._most:
            oldest = self._line.popleft()
            for name in {oldest.request_id, oldest.answered_id}:
                # A client may use an id again: the latest has it.
                if self._by_id.get(name) is oldest:
                    del self._by_id[name]

    def find(self, request_id: str) -> Ledger | None:
        """By the id that the client was told, or the gateway's own; the latest of them."""
        return self._by_id.get(request_id)

    def backwards(self) -> Iterator[Ledger]:
        """The latest first; nothing may be added meanwhile."""
        return reversed(self._line)

    def newest(self, count: int) -> list[Ledger]:
        """The latest first."""
        return [self._line[-1 - at] for at in range(min(count, len(self._line)))]

    def slowest(self, count: int) -> list[Ledger]:
        """Of all that are kept, the longest first."""
        return sorted(self._line, key=lambda ledger: -ledger.seconds)[:count]
