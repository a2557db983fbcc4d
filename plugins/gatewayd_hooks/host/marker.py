"""Shared memory that records which strategy a process runs, readable even if it hangs.

The first byte is the number of the running strategy, 0 for none; the second that of one that is
being opened in a concurrent thread. The name of a plugin that is being loaded follows, and then the
other names, by number. A process that hangs inside a library answers no signal and sends no
message, but what it wrote before can still be read.
"""

from __future__ import annotations

import mmap
import os

_NAME_BYTES = 64
_FLAGS = 2
_MOST = 255
"""The last number is shared by all strategies for which no other was left."""
SIZE = _NAME_BYTES * (_MOST + 1)


class Marker:
    """One process's view of the memory.

    Attributes:
        bytes: write the number of the running strategy into the first, and of one that is being
            opened in a thread into the second.
        path: where other processes of this machine find it; empty if they cannot.
    """

    def __init__(self, buffer: bytearray | mmap.mmap, fd: int | None = None) -> None:
        # Stores of single bytes need no lock: a reader sees the old number or the new one.
        self.bytes = memoryview(buffer)
        self.path = "" if fd is None else f"/proc/{os.getpid()}/fd/{fd}"
        self._buffer = buffer
        self._fd = fd
        self._numbers: dict[str, int] = {}

    @classmethod
    def private(cls) -> Marker:
        """Create memory that only this process sees."""
        return cls(bytearray(SIZE))

    @classmethod
    def shared(cls) -> Marker:
        """Create memory that others can attach, if supported; it ends with this process."""
        if not hasattr(os, "memfd_create"):
            return cls.private()
        fd = os.memfd_create("gatewayd-marker", os.MFD_CLOEXEC)
        os.ftruncate(fd, SIZE)
        # The descriptor stays open: its place below /proc is the path.
        return cls(mmap.mmap(fd, SIZE), fd)

    @classmethod
    def attached(cls, path: str) -> Marker:
        """Attach memory that another process created; private memory if it is inaccessible."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return cls.private()
        try:
            return cls(mmap.mmap(fd, SIZE))
        except (OSError, ValueError):
            return cls.private()
        finally:
            # The mapping stays valid without its descriptor.
            os.close(fd)

    def number(self, name: str) -> int:
        """Return the number of a strategy, ``<kind>.<name>``."""
        if name not in self._numbers:
            number = self._numbers[name] = min(len(self._numbers) + 1, _MOST)
            encoded = name.encode()[:_NAME_BYTES]
            start = number * _NAME_BYTES
            self.bytes[start : start + _NAME_BYTES] = encoded.ljust(_NAME_BYTES, b"\0")
        return self._numbers[name]

    def loading(self, name: str) -> None:
        """Record that a plugin, ``<kind>.<name>``, is about to be loaded.

        Empty when that is over.
        """
        encoded = name.encode()[: _NAME_BYTES - _FLAGS]
        self.bytes[_FLAGS:_NAME_BYTES] = encoded.ljust(_NAME_BYTES - _FLAGS, b"\0")

    def loaded(self) -> str | None:
        """Return the plugin being loaded, now or when its process ended; None for none."""
        return self._text(_FLAGS, _NAME_BYTES) or None

    def _text(self, start: int, end: int) -> str:
        return bytes(self.bytes[start:end]).rstrip(b"\0").decode(errors="replace")

    def running(self) -> str | None:
        """Return the strategy that runs now, or ran last before its process ended; None for none.

        One that is being opened comes first: it is untested, and so more suspicious.
        """
        number = self.bytes[1] or self.bytes[0]
        if not number:
            return None
        start = number * _NAME_BYTES
        return self._text(start, start + _NAME_BYTES)

    def clear(self) -> None:
        """Clear everything, for the next process."""
        self.bytes[:] = bytes(SIZE)

    def close(self) -> None:
        """Release the memory; not to be used after that."""
        self.bytes.release()
        if isinstance(self._buffer, mmap.mmap):
            self._buffer.close()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
