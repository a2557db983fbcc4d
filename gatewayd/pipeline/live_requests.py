"""Requests in flight at the engines, and each tenant's requests and tokens of the last minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from gatewayd.engines.api import Handle
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.work import Work

_SECONDS = 60


class LiveRequest(Protocol):
    """Interface of a request in flight, as operators see it."""

    @property
    def work(self) -> Work:
        """The validated request."""

    @property
    def choices(self) -> Sequence[Choice]:
        """Choices, in the order of the response."""

    @property
    def handles(self) -> Sequence[Handle]:
        """Engine handles of its prompts, in order."""

    @property
    def answered_id(self) -> str:
        """The ``x-request-id`` of its response."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all choices."""


RequestT = TypeVar("RequestT", bound=LiveRequest)


class RollingMinute:
    """Sliding one-minute count of requests and tokens, in one-second buckets.

    Args:
        clock: seconds; monotonic.
    """

    __slots__ = ("_clock", "_requests", "_second", "_tokens")

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._requests = [0] * _SECONDS
        self._tokens = [0] * _SECONDS
        self._second = int(clock())

    def add(self, requests: int, tokens: int) -> None:
        """Add to the bucket of the current second."""
        at = self._advance() % _SECONDS
        self._requests[at] += requests
        self._tokens[at] += tokens

    def sums(self) -> tuple[int, int]:
        """Return requests and tokens of this second and the 59 before it."""
        self._advance()
        return sum(self._requests), sum(self._tokens)

    def _advance(self) -> int:
        """Clear the buckets that are reused since the last call; return the current second."""
        now = int(self._clock())
        if now == self._second:
            return now
        # At most all buckets, however long ago the last call was.
        for second in range(max(self._second, now - _SECONDS) + 1, now + 1):
            self._requests[second % _SECONDS] = self._tokens[second % _SECONDS] = 0
        self._second = now
        return now


class LiveRequests(Generic[RequestT]):
    """Requests in flight, in submission order, with per-tenant rates.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # An ordered set: removal in constant time, and `find` begins with the latest.
        self._all: dict[RequestT, None] = {}
        self._minutes: dict[str, RollingMinute] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RequestT]:
        return iter(self._all)

    def add(self, generation: RequestT) -> None:
        """Add a submitted request and count its prompt tokens."""
        self._all[generation] = None
        self._of(generation).add(1, generation.prompt_tokens)

    def remove(self, generation: RequestT) -> None:
        """Remove an ended request and count its generated tokens."""
        del self._all[generation]
        self._of(generation).add(0, generation.completion_tokens)

    def find(self, request_id: str) -> RequestT | None:
        """Find a request by the gateway's id, else the latest by its ``x-request-id``."""
        answered = None
        for generation in reversed(self._all):
            if generation.work.request_id == request_id:
                return generation
            if answered is None and generation.answered_id == request_id:
                answered = generation
        return answered

    def generated(self) -> dict[int | None, int]:
        """Return generated tokens of all requests in flight, by their current or last engine."""
        found: dict[int | None, int] = {}
        for generation in self._all:
            choices, n = generation.choices, generation.work.num_choices
            for at, handle in enumerate(generation.handles):
                made = sum([choice.completion_tokens for choice in choices[at * n : (at + 1) * n]])
                found[handle.replica] = found.get(handle.replica, 0) + made
        return found

    @property
    def num_tenants(self) -> int:
        """Number of tenants that have sent requests since the start."""
        return len(self._minutes)

    def last_minute(self, tenant: str) -> tuple[int, int]:
        """Return a tenant's requests and tokens of the last minute."""
        minute = self._minutes.get(tenant)
        return (0, 0) if minute is None else minute.sums()

    def _of(self, generation: RequestT) -> RollingMinute:
        tenant = generation.work.principal.tenant
        minute = self._minutes.get(tenant)
        if minute is None:
            minute = self._minutes[tenant] = RollingMinute(self._clock)
        return minute
