"""The ledgers of the last requests, found by their ids."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from gatewayd.explain.ledger import Ledger

MOST = 4096


class Recent:
    """A ring: what comes beyond its size lets go of the oldest.

    Args:
        most: requests that are kept.
        keep: told each of them, too.
    """

    def __init__(
        self, most: int = MOST, keep: Callable[[Ledger], None] = lambda ledger: None
    ) -> None:
        self._most = most
        self._keep = keep
        self._line: deque[Ledger] = deque()
        self._own: dict[str, Ledger] = {}
        self._told: dict[str, Ledger] = {}

    def __len__(self) -> int:
        return len(self._line)

    @property
    def most(self) -> int:
        """Requests that are kept."""
        return self._most

    def add(self, ledger: Ledger) -> None:
        """A request has ended."""
        self._keep(ledger)
        self._line.append(ledger)
        self._own[ledger.request_id] = ledger
        if ledger.answered_id != ledger.request_id:
            self._told[ledger.answered_id] = ledger
        if len(self._line) > self._most:
            oldest = self._line.popleft()
            for names, name in (
                (self._own, oldest.request_id),
                (self._told, oldest.answered_id),
            ):
                # A client may use an id again: the latest has it.
                if names.get(name) is oldest:
                    del names[name]

    def find(self, request_id: str) -> Ledger | None:
        """By the gateway's own id, else by the one that the client was told: the latest of them."""
        return self._own.get(request_id) or self._told.get(request_id)

    def backwards(self) -> Iterator[Ledger]:
        """The latest first; nothing may be added meanwhile."""
        return reversed(self._line)

    def newest(self, count: int) -> list[Ledger]:
        """The latest first."""
        return [self._line[-1 - at] for at in range(min(count, len(self._line)))]

    def slowest(self, count: int) -> list[Ledger]:
        """Of all that are kept, the longest first."""
        return sorted(self._line, key=lambda ledger: -ledger.seconds)[:count]
