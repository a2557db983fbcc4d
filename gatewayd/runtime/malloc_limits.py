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


_trim = _function("malloc_trim")
_TIMES_ITS_TIME = 9


def settle() -> None:
    """Limit malloc to two arenas, since few threads allocate at a time; map large blocks alone.

    Call before any thread.
    """
    if mallopt := _function("mallopt"):
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


_lock = threading.Lock()
_later: threading.Timer | None = None
_rest_ends = float("-inf")


def give_back() -> None:
    """Return free pages to the system, in the background if that was done a moment ago.

    For threads other than the event loop's.

    It does not take the interpreter lock, but malloc's: milliseconds, and hundreds of them after
    hundreds of megabytes. So it takes a tenth of the time at most.
    """
    global _later
    with _lock:
        if _trim is None or _later is not None:
            return
        rest = _rest_ends - time.monotonic()
        if rest > 0:
            _later = threading.Timer(rest, _give_back_late)
            _later.daemon = True
            _later.start()
        else:
            _give_back_now()


def _give_back_late() -> None:
    global _later
    with _lock:
        _later = None
        _give_back_now()


def _give_back_now() -> None:
    global _rest_ends
    if _trim is not None:
        began = time.monotonic()
        _trim(0)
        ended = time.monotonic()
        _rest_ends = ended + _TIMES_ITS_TIME * (ended - began)
