"""Event loop with virtual time: timers fire at once, on any machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def leaping_time(turn_seconds: float = 0.0) -> Iterator[None]:
    """Let the running loop wait for no timer: its clock is set to the first one's time instead.

    For code in which nothing but timers of the loop is waited for: while a thread, a process or
    another machine works, its time would leap on.

    Args:
        turn_seconds: that each turn of the loop takes by its clock.
    """
    loop: Any = asyncio.get_running_loop()
    now, select, time = [loop.time()], loop._selector.select, loop.time

    def leap(timeout: float | None = None) -> Any:
        events = select(None if timeout is None else 0)
        now[0] += turn_seconds
        if timeout and not events:
            now[0] += timeout
        return events

    loop.time, loop._selector.select = lambda: now[0], leap
    try:
        yield
    finally:
        loop.time, loop._selector.select = time, select
