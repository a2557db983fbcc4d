"""How much of a tenant's at a time: requests and tokens a minute, requests at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

from gatewayd.errors import RateLimited
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.tenants.billing.costs import RequestedCost

_MINUTE = 60.0
_READS_PER_REQUEST = 10
_LEAST_READS, _LEAST_READS_AT_ONCE = 60, 8
"""Enough to poll once a second, and several things at once."""


class TenantLimits(NamedTuple):
    """Of a tenant; None for no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class Bucket:
    """Fills up within a minute; may be in debt.

    Args:
        size: most that is in it.
        clock: seconds; monotonic.
    """

    __slots__ = ("_clock", "_level", "_seen", "size")

    def __init__(self, size: int, clock: Callable[[], float]) -> None:
        self.size = size
        self._clock = clock
        self._level = float(size)
        self._seen = clock()

    @property
    def level(self) -> float:
        """What is in it now."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._seen) * self.size / _MINUTE)
        self._seen = now
        return self._level

    def take(self, amount: float) -> None:
        """Take from it; with a minus put back."""
        self._level = min(self.size, self.level - amount)

    def seconds_until(self, amount: float) -> float:
        """Until so much is in it."""
        return max(0.0, amount - self.level) * _MINUTE / self.size


def _resized(bucket: Bucket | None, size: int | None, clock: Callable[[], float]) -> Bucket | None:
    """A bucket of another size with the same amount used."""
    if size is None:
        return None
    fresh = Bucket(size, clock)
    if bucket is not None:
        fresh.take(bucket.size - bucket.level)
    return fresh


class ConcurrencySlot:
    """A reference-counted slot of a tenant's concurrency limit.

    The HTTP request holds it until its answer has ended, and each generation that it starts until
    that generation has ended, which may be later.
    """

    __slots__ = ("_free", "_holders")

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1

    def hold(self) -> None:
        """Add a holder."""
        self._holders += 1

    def let_go(self) -> None:
        """Remove a holder; the last one frees the slot."""
        self._holders -= 1
        if not self._holders:
            self._free()


_current: ContextVar[ConcurrencySlot | None] = ContextVar("gatewayd.slot", default=None)


def current_slot() -> ConcurrencySlot | None:
    """The slot of the HTTP request, or of the batch line, that this task works on."""
    return _current.get()


def set_current_slot(slot: ConcurrencySlot | None) -> None:
    """Set the slot of the request that this task works on; None if its tenant has no limits."""
    _current.set(slot)


class _Kind:
    """The rate and concurrency limits of one kind of requests."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.bucket: Bucket | None = None
        self.at_once: int | None = None
        self.num_inside = 0
        self._clock = clock

    def change(self, per_minute: int | None, at_once: int | None) -> None:
        self.bucket = _resized(self.bucket, per_minute, self._clock)
        self.at_once = at_once

    def enter(self) -> ConcurrencySlot:
        if self.bucket is not None:
            self.bucket.take(1)
        self.num_inside += 1
        return ConcurrencySlot(self._leave)

    def _leave(self) -> None:
        self.num_inside -= 1


