"""In which order connections go on whose next bytes have come before their turn.

Some of all of them in each turn of the event loop: the loop accepts one connection in a turn, and
reads what others have sent, so a turn must not be as long as there are connections.

Connections whose key was good and those of strangers alternate, so that no number of strangers
keeps a client with a key waiting. Of each kind, clients take turns, then the connections of each.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from gatewayd.tenants.principal import Principal

MOST = 8
"""That go on in one turn: about a millisecond of requests that are refused."""

SECONDS = 0.002
"""After which no other one does: chunks of a byte each take longer to parse."""


class Waiting(Protocol):
    """A connection with bytes to parse."""

    def go_on(self) -> None:
        """It has its turn; it may have been closed meanwhile."""


class Turns:
    """Round robin by client; each connection waits once at most, which it sees to itself.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._known, self._strangers = _Queue(), _Queue()
        self._next, self._other = self._known, self._strangers
        self._is_due = False

    def ask(self, connection: Waiting, client: str, principal: Principal | None) -> None:
        """Let it go on in a later turn of the event loop.

        Args:
            connection: that waits.
            client: its address, or the network of one who has many.
            principal: whose key its request has; None before one was found good.
        """
        if principal is None:
            self._strangers.add(client, connection)
        elif principal.key_id is None:
            # The operator, or everybody where there are no keys.
            self._known.add(client, connection)
        else:
            self._known.add(("tenant", principal.tenant), connection)
        self._call()

    def _call(self) -> None:
        if (self._known or self._strangers) and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        end = self._clock() + SECONDS
        try:
            for _ in range(min(MOST, len(self._known) + len(self._strangers))):
                waiting = self._next or self._other
                self._next, self._other = self._other, self._next
                waiting.take().go_on()
                if self._clock() > end:
                    break
        finally:
            self._call()


class _Queue:
    """Connections by client: of each client one, then one of the next."""

    def __init__(self) -> None:
        self._clients: OrderedDict[object, deque[Waiting]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, client: object, connection: Waiting) -> None:
        self._size += 1
        self._clients.setdefault(client, deque()).append(connection)

    def take(self) -> Waiting:
        client, waiting = self._clients.popitem(last=False)
        self._size -= 1
        connection = waiting.popleft()
        if waiting:
            self._clients[client] = waiting
        return connection
