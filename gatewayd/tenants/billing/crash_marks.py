"""How far requests with a reservation have come, in a file that outlives a process that is killed.

The file is memory: a mark costs no system call, and the kernel has it when the process is gone.
What a client is told is marked before. A machine that loses power loses the last of it. Writing to
memory that a full disk cannot hold would end the process (SIGBUS), so blocks are allocated ahead.
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
_SLOT = struct.Struct("<48sqII")
_COUNTS = struct.Struct("<qII")
_COUNTS_AT = 48
_FIRST_SLOTS = 1024
_AGAIN_SECONDS = 5.0
"""Between two attempts to have more of the disk."""


class Mark(NamedTuple):
    """How far a request had come.

    Attributes:
        generated: tokens.
        prompt: tokens of its prompts that were computed or cached.
        cached: of these.
    """

    generated: int
    prompt: int
    cached: int


def known(file: Path) -> dict[str, Mark]:
    """The marks by reservation; of those that are over, too."""
    found: dict[str, Mark] = {}
    with contextlib.suppress(FileNotFoundError):
        content = file.read_bytes()
        whole = content[: len(content) // _SLOT.size * _SLOT.size]
        for name, generated, prompt, cached in _SLOT.iter_unpack(whole):
            if name[0]:
                mark = Mark(max(0, generated), prompt, cached)
                found[name.rstrip(b"\0").decode("ascii", "replace")] = mark
    return found


class Marks:
    """Of a running daemon; what was there is forgotten.

    Args:
        file: that is written.
        clock: seconds; monotonic.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        # Not truncated: blocks that it has are kept, also on a disk that is full now.
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._memory: mmap.mmap | None = None
        self._free: list[int] = []
        self._clock = clock
        self._next = 0.0
        self._grow()

    def take(self, name: str) -> int | None:
        """A slot for the marks of a reservation, at 0; None where the disk has no room for one.

        Without one a request runs all the same: if the process is killed, it is settled at its
        prompt.
        """
        if not self._free and not self._grow():
            return None
        slot = self._free.pop()
        _SLOT.pack_into(self._mapped(), slot * _SLOT.size, name.encode(), 0, 0, 0)
        return slot

    def write(self, slot: int, generated: int, prompt: int, cached: int) -> None:
        """It has come so far; see ``Mark``."""
        at = slot * _SLOT.size + _COUNTS_AT
        _COUNTS.pack_into(self._mapped(), at, generated, prompt, cached)

    def give_back(self, slot: int) -> None:
        """The slot may be another's; until then the last mark stays."""
        self._free.append(slot)

    def close(self) -> None:
        """Nobody marks any more."""
        if self._memory is not None:
            self._memory.close()
        os.close(self._file)

    def _mapped(self) -> mmap.mmap:
        if self._memory is None:
            raise ValueError("there are no marks: no slot was taken")
        return self._memory

    def _grow(self) -> bool:
        """Twice as many slots, or the first; False if the disk does not hold them."""
        if self._clock() < self._next:
            return False
        before = 0 if self._memory is None else len(self._memory)
        size = 2 * before or _FIRST_SLOTS * _SLOT.size
        try:
            os.posix_fallocate(self._file, 0, size)
            if self._memory is None:
                # Names of the last life, in blocks that are there.
                os.ftruncate(self._file, size)
                os.lseek(self._file, 0, os.SEEK_SET)
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
