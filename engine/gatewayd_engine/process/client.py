"""Client of one engine process: frames over an asyncio transport. Imports no torch.

It is independent of requests: it delivers the engine's events in order, and reports its loss.
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
    """Asyncio client: calls ``on_event`` for each event, then ``on_lost`` exactly once.

    Both are called from the event loop. ``on_lost`` gets None when the engine closed the
    stream, and otherwise the error. After ``close`` neither is called.
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
        """Take over the daemon's end of a connected stream socket; ``close`` closes it."""
        # asyncio's transports require non-blocking sockets.
        stream.setblocking(False)
        loop = asyncio.get_running_loop()
        client = cls(on_event, on_lost)
        if stream.family == socket.AF_UNIX:
            await loop.create_unix_connection(lambda: client, sock=stream)
        else:
            await loop.create_connection(lambda: client, sock=stream)
        return client

    def send(self, command: Command | EngineConfig) -> None:
        """Send a command; never blocks. Ignored after the loss of the engine.

        Raises:
            FrameError: the command is larger than a frame; nothing was sent.
        """
        frame = encode(command)
        if self._transport is not None and not self._is_over:
            self._transport.write(frame)

    def close(self) -> None:
        """Close the connection; no callback is called afterwards."""
        self._is_over = True
        if self._transport is not None:
            # Not ``close``, which would wait until buffered commands are written to an engine that
            # may hang.
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Asyncio: the stream is connected."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Asyncio: data has arrived."""
        if self._is_over:
            return
        try:
            events = self._parser.feed(data)
        except FrameError as error:
            self._lose(error)
            return
        for event in events:
            if self._is_over:  # the callback of an earlier event closed this client
                return
            self._on_event(event)

    def connection_lost(self, exc: Exception | None) -> None:
        """Asyncio: the stream has ended."""
        # A crash in the middle of a write also ends the stream without an error.
        if exc is None and self._parser.num_pending_bytes:
            exc = FrameError("the stream ended inside a frame")
        self._lose(exc)

    def _lose(self, exc: Exception | None) -> None:
        if self._is_over:
            return
        # First: aborting the transport ends in ``connection_lost``, which must not report the loss
        # again.
        self.close()
        self._on_lost(exc)
