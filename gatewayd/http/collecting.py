"""Holds the cyclic garbage collector while large bodies are parsed, in any thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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
