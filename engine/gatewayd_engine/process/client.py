"""The daemon's end of one engine: frames over an asyncio transport. Imports no torch.

It knows nothing of requests; it says what the engine said, in order, and when it is lost.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.frames import FrameError, encode, event_parser
from gatewayd_engine.process.messages import Command, Event


class EngineClient(asyncio.Protocol):
    """Calls ``on_event`` for each event, then ``on_lost`` exactly once.

    Both are called from the event loop. ``on_lost`` is told None when the engine closed the
    stream, and otherwise why it ended. After ``close`` neither is called.
    """

    def __init__(
        self, on_event: Callable[[Event], None], on_lost: Callable[[Exception | None], None]
    ) -> None:
        self._on_event = on_event
        self._on_lost = on_lost
        self._parser = event_parser()
        self._transport: asyncio.Transport | None = None
        self._is_over = False

    @classmethod
    async def connect(
        cls,
        stream: socket.socket,
        on_event: Callable[[Event], None],
        on_lost: Callable[[Exception | None], None],
    ) -> EngineClient:
        """Take over our end of a connected stream socket; it is closed with the client."""
        stream.setblocking(False)
        loop = asyncio.get_running_loop()
        client = cls(on_event, on_lost)
        if stream.family == socket.AF_UNIX:
            await loop.create_unix_connection(lambda: client, sock=stream)
        else:
            await loop.create_connection(lambda: client, sock=stream)
        return client

    def send(self, command: Command | EngineConfig) -> None:
        """Send a command; never blocks. Silent when the engine is lost, as ``on_lost`` says so.

        Raises:
            FrameError: the command is larger than a frame; nothing was sent.
        """
        frame = encode(command)
        if self._transport is not None and not self._is_over:
            self._transport.write(frame)

    def close(self) -> None:
        """Drop the connection; nothing is called from now on."""
        self._is_over = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the stream is ours."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Asyncio: bytes have come."""
        if self._is_over:
            return
        try:
            events = self._parser.feed(data)
        except FrameError as error:
            self._lose(error)
            return
        for event in events:
            if self._is_over:  # an earlier event made the owner close us
                return
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the stream has ended."""
        if exc is None and self._parser.num_pending_bytes:
            exc = FrameError("the stream ended inside a frame")
        self._lose(exc)

    def _lose(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        self.close()
        self._on_lost(exc)
