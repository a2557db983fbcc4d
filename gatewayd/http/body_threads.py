"""Threads for large bodies, off the event loop and with the cyclic garbage collector paused."""

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
"""Objects that the collector traverses in some tens of milliseconds, blocking all threads."""

# Parsers hold the GIL, so more threads would not parse faster. At least half of the
# time is left to everything else, however many bodies arrive.
threads = FairThreads("gatewayd-body", 1, rest=1.0)

_lock = threading.Lock()
_num_pauses = 0


@contextmanager
def gc_paused() -> Iterator[None]:
    """Pause the garbage collector, which would traverse a growing body again and again.

    Pauses are counted and the last one to end resumes it. Saving and restoring the state per thread
    would race and could leave it disabled.
    """
    global _num_pauses
    with _lock:
        _num_pauses += 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _num_pauses -= 1
            if not _num_pauses:
                gc.enable()


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run work on a large body in a thread, with the garbage collector paused.

    Objects that are not needed any more should be released before ``work`` returns, because
    deallocation takes time, too, and would otherwise block the event loop.
    """

    def guarded_work() -> T:
        with gc_paused():
            try:
                return work()
            except (GatewayError, RequestRefusal) as error:
                # Their frames would keep the body alive until the error has been sent.
                error.__cause__ = error.__context__ = None
                raise error.with_traceback(None) from None
            finally:
                if gc.get_count()[0] > _MANY:
                    # Moves the surviving objects to the oldest generation; otherwise the collector
                    # would traverse them next. Objects frozen at start move there, too.
                    gc.freeze()
                    gc.unfreeze()
                malloc_limits.trim()

    return await threads.run(guarded_work)
