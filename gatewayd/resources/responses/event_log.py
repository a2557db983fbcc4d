"""The events of a response that runs, from the first, for readers that come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gatewayd.errors import ClientGone

_PIECE_BYTES = 64 << 10


class ResponseLog:
    """Grows until it is closed; the place of an event in it is its number."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, *events: bytes) -> None:
        """What has happened next."""
        self.events += events
        self._wake()

    def close(self) -> None:
        """Nothing more will happen."""
        self.is_closed = True
        self._wake()

    async def grown(self) -> None:
        """Wait for the next ``add`` or ``close``."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)


class ResponseLogReader:
    """Reads a log to its end: in each piece what has come since the last one, up to 64 KiB.

    Args:
        log: to read.
        after: the number up to which events are left out; -1 for none.
    """

    def __init__(self, log: ResponseLog, after: int) -> None:
        self._log = log
        self._next = after + 1
        self._rest = b""
        self._has_left = False

    def leave(self) -> None:
        """The client has gone: whoever reads is told."""
        self._has_left = True
        self._log.add()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """To be read once."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for what comes next.

        Raises:
            ClientGone: it has left.
        """
        while True:
            if self._has_left:
                raise ClientGone
            if self._rest or self._next < len(self._log.events):
                return self._piece()
            if self._log.is_closed:
                raise StopAsyncIteration
            await self._log.grown()

    def _piece(self) -> bytes:
        """Whoever is slow has a copy of one piece, not of all there is."""
        found, size, events = [self._rest], len(self._rest), self._log.events
        while size < _PIECE_BYTES and self._next < len(events):
            found.append(events[self._next])
            size += len(events[self._next])
            self._next += 1
        piece = b"".join(found)
        self._rest = piece[_PIECE_BYTES:]
        return piece[:_PIECE_BYTES]
