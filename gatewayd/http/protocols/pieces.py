"""Streaming of responses with backpressure: a piece is requested after the last one was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from gatewayd.http.asgi import Header, Send


@dataclass(slots=True, eq=False, repr=False)
class PieceWriter:
    """Writer of one streamed response of a protocol.

    The response starts with its first piece, so that earlier failures have their own status.

    Args:
        send: sends ASGI messages to the client.
        status: of the response.
        headers: called for the headers when the response starts.

    Attributes:
        keepalive: written while idle; empty for nothing.
        seconds: maximum idle time.
        has_started: whether the status was sent.
    """

    _send: Send
    _status: int
    _headers: Callable[[], Sequence[Header]]
    _: KW_ONLY
    keepalive: bytes
    seconds: float
    has_started: bool = False
    _is_sending: bool = False
    _is_silent: bool = False
    _pinging: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle = field(init=False)

    async def write(self, body: AsyncIterator[bytes]) -> None:
        """Write all pieces; exceptions of the iterator propagate."""
        timer = self._arm() if self.keepalive else None
        try:
            async for piece in body:
                # A keep-alive that is being sent goes first: two sends must not overlap.
                if self._pinging is not None:
                    await self._pinging
                    self._pinging = None
                self._is_sending = True
                if not self.has_started:
                    await self._start()
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
                self._is_sending = self._is_silent = False
        finally:
            if timer is not None:
                self._timer.cancel()
            if self._pinging is not None:
                await self._pinging
        await self.end(b"")

    async def end(self, last: bytes) -> None:
        """Write the last piece."""
        if not self.has_started:
            await self._start()
        await self._send({"type": "http.response.body", "body": last})

    async def _start(self) -> None:
        self.has_started = True
        await self._send(
            {
                "type": "http.response.start",
                "status": self._status,
                "headers": [*self._headers(), (b"x-accel-buffering", b"no")],
            }
        )

    async def _ping(self) -> None:
        if not self.has_started:
            await self._start()
        await self._send({"type": "http.response.body", "body": self.keepalive, "more_body": True})

    def _arm(self) -> asyncio.TimerHandle:
        """Start the timer that checks for idleness, twice per maximum idle time."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.seconds / 2, self._tick)
        return self._timer

    def _tick(self) -> None:
        is_free = self._pinging is None or self._pinging.done()
        # Silent for a whole tick; never into the middle of a piece.
        if self._is_silent and is_free and not self._is_sending:
            self._pinging = asyncio.ensure_future(self._ping())
        self._is_silent = True
        self._arm()
