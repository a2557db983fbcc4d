"""Memory in which one process tells another which strategy it is in, even when it hangs.

The first byte is the number of the strategy that runs, 0 for none; the second that of one that is
being opened in a thread beside it. The name of a plugin that is being loaded follows, and behind it
the other names, by number. Whoever hangs deep inside
a library answers no signal and sends no message, but what it wrote before can still be read.
"""

from __future__ import annotations

import mmap
import os

_NAME_BYTES = 64
_FLAGS = 2
_MOST = 255
"""The last number stands for all strategies that found no other."""
SIZE = _NAME_BYTES * (_MOST + 1)


class Marker:
    """One process's view of the memory.

    Attributes:
        bytes: write the number of the strategy that runs into the first, and of one that is
            being opened in a thread into the second.
        path: where other processes of this machine find it; empty where they cannot.
    """

    def __init__(self, buffer: bytearray | mmap.mmap, fd: int | None = None) -> None:
        self.bytes = memoryview(buffer)
        self.path = "" if fd is None else f"/proc/{os.getpid()}/fd/{fd}"
        self._buffer = buffer
        self._fd = fd
        self._numbers: dict[str, int] = {}

    @classmethod
    def private(cls) -> Marker:
        """Memory that nobody else sees."""
        return cls(bytearray(SIZE))

    @classmethod
    def shared(cls) -> Marker:
        """Memory that others can attach, where the system has it; it ends with this process."""
        if not hasattr(os, "memfd_create"):
            return cls.private()
        fd = os.memfd_create("gatewayd-marker", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        # The descriptor stays open: its place below /proc is the path.
        return cls(mmap.mmap(fd, SIZE), fd)

    @classmethod
    def attached(cls, path: str) -> Marker:
        """Memory that another process made; our own if that is out of reach."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return cls.private()
        try:
            return cls(mmap.mmap(fd, SIZE))
        except (OSError, ValueError):
            return cls.private()
        finally:
            os.close(fd)

    def number(self, name: str) -> int:
        """The number that stands for a strategy, ``<kind>.<name>``."""
        if name not in self._numbers:
            number = self._numbers[name] = min(len(self._numbers) + 1, _MOST)
            encoded = name.encode()[:_NAME_BYTES]
            start = number * _NAME_BYTES
            self.bytes[start : start + _NAME_BYTES] = encoded.ljust(_NAME_BYTES, b"\0")
        return self._numbers[name]

    def loading(self, name: str) -> None:
        """A plugin, ``<kind>.<name>``, is about to be loaded; empty when that is over."""
        encoded = name.encode()[: _NAME_BYTES - _FLAGS]
        self.bytes[_FLAGS:_NAME_BYTES] = encoded.ljust(_NAME_BYTES - _FLAGS, b"\0")

    def loaded(self) -> str | None:
        """The plugin that is being loaded, or was when its process ended; None for none."""
        return self._text(_FLAGS, _NAME_BYTES) or None

    def _text(self, start: int, end: int) -> str:
        return bytes(self.bytes[start:end]).rstrip(b"\0").decode(errors="replace")

    def running(self) -> str | None:
        """The strategy that runs now, or ran last before its process ended; None for none.

        One that is being opened comes first: nobody has seen it work yet.
        """
        number = self.bytes[1] or self.bytes[0]
        if not number:
            return None
        start = number * _NAME_BYTES
        return self._text(start, start + _NAME_BYTES)

    def clear(self) -> None:
        """Nothing runs: for the next process."""
        self.bytes[:] = bytes(SIZE)

    def close(self) -> None:
        """Give the memory back; not to be used after that."""
        self.bytes.release()
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
