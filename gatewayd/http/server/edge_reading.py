"""How a connection is read: no more than it may have unparsed, and paused while it has that.

asyncio hands a protocol up to 256 kB at a time, which is too late to take less of it; so a
buffered protocol reads for the edge, into one buffer that all connections of a server share.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from uvicorn.protocols.http.flow_control import FlowControl

BODY_READ_BYTES = 64 * 1024
"""That are read at a time of a body whose length is known."""


class Read(Protocol):
    """What is read for: an ``asyncio.Protocol`` that says how much it takes."""

    def read_size(self) -> int:
        """Bytes to read next, at least one."""

    def data_received(self, data: bytes) -> None:
        """They have come."""

    def eof_received(self) -> bool | None:
        """As ``asyncio.Protocol``; so are the following."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""

    def pause_writing(self) -> None:
        """Answers pile up."""

    def resume_writing(self) -> None:
        """They no longer do."""


class ConnectionReader(asyncio.BufferedProtocol):
    """Reads for one connection.

    Args:
        edge: that gets the bytes, and whatever else happens.
        buffer: of ``BODY_READ_BYTES``; what is read is copied out of it at once.
    """

    def __init__(self, edge: Read, buffer: memoryview) -> None:
        self._edge = edge
        self._buffer = buffer

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        return self._buffer[: self._edge.read_size()]

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        self._edge.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        """See ``Read``."""
        return self._edge.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Read``."""
        self._edge.connection_lost(exc)

    def pause_writing(self) -> None:
        """See ``Read``."""
        self._edge.pause_writing()

    def resume_writing(self) -> None:
        """See ``Read``."""
        self._edge.resume_writing()


class Flow(FlowControl):
    """Reading goes on when neither uvicorn, for a body, nor the edge holds it."""

    _is_body_full = False
    is_held = False

    def pause_reading(self) -> None:
        """The body has enough for now."""
        self._is_body_full = True
        self._apply()

    def resume_reading(self) -> None:
        """Somebody takes it."""
        if self._is_body_full:
            self._is_body_full = False
            self._apply()

    def hold_reading(self, is_full: bool) -> None:
        """As much is unparsed as may be, or no longer."""
        if is_full is not self.is_held:
            self.is_held = is_full
            self._apply()

    def _apply(self) -> None:
        is_paused = self._is_body_full or self.is_held
        if is_paused is not self.read_paused:
            self.read_paused = is_paused
            if is_paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()
