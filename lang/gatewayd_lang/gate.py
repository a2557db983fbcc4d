"""Computes the common prefix of branches once, before any of them continues.

The first branch that generates lets the server prefill it and nothing else; the others wait for
that, and all find it in the server's cache. Requests sent at once might reach several engines, each
of which would compute the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence


class Gate:
    """Gate of one fork.

    Attributes:
        prefix: token ids that its branches begin with.
    """

    def __init__(self) -> None:
        self.prefix: list[int] = []
        self._is_led = False
        self._opened = asyncio.Event()

    async def enter(self, compute: Callable[[list[int]], Awaitable[None]]) -> None:
        """Compute the prefix, or wait until another branch has, successfully or not."""
        if self._is_led:
            await self._opened.wait()
            return
        # No await since the check, so that one branch alone computes the prefix.
        self._is_led = True
        try:
            await compute(self.prefix)
        finally:
            # Also after a failure: the others then compute it as part of their own requests.
            self._opened.set()


async def enter_all(gates: Sequence[Gate], compute: Callable[[list[int]], Awaitable[None]]) -> None:
    """Pass the gates of all forks that a branch comes from, outermost first.

    All branches pass the gates in this order, which prevents deadlocks.
    """
    known = 0
    for gate in gates:
        # Nothing may have been appended between two forks.
        if len(gate.prefix) > known:
            await gate.enter(compute)
            known = len(gate.prefix)
