"""Event loop gaps: its longest blocked times, corrected for other load."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class Gaps:
    """What was seen of a loop.

    Attributes:
        each: seconds between two of its turns, but for those in which no thread of this process
            computed: others had the processors then.
        computed: processor seconds of this process from the beginning to the end.
    """

    each: list[float] = field(default_factory=list)
    computed: float = 0.0

    @property
    def share(self) -> float:
        """Of all that was computed, what the loop was held up for at once."""
        return max(self.each) / self.computed


@contextlib.asynccontextmanager
async def gaps() -> AsyncIterator[Gaps]:
    """Watch the running loop for as long as the block takes."""
    found = Gaps()

    async def tick() -> None:
        last = time.perf_counter(), time.process_time()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter(), time.process_time()
            found.each.append(min(now[0] - last[0], now[1] - last[1]))
            last = now

    ticking, began = asyncio.create_task(tick()), time.process_time()
    try:
        yield found
    finally:
        await asyncio.sleep(0.01)  # the last gap is over, too
        found.computed = time.process_time() - began
        ticking.cancel()
