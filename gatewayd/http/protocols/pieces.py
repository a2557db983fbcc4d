"""Writes an answer that comes in pieces: none is asked for before the last one was taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from gatewayd.http.asgi import Header, Send


class PieceWriter:
    """One answer of a protocol.

    It begins with its first piece, so that what fails before has a status of its own.

    Attributes:
        has_begun: whether the status was sent.
    """

    def __init__(
        self,
        send: Send,
        status: int,
        headers: Callable[[], Sequence[Header]],
        *,
        keepalive: bytes,
        seconds: float,
    ) -> None:
        """Take what is known before the first piece.

        Args:
            send: to the client.
            status: of the answer.
            headers: asked for when it begins.
            keepalive: written while nothing comes; empty for nothing.
            seconds: of silence that are too long.
        """
        self.has_begun = False
        self._send = send
        self._status = status
        self._headers = headers
        self._keepalive = keepalive
        self._seconds = seconds
        self._is_sending = self._is_silent = False
        self._pinging: asyncio.Task[None] | None = None

    async def write(self, body: AsyncIterator[bytes]) -> None:
        """Write all of it; what it raises comes out of here."""
        timer = self._arm() if self._keepalive else None
        try:
            async for piece in body:
                if self._pinging is not None:
                    await self._pinging
                    self._pinging = None
                self._is_sending = True
                if not self.has_begun:
                    await self._begin()
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
        if not self.has_begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": last})

    async def _begin(self) -> None:
        self.has_begun = True
        await self._send(
            {
                "type": "http.response.start",
                "status": self._status,
                "headers": [*self._headers(), (b"x-accel-buffering", b"no")],
            }
        )

    async def _ping(self) -> None:
        if not self.has_begun:
            await self._begin()
        await self._send({"type": "http.response.body", "body": self._keepalive, "more_body": True})

    def _arm(self) -> asyncio.TimerHandle:
        """Look twice in the limit whether anything was written since the last time."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._seconds / 2, self._tick)
        return self._timer

    def _tick(self) -> None:
        is_free = self._pinging is None or self._pinging.done()
        if self._is_silent and is_free and not self._is_sending:
            self._pinging = asyncio.ensure_future(self._ping())
        self._is_silent = True
        self._arm()
