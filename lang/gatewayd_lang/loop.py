"""Event loop in a separate thread, which runs everything that waits for servers.

So the same code serves blocking and awaiting callers, and forked states work concurrently for
either.
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
    """Schedule a call on the loop."""
    _running().call_soon_threadsafe(call)


def _running() -> asyncio.AbstractEventLoop:
    global _loop
    # Programs run in several threads, and must share one loop.
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            # A daemon thread does not keep the interpreter from ending.
            threading.Thread(target=_loop.run_forever, name="gatewayd-lang", daemon=True).start()
        return _loop