class RateGate:
    """Enforces a tenant's limits: on arrival of requests, and on their tokens once these are known.

    Reads (all but POST, and cancellations) have limits of their own: polling takes nothing from
    generation, and running work can be watched and cancelled at the concurrency limit.

    Args:
        limits: of the tenant.
        clock: seconds; monotonic.
    """

    def __init__(self, limits: TenantLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._work, self._reads = _Kind("requests", clock), _Kind("reads", clock)
        self._tokens: Bucket | None = None
        self.counts_requests = False
        """Whether ``arrive`` may refuse any."""
        self.limits = TenantLimits()
        self.change(limits)

    def change(self, limits: TenantLimits) -> None:
        """Change the limits; what was used still counts."""
        per_minute, at_once = limits.requests_per_minute, limits.concurrency
        self._work.change(per_minute, at_once)
        self._reads.change(
            None if per_minute is None else max(_LEAST_READS, _READS_PER_REQUEST * per_minute),
            None if at_once is None else max(_LEAST_READS_AT_ONCE, at_once),
        )
        self._tokens = _resized(self._tokens, limits.tokens_per_minute, self._clock)
        self.counts_requests = per_minute is not None or at_once is not None
        self.limits = limits

    def arrive(self, *, is_read: bool) -> ConcurrencySlot:
        """Count a request, before its body is read.

        Returns:
            Its slot, held by the caller.

        Raises:
            RateLimited: a limit is reached; the request is not counted.
        """
        kind = self._reads if is_read else self._work
        if kind.at_once is not None and kind.num_inside >= kind.at_once:
            refusal = self._refusal(f"{kind.at_once} {kind.name} at once", 1.0)
            refusal.offers = ()  # it is unknown when one of them ends
            raise refusal
        if kind.bucket is not None and (seconds := kind.bucket.seconds_until(1)):
            raise self._refusal(f"{kind.bucket.size} {kind.name} a minute", seconds)
        return kind.enter()

    def enter(self, asked: RequestedCost) -> int:
        """Take a request's tokens from the rate limit.

        Args:
            asked: the request; one that may take more tokens than a minute has needs all of it.

        Returns:
            Tokens that it has taken, for ``leave``.

        Raises:
            RateLimited: the limit is reached.
        """
        bucket = self._tokens
        if bucket is None:
            return 0
        taken = min(asked.tokens, bucket.size)
        if seconds := bucket.seconds_until(taken):
            refusal = self._refusal(f"{bucket.size} tokens a minute", seconds)
            if shorter := asked.shorter(int(bucket.level)):
                refusal.offers = [shorter, *refusal.offers]
            raise refusal
        bucket.take(taken)
        return taken

    def leave(self, taken: int, used: int) -> None:
        """A request has ended.

        Args:
            taken: tokens that ``enter`` has taken.
            used: tokens that it has used.
        """
        if self._tokens is not None:
            self._tokens.take(used - taken)

    def room(self, queue: QueueCapacity) -> QueueCapacity:
        """What may come yet: of the limits that there are, else of the queue."""
        room, resets = queue, [0.0]
        if (bucket := self._work.bucket) is not None:
            left = max(0, int(bucket.level))
            room = room._replace(limit_requests=bucket.size, remaining_requests=left)
            resets.append(bucket.seconds_until(bucket.size))
        if (bucket := self._tokens) is not None:
            left = max(0, int(bucket.level))
            room = room._replace(limit_tokens=bucket.size, remaining_tokens=left)
            resets.append(bucket.seconds_until(bucket.size))
        return room._replace(reset_seconds=max(resets)) if len(resets) > 1 else room

    def standing(self) -> dict[str, Any]:
        """Each limit that there is, and what is left of it now."""
        found: dict[str, Any] = {}
        for name, bucket in (("requests", self._work.bucket), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"{name}_per_minute"] = {
                    "limit": bucket.size,
                    "remaining": max(0, int(bucket.level)),
                    "reset_seconds": round(bucket.seconds_until(bucket.size), 3),
                }
        if (most := self.limits.concurrency) is not None:
            left = max(0, most - self._work.num_inside)
            found["concurrency"] = {"limit": most, "remaining": left}
        return found

    def _refusal(self, what: str, seconds: float) -> RateLimited:
        told: dict[str, str] = {}
        for name, bucket in (("requests", self._work.bucket), ("tokens", self._tokens)):
            if bucket is not None:
                told[f"x-ratelimit-limit-{name}"] = str(bucket.size)
                told[f"x-ratelimit-remaining-{name}"] = str(max(0, int(bucket.level)))
                reset = go_duration(bucket.seconds_until(bucket.size))
                told[f"x-ratelimit-reset-{name}"] = reset
        message = f"the tenant's limit of {what} is reached; try again in {seconds:.1f} s"
        seconds = max(seconds, 0.001)
        refusal = RateLimited(message, retry_after=seconds, headers=told)
        refusal.offers = [{"after_seconds": math.ceil(1000 * seconds) / 1000}]
        return refusal


def go_duration(seconds: float) -> str:
    """As OpenAI writes them, after Go's ``time.Duration``: ``12ms``, ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(1000 * seconds)}ms" if seconds > 0 else "0s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown
