"""Bytes of one connection that have come and are not parsed yet, and where to cut them.

A cut decides when bytes are parsed, never what they mean: the parser takes any pieces. It is
strict, so a head ends with an empty line and nothing else does; a piece that ends there, or where
data of known length ends, holds the end of one request at most and the beginning of none.
"""

from __future__ import annotations

_EMPTY_LINE = b"\r\n\r\n"
_OVERLAP = len(_EMPTY_LINE) - 1


class Intake:
    """A queue of bytes.

    Attributes:
        size: bytes that wait.
    """

    __slots__ = ("_at", "_bytes", "_last", "size")

    def __init__(self) -> None:
        self._bytes, self._last = b"", b""
        self._at = self.size = 0

    def add(self, data: bytes) -> None:
        """More has come."""
        self._bytes = self._bytes[self._at :] + data if self.size else data
        self._at = 0
        self.size = len(self._bytes)

    def clear(self) -> None:
        """Nobody will parse it."""
        self._bytes, self._at, self.size = b"", 0, 0
        self._last = b""  # of what was taken since the last cut: an empty line may be in two parts

    def take(self, most: int) -> bytes:
        """As much as there is, ``most`` bytes at most; nothing of it is looked at."""
        self._last = b""
        return self._cut(self._at + most)

    def through_empty_line(self, most: int) -> bytes:
        """Up to the end of the first empty line; ``most`` bytes or all, if it is not in them."""
        limit = self._at + most
        end = self._end_of_empty_line(limit)
        if 0 < end <= limit:
            self._last = b""
            return self._cut(end)
        piece = self._cut(limit)
        self._last = (self._last + piece[-_OVERLAP:])[-_OVERLAP:]
        return piece

    def through_line(self, most: int) -> bytes:
        """Up to the end of the first line; ``most`` bytes or all, if it is not in them."""
        limit = self._at + most
        piece = self._cut(self._bytes.find(b"\n", self._at, limit) + 1 or limit)
        self._last = (self._last + piece[-_OVERLAP:])[-_OVERLAP:]
        return piece

    def _end_of_empty_line(self, limit: int) -> int:
        """Where it is; 0 if there is none before the limit."""
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
            self._bytes, self._at = b"", 0  # what was parsed is not kept
        return piece
