"""Queue of grammars to compile, with fair queueing between tenants by used thread time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar
from weakref import ref

from gatewayd_engine.fairness.fair_share import FairShare


class Queued(Protocol):
    """An entry of the queue.

    Attributes:
        tenant: tenant that the entry is charged to.
    """

    tenant: str


QueuedT = TypeVar("QueuedT", bound=Queued)


class CompileQueue(Generic[QueuedT]):
    """Waiting grammars by tenant, each queued as long as a request references it.

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
        """Return the next grammar to compile; None if none is waiting or no thread is free."""
        while (tenant := self._share.next()) is not None:
            waiting = self._waiting[tenant]
            # None if its requests have all ended: it is skipped, and its tenant is not charged.
            found = waiting.popleft()()
            if not waiting:
                del self._waiting[tenant]
            self._share.leave(tenant)
            if found is not None:
                self._share.start(tenant)
                return found
        return None

    def over(self, one: QueuedT, seconds: float) -> None:
        """Free the thread of a finished compilation and charge its seconds to the tenant."""
        self._share.end(one.tenant, seconds)
