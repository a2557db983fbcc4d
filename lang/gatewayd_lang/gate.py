"""What branches begin with is computed once, before any of them goes on.

The first that has something to generate has the server compute it and nothing else; the others
wait for that, and all find it in the server's cache. Sent at once, they might come to several
engines, each of which would compute the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence


class Gate:
    """Of one fork.

    Attributes:
        prefix: token ids that its branches begin with.
    """

    def __init__(self) -> None:
        self.prefix: list[int] = []
        self._is_led = False
        self._opened = asyncio.Event()

    async def enter(self, compute: Callable[[list[int]], Awaitable[None]]) -> None:
        """Compute the prefix, or wait until somebody has, whether or not it went well."""
        if self._is_led:
            await self._opened.wait()
            return
        self._is_led = True
        try:
            await compute(self.prefix)
        finally:
            self._opened.set()


async def enter_all(gates: Sequence[Gate], compute: Callable[[list[int]], Awaitable[None]]) -> None:
    """Pass the gates of all forks that a branch comes from, outermost first.

    All branches meet the gates in this order, so nobody waits for one who waits for him.
    """
    known = 0
    for gate in gates:
        # Between two forks nothing may have been said.
        if len(gate.prefix) > known:
            await gate.enter(compute)
            known = len(gate.prefix)
