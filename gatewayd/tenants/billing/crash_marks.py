"""Crash marks: progress of requests with a reservation, in a file that survives a killed process.

The file is memory-mapped: a mark costs no system call, and the kernel keeps it if the process dies.
Tokens are marked before they are sent to the client. A power failure loses the last marks. Writing
to mapped memory that a full disk cannot back would kill the process (SIGBUS), so blocks are
allocated in advance.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gatewayd.store.atomic_files import write_all

_log = logging.getLogger(__name__)

NAME = "marks"
# 64 bytes: id, generated, prompt and cached tokens. No slot crosses a page.
_SLOT = struct.Struct("<48sqII")
_COUNTS = struct.Struct("<qII")
_COUNTS_AT = 48
_FIRST_SLOTS = 1024
_AGAIN_SECONDS = 5.0
"""Interval between attempts to allocate more disk space."""


class Mark(NamedTuple):
    """Progress of a request.

    Attributes:
        generated: tokens generated.
        prompt: prompt tokens that were computed or cached.
        cached: prompt tokens that were cached.
    """

    generated: int
    prompt: int
    cached: int


def read_marks(file: Path) -> dict[str, Mark]:
    """Read the marks of a file by reservation, including those of settled requests."""
    found: dict[str, Mark] = {}
    with contextlib.suppress(FileNotFoundError):
        content = file.read_bytes()
        whole = content[: len(content) // _SLOT.size * _SLOT.size]
        for name, generated, prompt, cached in _SLOT.iter_unpack(whole):
            if name[0]:
                # Marks are not sealed: a negative number would lower the charge.
                mark = Mark(max(0, generated), prompt, cached)
                found[name.rstrip(b"\0").decode("ascii", "replace")] = mark
    return found


class Marks:
    """Writer of the crash marks; clears the previous process's marks.

    Args:
        file: the file to write.
        clock: seconds; monotonic.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        # Not truncated: its allocated blocks are reused, also on a disk that is full now.
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []
        self._clock = clock
        self._next = 0.0
        self._grow()

    def allocate(self, name: str) -> int | None:
        """Allocate a slot for the marks of a reservation; None if the disk has no room for one.

        A request runs without one all the same: if the process is killed, it is charged for its
        prompt only.
        """
        if not self._free and not self._grow():
            return None
        slot = self._free.pop()
        # Clears the counts of the request that had the slot before.
        _SLOT.pack_into(self._mapped(), slot * _SLOT.size, name.encode(), 0, 0, 0)
        return slot

    def write(self, slot: int, generated: int, prompt: int, cached: int) -> None:
        """Write a request's progress; see ``Mark``."""
        at = slot * _SLOT.size + _COUNTS_AT
        _COUNTS.pack_into(self._mapped(), at, generated, prompt, cached)

    def free(self, slot: int) -> None:
        """Free a slot; its last mark stays until the slot is allocated again."""
        self._free.append(slot)

    def close(self) -> None:
        """Unmap and close the file; nothing may be marked afterwards."""
        if self._memory is not None:
            self._memory.close()
        os.close(self._file)

    def _mapped(self) -> mmap.mmap:
        if self._memory is None:
            raise ValueError("there are no marks: no slot was allocated")
        return self._memory

    def _grow(self) -> bool:
        """Double the slots, or allocate the first; return False if the disk is full."""
        # A full disk must not cost each request a system call and a log line.
        if self._clock() < self._next:
            return False
        before = 0 if self._memory is None else len(self._memory)
        size = 2 * before or _FIRST_SLOTS * _SLOT.size
        try:
            # Blocks first: without them a write to mapped memory would end the process by SIGBUS.
            os.posix_fallocate(self._file, 0, size)
            if self._memory is None:
                # Clear names of the previous process, in blocks that are allocated already.
                os.ftruncate(self._file, size)
                os.lseek(self._file, 0, os.SEEK_SET)
                # By system calls: unlike mapped memory they report a full disk as an error.
                write_all(self._file, bytes(size))
                self._memory = mmap.mmap(self._file, size)
            else:
                self._memory.resize(size)
        except OSError as error:
            self._next = self._clock() + _AGAIN_SECONDS
            _log.warning(
                "cannot record running requests for crash recovery, %s: if the daemon is "
                "killed, new requests are charged for their prompt only",
                error.strerror,
            )
            return False
        self._free.extend(range(before // _SLOT.size, size // _SLOT.size))
        return True
