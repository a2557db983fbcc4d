"""Limits the memory that malloc retains: few arenas, and freed memory of large jobs is returned.

glibc gives each thread an arena and retains what is freed in it: after a few floods of large bodies
and texts that memory would stay resident. Without effect with another malloc.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 256 * 1024
_M_ARENA_MAX = -8
_ARENAS = 2


def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)


_trim = _function("malloc_trim")


def settle() -> None:
    """Limit malloc to two arenas, since few threads allocate at a time; map large blocks alone.

    Call before any thread.
    """
    if mallopt := _function("mallopt"):
        mallopt(_M_ARENA_MAX, _ARENAS)
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def give_back() -> None:
    """Return free pages to the system; takes milliseconds, without the interpreter lock."""
    if _trim is not None:
        _trim(0)
