"""Limits on the use of one upstream: requests at a time, waiting ones, and requests a minute."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

from gatewayd.errors import UpstreamBusy
from gatewayd.fairness.queue_capacity import QueueCapacity

_NO_LIMIT = 2**31 - 1


class UpstreamLimits:
    """Slots of an upstream, in order of arrival, and a budget of requests.

    Attributes:
        num_running: slots in use.

    Args:
        name: of the upstream.
        concurrency: requests at a time.
        max_waiting: requests that may wait for a slot.
        requests_per_minute: token bucket of requests, filled continuously; None for no limit.
        clock: seconds; monotonic.
    """

    def __init__(
        self,
        name: str,
        *,
        concurrency: int,
        max_waiting: int,
        requests_per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._concurrency = concurrency
        self._max_waiting = max_waiting
        self._per_minute = requests_per_minute
        self._clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._budget = float(requests_per_minute or 0)
        self._filled_at = clock()
        self.num_running = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a slot."""
        return len(self._waiting)

    @property
    def capacity(self) -> QueueCapacity:
        """Remaining capacity, for rate-limit headers; tokens are not limited."""
        most = self._concurrency + self._max_waiting
        left = most - self.num_running - self.num_waiting
        if self._per_minute is not None:
            self._fill()
            most, left = min(most, self._per_minute), min(left, int(self._budget))
        return QueueCapacity(most, max(0, left), _NO_LIMIT, _NO_LIMIT, 0.0)

    def slot(self) -> UpstreamSlot:
        """Return a slot, or a place in the queue for one, and charge this minute's budget.

        Raises:
            UpstreamBusy: too many wait, or the budget is used up.
        """
        is_free = self.num_running < self._concurrency
        if not is_free and self.num_waiting >= self._max_waiting:
            raise UpstreamBusy(
                f"{self.num_waiting} requests wait for the upstream {self._name}; the maximum is "
                f"{self._max_waiting}: retry later",
                retry_after=1.0,
            )
        if self._per_minute is not None:
            self._fill()
            if self._budget < 1:
                raise UpstreamBusy(
                    f"the upstream {self._name} may get {self._per_minute} requests a minute: "
                    "retry later",
                    retry_after=(1 - self._budget) * 60 / self._per_minute,
                )
            self._budget -= 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if is_free:
            self.num_running += 1
            turn.set_result(None)
        else:
            self._waiting.append(turn)
        return UpstreamSlot(self, turn)

    def leave(self, turn: asyncio.Future[None], *, is_used: bool) -> None:
        """Leave the queue, or hand the slot to the request that has waited longest.

        Args:
            turn: of the slot.
            is_used: whether a request was sent; otherwise the budget gets it back.
        """
        if not is_used and self._per_minute is not None:
            self._budget = min(self._per_minute, self._budget + 1)
        if turn in self._waiting:
            self._waiting.remove(turn)
            return
        while self._waiting:
            following = self._waiting.popleft()
            if not following.done():
                following.set_result(None)
                return
        self.num_running -= 1

    def _fill(self) -> None:
        now, most = self._clock(), self._per_minute or 0
        self._budget = min(most, self._budget + (now - self._filled_at) * most / 60)
        self._filled_at = now


class UpstreamSlot:
    """Slot of one request, or its place in the queue.

    Args:
        limits: of the upstream.
        turn: completed when it has the slot.
    """

    def __init__(self, limits: UpstreamLimits, turn: asyncio.Future[None]) -> None:
        self._limits = limits
        self._turn = turn
        self._is_released = False

    async def wait(self) -> None:
        """Wait for the slot."""
        # Shielded: a cancelled wait leaves the queue by `release`.
        await asyncio.shield(self._turn)

    def release(self, *, is_used: bool) -> None:
        """Release the slot, or leave the queue. Idempotent.

        Args:
            is_used: whether a request may have been sent.
        """
        if not self._is_released:
            self._is_released = True
            self._limits.leave(self._turn, is_used=is_used)
