"""Reading of connections with a limit on unparsed bytes, paused while it is reached.

asyncio passes a protocol up to 256 kB at a time, too late to limit it. Therefore a buffered
protocol reads for the edge, into one buffer that all connections of a server share.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

BODY_READ_BYTES = 64 * 1024
"""Maximum bytes per read of a body of known length."""


class ReadTarget(Protocol):
    """``asyncio.Protocol`` that limits the size of each read."""

    def read_size(self) -> int:
        """Return the maximum bytes to read next, at least one."""

    def data_received(self, data: bytes) -> None:
        """Process received bytes."""

    def eof_received(self) -> bool | None:
        """As ``asyncio.Protocol``; so are the following."""

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's resources."""

    def pause_writing(self) -> None:
        """React to a full write buffer."""

    def resume_writing(self) -> None:
        """React to a drained write buffer."""


class ConnectionReader(asyncio.BufferedProtocol):
    """Buffered protocol that reads for one connection.

    Args:
        edge: receives the bytes and all other events.
        buffer: of ``BODY_READ_BYTES``; received bytes are copied out of it immediately.
    """

    def __init__(self, edge: ReadTarget, buffer: memoryview) -> None:
        self._edge = edge
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next read."""
        # Before each read, as the limit depends on what is expected next.
        return self._buffer[: self._edge.read_size()]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass the received bytes on."""
        self._edge.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """See ``ReadTarget``."""
        return self._edge.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``ReadTarget``."""
        self._edge.connection_lost(exc)

    def pause_writing(self) -> None:
        """See ``ReadTarget``."""
        self._edge.pause_writing()

    def resume_writing(self) -> None:
        """See ``ReadTarget``."""
        self._edge.resume_writing()


class ReadFlow(FlowControl):
    """Flow control that reads while neither uvicorn, for a body, nor the edge pauses it."""

    _is_body_full = False
    is_unparsed_full = False

    def pause_reading(self) -> None:
        """Pause because uvicorn's body buffer is full."""
        self._is_body_full = True
        self._apply()

    def resume_reading(self) -> None:
        """Resume because the app has consumed the body buffer."""
        if self._is_body_full:
            self._is_body_full = False
            self._apply()

    def set_unparsed_full(self, is_full: bool) -> None:
        """Pause or resume by the limit on unparsed bytes."""
        if is_full is not self.is_unparsed_full:
            self.is_unparsed_full = is_full
            self._apply()

    def _apply(self) -> None:
        is_paused = self._is_body_full or self.is_unparsed_full
        if is_paused is not self.read_paused:
            self.read_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
