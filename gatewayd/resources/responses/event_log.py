"""Event log of a running response, for readers that may join late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from gatewayd.errors import ClientGone

_PIECE_BYTES = 64 << 10


class ResponseLog:
    """Append-only log of encoded events; the index of an event is its number."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.is_closed = False
        self._waiting: set[asyncio.Future[None]] = set()

    def add(self, *events: bytes) -> None:
        """Append events, and wake readers."""
        self.events += events
        self._wake()

    def close(self) -> None:
        """Close the log, and wake readers."""
        self.is_closed = True
        self._wake()

    async def wait_grown(self) -> None:
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
    """Reads a log to its end, in pieces of up to 64 KiB with the events since the last piece.

    Args:
        log: the log.
        after: number of the last event to skip; -1 for none.
    """

    def __init__(self, log: ResponseLog, after: int) -> None:
        self._log = log
        self._next = after + 1
        self._rest = b""
        self._has_left = False

    def stop(self) -> None:
        """Stop reading because the client has disconnected."""
        self._has_left = True
        # Adds nothing, but wakes the reader.
        self._log.add()

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Return the reader itself, for one iteration."""
        return self

    async def __anext__(self) -> bytes:
        """Wait for the next piece.

        Raises:
            ClientGone: the client has disconnected.
        """
        while True:
            # No await between these checks and the waiter of `wait_grown`: no event is missed.
            if self._has_left:
                raise ClientGone
            if self._rest or self._next < len(self._log.events):
                return self._piece()
            if self._log.is_closed:
                raise StopAsyncIteration
            await self._log.wait_grown()

    def _piece(self) -> bytes:
        """Copy one piece only, since readers may be slow and many."""
        found, size, events = [self._rest], len(self._rest), self._log.events
        while size < _PIECE_BYTES and self._next < len(events):
            found.append(events[self._next])
            size += len(events[self._next])
            self._next += 1
        piece = b"".join(found)
        # A piece may end within an event: the client reassembles bytes, not pieces.
        self._rest = piece[_PIECE_BYTES:]
        return piece[:_PIECE_BYTES]
