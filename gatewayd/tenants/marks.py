"""How far requests with a reservation have come, in a file that outlives a process that is killed.

The file is memory: a mark costs no system call, and the kernel has it when the process is gone.
What a client is told is marked before. A machine that loses power loses the last of it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from pathlib import Path
from typing import NamedTuple

NAME = "marks"
_SLOT = struct.Struct("<48sqII")
_COUNTS = struct.Struct("<qII")
_COUNTS_AT = 48
_FIRST_SLOTS = 1024


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
    """

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, _FIRST_SLOTS * _SLOT.size)
        self._memory = mmap.mmap(self._file, _FIRST_SLOTS * _SLOT.size)
        self._free = list(range(_FIRST_SLOTS))

    def take(self, name: str) -> int:
        """A place for the marks of a reservation, at 0."""
        if not self._free:
            num_slots = len(self._memory) // _SLOT.size
            self._memory.resize(2 * len(self._memory))
            self._free.extend(range(num_slots, 2 * num_slots))
        slot = self._free.pop()
        _SLOT.pack_into(self._memory, slot * _SLOT.size, name.encode(), 0, 0, 0)
        return slot

    def write(self, slot: int, generated: int, prompt: int, cached: int) -> None:
        """It has come so far; see ``Mark``."""
        at = slot * _SLOT.size + _COUNTS_AT
        _COUNTS.pack_into(self._memory, at, generated, prompt, cached)

    def give_back(self, slot: int) -> None:
        """The place may be another's; until then the last mark stays."""
        self._free.append(slot)

    def close(self) -> None:
        """Nobody marks any more."""
        self._memory.close()
        os.close(self._file)
