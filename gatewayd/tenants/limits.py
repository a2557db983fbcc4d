"""Rate and concurrency limits of a tenant: requests and tokens per minute, parallel requests."""

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
"""Enough to poll once a second, and several resources in parallel."""


class TenantLimits(NamedTuple):
    """Limits of a tenant; None for no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrency: int | None = None


class TokenBucket:
    """Token bucket that refills within a minute; its level may be negative.

    Args:
        size: its capacity.
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
        """The present level."""
        now = self._clock()
        # Refilled when it is read: no timer for each tenant.
        self._level = min(self.size, self._level + (now - self._seen) * self.size / _MINUTE)
        self._seen = now
        return self._level

    def consume(self, amount: float) -> None:
        """Consume an amount; a negative one is refunded."""
        # A refund never fills it beyond its size.
        self._level = min(self.size, self.level - amount)

    def seconds_until(self, amount: float) -> float:
        """Seconds until the level reaches an amount."""
        return max(0.0, amount - self.level) * _MINUTE / self.size


def _resized(
    bucket: TokenBucket | None, size: int | None, clock: Callable[[], float]
) -> TokenBucket | None:
    """A bucket of another size with the same amount consumed."""
    if size is None:
        return None
    fresh = TokenBucket(size, clock)
    if bucket is not None:
        # The amount, not the share: raising a limit does not refill what was used.
        fresh.consume(bucket.size - bucket.level)
    return fresh


class ConcurrencySlot:
    """A reference-counted slot of a tenant's concurrency limit.

    The HTTP request holds it until its response has ended, and each generation that it starts until
    that generation has ended, which may be later.
    """

    __slots__ = ("_free", "_holders")

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._holders = 1

    def acquire(self) -> None:
        """Add a holder."""
        self._holders += 1

    def release(self) -> None:
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
        self.bucket: TokenBucket | None = None
        self.at_once: int | None = None
        self.num_inside = 0
        self._clock = clock

    def change(self, per_minute: int | None, at_once: int | None) -> None:
        self.bucket = _resized(self.bucket, per_minute, self._clock)
        self.at_once = at_once

    def acquire_slot(self) -> ConcurrencySlot:
        if self.bucket is not None:
            self.bucket.consume(1)
        self.num_inside += 1
        return ConcurrencySlot(self._release_slot)

    def _release_slot(self) -> None:
        self.num_inside -= 1


class RateGate:
    """Enforces a tenant's limits: on arrival of requests, and on their tokens once these are known.

    Reads (all but POST, and cancellations) have limits of their own: polling consumes nothing of
    the generation limits, and running work can be polled and cancelled at the concurrency limit.

    Args:
        limits: limits of the tenant.
        clock: seconds; monotonic.
    """

    def __init__(self, limits: TenantLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._work, self._reads = _Kind("requests", clock), _Kind("reads", clock)
        self._tokens: TokenBucket | None = None
        self.counts_requests = False
        """Whether ``acquire_slot`` may refuse requests."""
        self.limits = TenantLimits()
        self.change(limits)

    def change(self, limits: TenantLimits) -> None:
        """Change the limits; amounts used so far still count."""
        per_minute, at_once = limits.requests_per_minute, limits.concurrency
        self._work.change(per_minute, at_once)
        self._reads.change(
            None if per_minute is None else max(_LEAST_READS, _READS_PER_REQUEST * per_minute),
            None if at_once is None else max(_LEAST_READS_AT_ONCE, at_once),
        )
        self._tokens = _resized(self._tokens, limits.tokens_per_minute, self._clock)
        self.counts_requests = per_minute is not None or at_once is not None
        self.limits = limits

    def acquire_slot(self, *, is_read: bool) -> ConcurrencySlot:
        """Count a request, before its body is read.

        Returns:
            The concurrency slot, held by the caller.

        Raises:
            RateLimited: a limit is reached; the request is not counted.
        """
        kind = self._reads if is_read else self._work
        # Concurrency first: a refusal must not consume a request of the minute.
        if kind.at_once is not None and kind.num_inside >= kind.at_once:
            refusal = self._refusal(f"{kind.at_once} {kind.name} at once", 1.0)
            refusal.offers = ()  # it is unknown when one of them ends
            raise refusal
        # Checked and consumed without an await in between.
        if kind.bucket is not None and (seconds := kind.bucket.seconds_until(1)):
            raise self._refusal(f"{kind.bucket.size} {kind.name} a minute", seconds)
        return kind.acquire_slot()

    def reserve_tokens(self, asked: RequestedCost) -> int:
        """Consume a request's maximum tokens from the rate limit.

        Args:
            asked: the request; one whose maximum exceeds the limit per minute needs a full bucket.

        Returns:
            Tokens consumed, for ``settle_tokens``.

        Raises:
            RateLimited: the limit is reached.
        """
        bucket = self._tokens
        if bucket is None:
            return 0
        # A request larger than the bucket could never run; the rest is charged at its end.
        taken = min(asked.tokens, bucket.size)
        if seconds := bucket.seconds_until(taken):
            refusal = self._refusal(f"{bucket.size} tokens a minute", seconds)
            if shorter := asked.shorter(int(bucket.level)):
                refusal.offers = [shorter, *refusal.offers]
            raise refusal
        bucket.consume(taken)
        return taken

    def settle_tokens(self, taken: int, used: int) -> None:
        """Correct the consumed tokens of a request that has ended.

        Args:
            taken: tokens that ``reserve_tokens`` has consumed.
            used: tokens that the request has used.
        """
        if self._tokens is not None:
            # May make the level negative, which delays later requests.
            self._tokens.consume(used - taken)

    def remaining_capacity(self, queue: QueueCapacity) -> QueueCapacity:
        """Remaining capacity under the tenant's limits, or else of the queue."""
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

    def limit_status(self) -> dict[str, Any]:
        """Each limit, and what remains of it now."""
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
        # At least a millisecond, the unit of the hint.
        seconds = max(seconds, 0.001)
        refusal = RateLimited(message, retry_after=seconds, headers=told)
        refusal.offers = [{"after_seconds": math.ceil(1000 * seconds) / 1000}]
        return refusal


def go_duration(seconds: float) -> str:
    """Format a duration like Go's ``time.Duration``, as OpenAI does: ``1.5s``, ``6m0s``."""
    if seconds < 1:
        return f"{round(1000 * seconds)}ms" if seconds > 0 else "0s"
    minutes, rest = divmod(round(seconds, 3), 60)
    hours, minutes = divmod(int(minutes), 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    if hours:
        return f"{hours}h{minutes}m{shown}"
    return f"{minutes}m{shown}" if minutes else shown
