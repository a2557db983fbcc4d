"""Closes a connection so that its last answer arrives, and so that it does end.

A socket that is closed with bytes of its client unread resets the connection, and the answer may be
lost with it; one whose client does not read what was written would stay open for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_LINGER_SECONDS = 2.0
"""For which what still comes is read and thrown away, after the last answer."""
_LINGER_BYTES = 4 * 1024 * 1024
"""Of it; a client that has sent them without looking at its answer is not going to."""


class EdgeTransport:
    """A transport with another ``close``; what else uvicorn and the edge use of it is its own.

    Args:
        transport: asyncio's.
        stall_seconds: in which the client reads what is written.
        end_input: drops what has come; whether the client may be sending, or has sent what is
            not read.

    Attributes:
        is_over: what ``is_closing`` says, for those who ask often.
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
        """Whether nothing of what comes is looked at any more."""
        return self.is_over

    def close(self, *, at_once: bool = False) -> None:
        """Write what is to be written, then end; ``at_once``: whatever the client sends."""
        if self.is_over:
            return
        self.is_over = True
        self.write = _drop  # an app may still be at it; after the end of a stream that is an error
        if not self._end_input() or at_once:
            self._transport.close()
        else:
            self._transport.write_eof()
            self._transport.resume_reading()
        if self._transport.get_write_buffer_size():
            self._end = self._loop.call_later(self._stall_seconds, self.abort)
        elif not self._transport.is_closing():
            self._end = self._loop.call_later(_LINGER_SECONDS, self._transport.close)

    def throw_away(self, num_bytes: int) -> None:
        """So much has come after the last answer; beyond a limit nothing more is read."""
        self._left -= num_bytes
        if self._left <= 0:
            self._transport.close()

    def ended(self) -> None:
        """The connection is lost."""
        self.is_over = True
        self._end_input = _nothing_left  # it leads to the connection, which leads here
        if self._end is not None:
            self._end.cancel()


def _nothing_left() -> bool:
    """Nothing can come."""
    return False


def _drop(data: bytes) -> None:
    """Nobody will read it."""
