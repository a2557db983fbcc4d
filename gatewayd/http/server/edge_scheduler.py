"""Schedules connections that have unparsed bytes: long headers, chunks, pipelined requests.

A bounded number per iteration of the event loop: the loop accepts and reads between iterations, so
an iteration must not grow with the number of connections.

Round-robin between authenticated connections, unauthenticated ones, and those whose first request
is incomplete, so that no number of one kind starves the others; within each class round-robin
between clients, then between the connections of a client. Unauthenticated connections also have a
rate limit: their pipelined requests are refused anyway, and unlimited refusals would take a core
from the engine. First requests have no such limit, because they may have a key.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from gatewayd.tenants.principal import Principal

MOST = 8
"""Connections resumed per iteration: about a millisecond of refused requests."""

SECONDS = 0.002
"""Time budget of an iteration, because one-byte chunks take longer to parse."""

REST_SECONDS = 0.02
"""Pause between iterations that resume unauthenticated connections."""


class QueuedConnection(Protocol):
    """A connection with bytes to parse."""

    def resume(self) -> None:
        """Parse the next piece; the connection may have been closed meanwhile."""


class ConnectionScheduler:
    """Round-robin scheduler by client; a connection must not be enqueued twice at a time.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._authenticated, self._first, self._unauthenticated = _Queue(), _Queue(), _Queue()
        self._queues = deque((self._authenticated, self._first, self._unauthenticated))
        self._is_due = False
        self._rest_ends = 0.0
        self._rest: asyncio.TimerHandle | None = None

    def enqueue(
        self,
        connection: QueuedConnection,
        client: str,
        principal: Principal | None,
        *,
        is_first: bool = False,
    ) -> None:
        """Enqueue a connection for a later iteration of the event loop.

        Args:
            connection: to resume.
            client: its address, or its network (IPv6 /64).
            principal: of its request; None before authentication.
            is_first: whether its first request is still incomplete.
        """
        if is_first:
            self._first.add(client, connection)
        elif principal is None:
            self._unauthenticated.add(client, connection)
        elif principal.key_id is None:
            # The operator, or all clients without authentication.
            self._authenticated.add(client, connection)
        else:
            self._authenticated.add(("tenant", principal.tenant), connection)
        self._call()

    def _call(self) -> None:
        if self._is_due:
            return
        is_resting = self._is_resting()
        if self._authenticated or self._first or (self._unauthenticated and not is_resting):
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)
        elif self._unauthenticated and self._rest is None:
            left = self._rest_ends - self._clock()
            self._rest = asyncio.get_running_loop().call_later(max(0.0, left), self._end_rest)

    def _is_resting(self) -> bool:
        return self._clock() < self._rest_ends

    def _end_rest(self) -> None:
        self._rest, self._rest_ends = None, 0.0
        self._call()

    def _run(self) -> None:
        # Reset first: a resumed connection may enqueue itself again.
        self._is_due = False
        is_resting, has_resumed = self._is_resting(), False
        end = self._clock() + SECONDS
        try:
            for _ in range(MOST):
                queue = self._next(is_resting)
                if queue is None:
                    break
                has_resumed |= queue is self._unauthenticated
                queue.pop().resume()
                if self._clock() > end:
                    break
        finally:
            # Also if a connection raises: all others go on.
            if has_resumed:
                self._rest_ends = self._clock() + REST_SECONDS
            self._call()

    def _next(self, is_resting: bool) -> _Queue | None:
        """Return the next non-empty queue in round-robin order; None if there is none."""
        for _ in range(len(self._queues)):
            queue = self._queues[0]
            self._queues.rotate(-1)
            if queue and not (is_resting and queue is self._unauthenticated):
                return queue
        return None


class _Queue:
    """A FIFO of connections for each client, served round-robin."""

    def __init__(self) -> None:
        self._clients: OrderedDict[object, deque[QueuedConnection]] = OrderedDict()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, client: object, connection: QueuedConnection) -> None:
        self._size += 1
        self._clients.setdefault(client, deque()).append(connection)

    def pop(self) -> QueuedConnection:
        client, waiting = self._clients.popitem(last=False)
        self._size -= 1
        connection = waiting.popleft()
        if waiting:
            # To the end, behind all other clients.
            self._clients[client] = waiting
        return connection
