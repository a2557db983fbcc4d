"""What malloc keeps of the daemon's memory: few arenas, and what large jobs freed goes back.

glibc gives each thread an arena and keeps what is freed in it: a few floods of large bodies and
texts would be resident for as long as the daemon lives. Without effect where malloc is another.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

_M_ARENA_MAX = -8
_ARENAS = 2


def _function(name: str) -> Callable[..., Any] | None:
    return getattr(ctypes.CDLL(None), name, None)


_trim = _function("malloc_trim")


def settle() -> None:
    """Before there are threads: two arenas, for few threads allocate at a time."""
    if mallopt := _function("mallopt"):
        mallopt(_M_ARENA_MAX, _ARENAS)


def give_back() -> None:
    """Return free pages to the system; takes milliseconds, without the interpreter's lock."""
    if _trim is not None:
        _trim(0)
