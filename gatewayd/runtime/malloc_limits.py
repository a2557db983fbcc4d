"""Limits the memory that malloc retains: few arenas, and freed memory of large jobs is returned.

glibc gives each thread an arena and retains what is freed in it: after a few floods of large bodies
and texts that memory would stay resident. Without effect with another malloc.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024
_M_ARENA_MAX = -8
_ARENAS = 2


def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)


_malloc_trim = _function("malloc_trim")
_REST_FACTOR = 9


def limit_malloc() -> None:
    """Limit malloc to two arenas, since few threads allocate at a time; mmap large blocks.

    Call before any thread.
    """
    if mallopt := _function("mallopt"):
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


_lock = threading.Lock()
_later: threading.Timer | None = None
_rest_ends = float("-inf")


def trim() -> None:
    """Return free pages to the system; deferred to the background if called again soon.

    Not for the event loop's thread.

    It takes malloc's lock, not the interpreter's: for milliseconds, and for hundreds of them after
    hundreds of megabytes. So it is limited to a tenth of the time.
    """
    global _later
    with _lock:
        if _malloc_trim is None or _later is not None:
            return
        rest = _rest_ends - time.monotonic()
        if rest > 0:
            _later = threading.Timer(rest, _trim_late)
            _later.daemon = True
            _later.start()
        else:
            _trim_now()


def _trim_late() -> None:
    global _later
    with _lock:
        _later = None
        _trim_now()


def _trim_now() -> None:
    global _rest_ends
    if _malloc_trim is not None:
        began = time.monotonic()
        _malloc_trim(0)
        ended = time.monotonic()
        _rest_ends = ended + _REST_FACTOR * (ended - began)
