"""The requests that are at the engines now, for operators, and what tenants took a minute ago."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from gatewayd.engines.api import Handle
from gatewayd.pipeline.choice import Choice
from gatewayd.pipeline.work import Work

_SECONDS = 60


class LiveRequest(Protocol):
    """What is asked of a request that is at the engines."""

    @property
    def work(self) -> Work:
        """What was asked."""

    @property
    def choices(self) -> Sequence[Choice]:
        """In the answer's order."""

    @property
    def handles(self) -> Sequence[Handle]:
        """Of its prompts, in their order."""

    @property
    def answered_id(self) -> str:
        """The ``x-request-id`` that its client is told."""

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""

    @property
    def completion_tokens(self) -> int:
        """Of all choices."""


RequestT = TypeVar("RequestT", bound=LiveRequest)


class Minute:
    """Requests and tokens of the last minute, a bucket for each second.

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
        """Count them now."""
        at = self._advance() % _SECONDS
        self._requests[at] += requests
        self._tokens[at] += tokens

    def sums(self) -> tuple[int, int]:
        """Requests and tokens of this second and the 59 before it."""
        self._advance()
        return sum(self._requests), sum(self._tokens)

    def _advance(self) -> int:
        """Empty the buckets whose time has come again; which second it is."""
        now = int(self._clock())
        for second in range(max(self._second, now - _SECONDS) + 1, now + 1):
            self._requests[second % _SECONDS] = self._tokens[second % _SECONDS] = 0
        self._second = now
        return now


class LiveRequests(Generic[RequestT]):
    """In the order in which they were sent.

    Args:
        clock: seconds; monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all: dict[RequestT, None] = {}
        self._minutes: dict[str, Minute] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[RequestT]:
        return iter(self._all)

    def add(self, generation: RequestT) -> None:
        """It was sent; its prompts count from now on."""
        self._all[generation] = None
        self._of(generation).add(1, generation.prompt_tokens)

    def remove(self, generation: RequestT) -> None:
        """It is over; what it has generated counts from now on."""
        del self._all[generation]
        self._of(generation).add(0, generation.completion_tokens)

    def find(self, request_id: str) -> RequestT | None:
        """By the gateway's own id, else by the one that the client was told: the latest of them."""
        told = None
        for generation in reversed(self._all):
            if generation.work.request_id == request_id:
                return generation
            if told is None and generation.answered_id == request_id:
                told = generation
        return told

    def generated(self) -> dict[int | None, int]:
        """Tokens of all that is not over, by the engine that has it or had it last."""
        found: dict[int | None, int] = {}
        for generation in self._all:
            choices, n = generation.choices, generation.work.num_choices
            for at, handle in enumerate(generation.handles):
                made = sum([choice.completion_tokens for choice in choices[at * n : (at + 1) * n]])
                found[handle.replica] = found.get(handle.replica, 0) + made
        return found

    @property
    def num_tenants(self) -> int:
        """That have ever sent anything."""
        return len(self._minutes)

    def minute(self, tenant: str) -> tuple[int, int]:
        """Requests that a tenant has sent within the last minute, and tokens."""
        minute = self._minutes.get(tenant)
        return (0, 0) if minute is None else minute.sums()

    def _of(self, generation: RequestT) -> Minute:
        tenant = generation.work.principal.tenant
        minute = self._minutes.get(tenant)
        if minute is None:
            minute = self._minutes[tenant] = Minute(self._clock)
        return minute
