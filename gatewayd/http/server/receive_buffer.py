"""Buffer of received, unparsed bytes of a connection, and where to split them for the parser.

A split decides when bytes are parsed, never how: the parser accepts any pieces. It is strict, so
a header section ends with an empty line and nothing else does; a piece that ends there, or where
data of known length ends, contains the end of at most one request and the beginning of none.
"""

from __future__ import annotations

_EMPTY_LINE = b"\r\n\r\n"
_OVERLAP = len(_EMPTY_LINE) - 1


class ReceiveBuffer:
    """FIFO buffer of received bytes.

    Attributes:
        size: buffered bytes.
    """

    __slots__ = ("_at", "_bytes", "_last", "size")

    def __init__(self) -> None:
        self._bytes, self._last = b"", b""
        self._at = self.size = 0

    def add(self, data: bytes) -> None:
        """Append received bytes."""
        # Little is copied: reading is paused at a limit of unparsed bytes.
        self._bytes = self._bytes[self._at :] + data if self.size else data
        self._at = 0
        self.size = len(self._bytes)

    def clear(self) -> None:
        """Discard everything."""
        self._bytes, self._at, self.size = b"", 0, 0
        self._last = b""  # tail of the last piece: an empty line may span two

    def read(self, most: int) -> bytes:
        """Read at most ``most`` bytes, regardless of their content."""
        self._last = b""
        return self._cut(self._at + most)

    def read_through_empty_line(self, most: int) -> bytes:
        """Read up to the end of the first empty line, or ``most`` bytes without one."""
        limit = self._at + most
        end = self._end_of_empty_line(limit)
        if 0 < end <= limit:
            self._last = b""
            return self._cut(end)
        piece = self._cut(limit)
        self._last = (self._last + piece[-_OVERLAP:])[-_OVERLAP:]
        return piece

    def read_through_line(self, most: int) -> bytes:
        """Read up to the end of the first line, or ``most`` bytes if the line is longer."""
        limit = self._at + most
        piece = self._cut(self._bytes.find(b"\n", self._at, limit) + 1 or limit)
        self._last = (self._last + piece[-_OVERLAP:])[-_OVERLAP:]
        return piece

    def _end_of_empty_line(self, limit: int) -> int:
        """Return the end offset of the first empty line; 0 if there is none before the limit."""
        # An empty line that begins in bytes that were read already.
        if self._last:
            border = self._last + self._bytes[self._at : self._at + _OVERLAP]
            found = border.find(_EMPTY_LINE)
            if found >= 0:
                return self._at - len(self._last) + found + len(_EMPTY_LINE)
        found = self._bytes.find(_EMPTY_LINE, self._at, limit)
        return found + len(_EMPTY_LINE) if found >= 0 else 0

    def _cut(self, end: int) -> bytes:
        piece = self._bytes[self._at : end]
        self.size -= len(piece)
        if self.size:
            self._at = end
        else:
            self._bytes, self._at = b"", 0  # do not keep parsed bytes alive
        return piece
