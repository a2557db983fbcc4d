"""One event loop in a thread of its own, on which everything that waits for servers runs.

So the same code serves callers that block and callers that await, and states that were forked
work at the same time whichever the caller is.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the loop; ``result()`` waits, ``asyncio.wrap_future`` awaits it."""
    return asyncio.run_coroutine_threadsafe(work, _running())


def soon(call: Callable[[], object]) -> None:
    """Call something on the loop."""
    _running().call_soon_threadsafe(call)


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="gatewayd-lang", daemon=True).start()
        return _loop
