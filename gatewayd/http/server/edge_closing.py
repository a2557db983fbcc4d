"""Lingering close of connections, so that the last response arrives and the connection ends.

Closing a socket with unread input resets the connection, which may lose the response; a socket
whose client does not read the response would stay open for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LINGER_SECONDS = 2.0
"""Seconds for which input is read and discarded after the last response."""
_LINGER_BYTES = 4 * 1024 * 1024
"""Maximum discarded bytes; a client that sent more without reading the response never will."""


class EdgeTransport:
    """Transport with a lingering ``close``; all other methods are those of asyncio's transport.

    Args:
        transport: asyncio's.
        stall_seconds: within which the client must read the written bytes.
        end_input: discards buffered input; returns whether the client may be sending, or has sent
            bytes that are unread.

    Attributes:
        is_over: same as ``is_closing``, for frequent access.
    """

    def __init__(
        self, transport: asyncio.Transport, stall_seconds: float, end_input: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._stall_seconds = stall_seconds
        self._end_input = end_input
        self._loop = asyncio.get_running_loop()
        self.is_over = False
        self._end: asyncio.TimerHandle | None = None
        self._left = _LINGER_BYTES
        self.write: Callable[[bytes], None] = transport.write
        self.abort = transport.abort
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading
        self.get_extra_info = transport.get_extra_info
        self.get_write_buffer_size = transport.get_write_buffer_size
        self.set_write_buffer_limits = transport.set_write_buffer_limits

    def is_closing(self) -> bool:
        """Whether further input is ignored."""
        return self.is_over

    def close(self, *, at_once: bool = False) -> None:
        """Flush written bytes, then close; with ``at_once``, without reading further input."""
        if self.is_over:
            return
        self.is_over = True
        self.write = _ignore_write  # an app may still write, which is an error after write_eof
        # Called in any case, as it also discards buffered input.
        if not self._end_input() or at_once:
            self._transport.close()
        else:
            # Half-close: the client sees the end of the response while its input is discarded.
            self._transport.write_eof()
            self._transport.resume_reading()
        # Unsent bytes are limited by the stall time, everything else by the linger time.
        if self._transport.get_write_buffer_size():
            self._end = self._loop.call_later(self._stall_seconds, self.abort)
        elif not self._transport.is_closing():
            self._end = self._loop.call_later(_LINGER_SECONDS, self._transport.close)

    def discard(self, num_bytes: int) -> None:
        """Discard input received after the last response; close beyond a limit."""
        self._left -= num_bytes
        if self._left <= 0:
            self._transport.close()

    def on_connection_lost(self) -> None:
        """Cancel timers because the connection is lost."""
        self.is_over = True
        self._end_input = _nothing_left  # breaks the reference cycle with the connection
        if self._end is not None:
            self._end.cancel()


def _nothing_left() -> bool:
    """Return that no input can follow."""
    return False


def _ignore_write(data: bytes) -> None:
    """Ignore a write after the close."""
