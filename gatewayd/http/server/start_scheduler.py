"""Limit on requests started per iteration of the event loop, round-robin by tenant.

A small request runs without yielding from its first byte to the engines, for a fraction of a
millisecond. Hundreds that arrive at once would block the loop: meanwhile no stream is written and
no other client is served.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

_SECONDS = 0.012
"""Time budget of an iteration, after which requests wait for the next one."""
_MOST_RESUMED = 8
"""Waiting requests started per iteration; their cost is not known in advance."""


class StartScheduler:
    """Starts requests: at once while the time budget lasts, else round-robin by tenant."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._until: float | None = None

    def may_start(self) -> bool:
        """Whether a request may start in this iteration; otherwise it must ``wait``."""
        # Requests that wait go first.
        if self._waiting:
            return False
        now = time.monotonic()
        # The first one in this iteration: `_next` resets the budget in the following one.
        if self._until is None:
            self._until = now + _SECONDS
            asyncio.get_running_loop().call_soon(self._next)
        return now < self._until

    async def wait(self, tenant: str) -> None:
        """Wait until the request may start; tenants are served round-robin."""
        loop = asyncio.get_running_loop()
        if self._until is None:
            self._until = 0.0
            loop.call_soon(self._next)
        turn = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        await turn

    def _next(self) -> None:
        """Start waiting requests; called once per iteration of the loop."""
        resumed = 0
        while self._waiting and resumed < _MOST_RESUMED:
            tenant = next(iter(self._waiting))
            turns = self._waiting.pop(tenant)
            turn = turns.popleft()
            if turns:
                # Inserted at the end: round-robin.
                self._waiting[tenant] = turns
            if not turn.done():  # else the request was cancelled
                turn.set_result(None)
                resumed += 1
        if self._waiting or resumed:
            self._until = 0.0  # this iteration is reserved for resumed requests
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._until = None
