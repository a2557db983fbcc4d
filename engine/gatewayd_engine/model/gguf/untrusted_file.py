"""Sequential reading of an untrusted GGUF file: nothing is read or allocated past its end."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import BinaryIO

from gatewayd_engine.model.loading.safetensors_headers import LoadError

LENGTH = struct.Struct("<Q")
TYPE = struct.Struct("<I")


class UntrustedFile:
    """A file that is read from its beginning.

    Args:
        file: the open file, at its beginning.
        path: of it, for error messages.
        size: of it in bytes.

    Attributes:
        at: offset of the next byte.
        path, size: as given.

    All methods raise LoadError where a length exceeds the rest of the file.
    """

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self._file = file
        self.path = path
        self.size = size
        self.at = 0

    def number(self, form: struct.Struct, what: str) -> int:
        """Read a number; a float for float formats."""
        (number,) = form.unpack(self.read(form.size, what))
        return number  # type: ignore[no-any-return]  # a float for float formats

    def text(self, count: int, what: str) -> str:
        """Read a text of so many bytes."""
        taken = self.read(count, what)
        try:
            return taken.decode()
        except UnicodeDecodeError:
            raise self.broken(f"{what} is no UTF-8: {taken[:40]!r}") from None

    def read(self, count: int, what: str) -> bytes:
        """Read so many bytes."""
        self.require(count, what)
        taken = self._file.read(count)
        # The size was read before: the file may be written to meanwhile.
        if len(taken) < count:
            raise self.broken(f"it became shorter while {what} was read")
        self.at += count
        return taken

    def skip(self, count: int, what: str) -> None:
        """Skip so many bytes."""
        self.require(count, what)
        self.at += count
        self._file.seek(self.at)

    def require(self, count: int, what: str) -> None:
        """Check that so many bytes are left."""
        left = self.size - self.at
        if count > left:
            raise self.broken(f"{what} takes {count} bytes, of {self.size} there are {left} left")

    def broken(self, reason: str) -> LoadError:
        """Make the error of an inconsistent file."""
        return LoadError(f"{self.path} is not a whole GGUF file: {reason}")
