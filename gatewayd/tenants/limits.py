"""How much of a tenant's at a time: requests and tokens a minute, requests at once."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gatewayd.engines.seam import Room
from gatewayd.errors import RateLimited
from gatewayd.http.durations import go_duration
from gatewayd.tenants.costs import Asked

_MINUTE = 60.0


class Limits(NamedTuple):
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


class Gate:
    """Lets a tenant's requests in.

    Args:
        limits: of the tenant.
        clock: seconds; monotonic.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests: Bucket | None = None
        self._tokens: Bucket | None = None
        self.num_inside = 0
        self.limits = Limits()
        self.change(limits)

    def change(self, limits: Limits) -> None:
        """Other limits from now on; what was used counts on."""
        self._requests = self._resized(self._requests, limits.requests_per_minute)
        self._tokens = self._resized(self._tokens, limits.tokens_per_minute)
        self.limits = limits

    def _resized(self, bucket: Bucket | None, size: int | None) -> Bucket | None:
        if size is None:
            return None
        fresh = Bucket(size, self._clock)
        if bucket is not None:
            fresh.take(bucket.size - bucket.level)
        return fresh

    def enter(self, asked: Asked) -> int:
        """Let a request in.

        Args:
            asked: the request; one that may take more tokens than a minute has needs all of it.

        Returns:
            Tokens that it has taken, for ``leave``.

        Raises:
            RateLimited: a limit is reached.
        """
        most = self.limits.concurrency
        if most is not None and self.num_inside >= most:
            refusal = self._refusal(f"{most} requests at once", 1.0)
            refusal.offers = ()  # nobody knows when one of them ends
            raise refusal
        requests, bucket = self._requests, self._tokens
        if requests is not None and (seconds := requests.seconds_until(1)):
            bucket_seconds = (
                0.0 if bucket is None else bucket.seconds_until(min(asked.tokens, bucket.size))
            )
            raise self._refusal(f"{requests.size} requests a minute", max(seconds, bucket_seconds))
        taken = 0
        if bucket is not None:
            taken = min(asked.tokens, bucket.size)
            if seconds := bucket.seconds_until(taken):
                refusal = self._refusal(f"{bucket.size} tokens a minute", seconds)
                if shorter := asked.shorter(int(bucket.level)):
                    refusal.offers = [shorter, *refusal.offers]
                raise refusal
            bucket.take(taken)
        if requests is not None:
            requests.take(1)
        self.num_inside += 1
        return taken

    def leave(self, taken: int, used: int) -> None:
        """A request has ended.

        Args:
            taken: tokens that ``enter`` has taken.
            used: tokens that it has used.
        """
        self.num_inside -= 1
        if self._tokens is not None:
            self._tokens.take(used - taken)

    def room(self, queue: Room) -> Room:
        """What may come yet: of the limits that there are, else of the queue."""
        room, resets = queue, [0.0]
        if (bucket := self._requests) is not None:
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
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
            if bucket is not None:
                found[f"{name}_per_minute"] = {
                    "limit": bucket.size,
                    "remaining": max(0, int(bucket.level)),
                    "reset_seconds": round(bucket.seconds_until(bucket.size), 3),
                }
        if (most := self.limits.concurrency) is not None:
            left = max(0, most - self.num_inside)
            found["concurrency"] = {"limit": most, "remaining": left}
        return found

    def _refusal(self, what: str, seconds: float) -> RateLimited:
        told: dict[str, str] = {}
        for name, bucket in (("requests", self._requests), ("tokens", self._tokens)):
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
