"""Exact bytes allocated and not freed by a Python process.

Resident memory cannot tell a leak of ten bytes a request: it is as high as the worst moment so far,
and what is freed between two things that stay is not given back.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator

_STDERR = 2


def held_bytes() -> int:
    """Of Python's allocator and of glibc's, after garbage was collected.

    What glibc keeps for each thread to hand out again counts as held; it is bounded.
    """
    gc.collect()
    return _by_python() + _by_glibc()


def _by_python() -> int:
    """Blocks of up to 512 bytes; larger ones are glibc's."""
    with tempfile.TemporaryFile() as file, _stderr_into(file.fileno()):
        sys._debugmallocstats()
        file.seek(0)
        told = file.read().decode()
    found = re.search(r"bytes in allocated blocks\s*=\s*([\d,]+)", told)
    assert found is not None, told
    return int(found[1].replace(",", ""))


@contextlib.contextmanager
def _stderr_into(descriptor: int) -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(_STDERR)
    os.dup2(descriptor, _STDERR)
    try:
        yield
    finally:
        os.dup2(kept, _STDERR)
        os.close(kept)


def _by_glibc() -> int:
    """What the system gave it, less what is free in it."""
    libc = ctypes.CDLL(None)
    libc.fdopen.restype = ctypes.c_void_p
    with tempfile.TemporaryFile() as file:
        stream = ctypes.c_void_p(libc.fdopen(os.dup(file.fileno()), b"w"))
        libc.malloc_info(0, stream)
        libc.fclose(stream)
        file.seek(0)
        # Of all heaps together, which follow those of each.
        told = file.read().decode().rpartition("</heap>")[2]

    def size(kind: str) -> int:
        found = re.search(rf'type="{kind}"[^>]* size="(\d+)"', told)
        assert found is not None, told
        return int(found[1])

    return size("current") + size("mmap") - size("fast") - size("rest")


def grown_by(action: Callable[[], object]) -> int:
    """Bytes that are held more after it."""
    before = held_bytes()
    action()
    return held_bytes() - before
