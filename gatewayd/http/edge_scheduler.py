"""Schedules connections that have unparsed bytes: pipelined requests and chunks of bodies.

A bounded number per iteration of the event loop: the loop accepts one connection per iteration and
reads from the others, so an iteration must not grow with the number of connections.

Round-robin between authenticated and unauthenticated connections, so that no number of
unauthenticated ones starves a client with a key; within each class round-robin between clients,
then between the connections of a client.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from gatewayd.tenants.principal import Principal

MOST = 8
"""Connections resumed in one iteration: about a millisecond of requests that are refused."""

SECONDS = 0.002
"""Time budget of an iteration: chunks of one byte each take longer to parse."""


class Waiting(Protocol):
    """A connection with bytes to parse."""

    def go_on(self) -> None:
        """Parse the next piece; the connection may have been closed meanwhile."""


class ConnectionScheduler:
    """Round-robin by client; a connection must not queue itself a second time while it waits.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._authenticated, self._unauthenticated = _Queue(), _Queue()
        self._next, self._other = self._authenticated, self._unauthenticated
        self._is_due = False

    def ask(self, connection: Waiting, client: str, principal: Principal | None) -> None:
        """Queue a connection for a later iteration of the event loop.

        Args:
            connection: to resume.
            client: its address, or its network (IPv6 /64).
            principal: who its request was authenticated as; None before a key was accepted.
        """
        if principal is None:
            self._unauthenticated.add(client, connection)
        elif principal.key_id is None:
            # The operator, or everybody where there are no keys.
            self._authenticated.add(client, connection)
        else:
            self._authenticated.add(("tenant", principal.tenant), connection)
        self._call()

    def _call(self) -> None:
        if (self._authenticated or self._unauthenticated) and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        end = self._clock() + SECONDS
        try:
            for _ in range(min(MOST, len(self._authenticated) + len(self._unauthenticated))):
                waiting = self._next or self._other
                self._next, self._other = self._other, self._next
                waiting.take().go_on()
                if self._clock() > end:
                    break
        finally:
            self._call()


class _Queue:
    """A FIFO of connections for each client, served round-robin."""

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
