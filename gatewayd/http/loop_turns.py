"""Turns of the event loop: how much of one may go to requests that begin, and whose is next.

A small request is worked on without a pause from its first byte to the engines, for a fraction of
a millisecond. Hundreds that come at once would be a long time in which no stream is written and
nobody else is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

_SECONDS = 0.012
"""Of a turn of the loop, after which requests wait for the next one."""
_MOST_RESUMED = 8
"""Of those that wait, in a turn; what each takes is not known before."""


class LoopTurns:
    """Lets requests begin: at once while there are few, else tenant by tenant."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._until: float | None = None

    def is_now(self) -> bool:
        """Whether a request may begin in this turn; else it has to ``wait``."""
        if self._waiting:
            return False
        now = time.monotonic()
        if self._until is None:
            self._until = now + _SECONDS
            asyncio.get_running_loop().call_soon(self._next)
        return now < self._until

    async def wait(self, tenant: str) -> None:
        """Wait for a turn; tenants have theirs one after the other."""
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = 0.0
            loop.call_soon(self._next)
        turn = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        await turn

    def _next(self) -> None:
        """The loop begins another turn."""
        resumed = 0
        while self._waiting and resumed < _MOST_RESUMED:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                self._waiting[tenant] = turns
            if not turn.done():  # else whoever waited was cancelled
                turn.set_result(None)
                resumed += 1
        if self._waiting or resumed:
            self._until = 0.0  # those that are resumed have this turn
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._until = None
