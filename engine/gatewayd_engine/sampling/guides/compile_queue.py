"""Queue of grammars to compile: fair queueing between tenants, by the thread time each has used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import ref

from gatewayd_engine.fairness.fair_share import FairShare


class Queued(Protocol):
    """What waits for a thread.

    Attributes:
        tenant: whose it is.
    """

    tenant: str


QueuedT = TypeVar("QueuedT", bound=Queued)


class CompileQueue(Generic[QueuedT]):
    """Grammars that wait, by tenant, each for as long as a request refers to it.

    Args:
        threads: number of compiler threads.
        clock: seconds; monotonic.
    """

    def __init__(self, threads: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = FairShare(lambda: threads, clock)
        self._waiting: dict[str, deque[ref[QueuedT]]] = {}  # the oldest of each first

    def add(self, one: QueuedT) -> None:
        """Queue a grammar until it is scheduled or no request refers to it any more."""
        self._share.arrive(one.tenant)
        self._share.wait(one.tenant)
        self._waiting.setdefault(one.tenant, deque()).append(ref(one))

    def next(self) -> QueuedT | None:
        """The grammar to compile now; None if none waits, or no thread is free."""
        while (tenant := self._share.next()) is not None:
            waiting = self._waiting[tenant]
            found = waiting.popleft()()
            if not waiting:
                del self._waiting[tenant]
            self._share.leave(tenant)
            if found is not None:
                self._share.start(tenant)
                return found
        return None

    def over(self, one: QueuedT, seconds: float) -> None:
        """A thread is free again after so many seconds, which are charged to the tenant."""
        self._share.end(one.tenant, seconds)
