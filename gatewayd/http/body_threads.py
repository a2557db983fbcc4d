"""Works on large bodies beside the event loop, while the cyclic garbage collector is held."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gatewayd.errors import GatewayError
from gatewayd.fairness.fair_threads import FairThreads
from gatewayd.runtime import malloc_limits
from gatewayd_hooks.protocols import RequestRefusal

T = TypeVar("T")

_MANY = 100_000
"""Objects that the collector walks in some tens of milliseconds, while everybody waits."""

# Parsers hold the interpreter lock, so more threads would not parse faster. At least half of the
# time is left to everything else, however many bodies arrive.
threads = FairThreads("gatewayd-body", 1, rest=1.0)

_lock = threading.Lock()
_num_holding = 0


@contextmanager
def held() -> Iterator[None]:
    """Hold it: it would walk a large body again and again while it grows.

    Whoever comes last lets it go; a thread that asked whether it is on while another was about to
    switch it on again would leave it off for good.
    """
    global _num_holding
    with _lock:
        _num_holding += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _num_holding -= 1
            if not _num_holding:
                gc.enable()


async def apart(work: Callable[[], T]) -> T:
    """Work on a large body in a thread, with the collector held.

    What is made of a body and needed no more should be gone when ``work`` returns: to let it go
    takes its time too, wherever that is.
    """

    def held_work() -> T:
        with held():
            try:
                return work()
            except (GatewayError, RequestRefusal) as error:
                # Their frames would keep the body alive until the refusal has been told.
                error.__cause__ = error.__context__ = None
                raise error.with_traceback(None) from None
            finally:
                if gc.get_count()[0] > _MANY:
                    # What is left becomes old at once, or the collector would walk all of it next.
                    # What was frozen when the daemon began becomes as old as that.
                    gc.freeze()
                    gc.unfreeze()
                malloc_limits.trim()

    return await threads.run(held_work)
