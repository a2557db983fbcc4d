"""Signal from the choices of a request to the writer of its response that there is new output.

The writer's task awaits ``waiter``. A stream also gives a function that writes chunks without it:
resuming a task for each token costs several times what encoding and writing one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context


class OutputSignal:
    """Signal for one writer.

    Attributes:
        is_awake: whether output arrived since the writer last set it to false.
    """

    __slots__ = ("_loop", "_waiter", "_write", "is_awake")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiter: asyncio.Future[None] | None = None
        self._write: tuple[Callable[[], bool], Context] | None = None
        self.is_awake = False

    def wake(self) -> None:
        """Wake the writer: output is buffered."""
        # At most one wake-up until the writer runs, however many choices have output.
        if not self.is_awake:
            self.is_awake = True
            waiter = self._waiter
            if waiter is None or waiter.done():
                return
            if self._write is None:
                waiter.set_result(None)
            else:
                write, context = self._write
                self._loop.call_soon(self._write_or_wake, write, waiter, context=context)

    def waiter(self) -> asyncio.Future[None]:
        """Create the future that ``wake`` completes; one at a time, while ``is_awake`` is false."""
        self._waiter = self._loop.create_future()
        return self._waiter

    def write_with(self, write: Callable[[], bool]) -> None:
        """Have new output written while the writer's task waits, without waking it.

        Args:
            write: called in the present context, after all output of a step has arrived. Returns
                whether it has written that; if not, the task is woken.
        """
        self._write = write, copy_context()

    def close(self) -> None:
        """Release the function that writes."""
        self._write = None

    def _write_or_wake(self, write: Callable[[], bool], waiter: asyncio.Future[None]) -> None:
        if not waiter.done():
            self.is_awake = False
            if not write():
                self.is_awake = True
                waiter.set_result(None)
