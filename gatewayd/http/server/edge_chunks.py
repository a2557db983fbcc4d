"""Lengths of chunks in chunked bodies, whose data need not be scanned for the end of a request.

The lengths only decide where the input is split. The parser validates chunks; where no length is
found here, the rest of the body is split at empty lines.
"""

from __future__ import annotations

import re

_LENGTH = re.compile(rb"([0-9a-fA-F]{1,12})[;\r\t ]")
_LOOKED_AT = 16
"""Bytes of a chunk line that are buffered; chunk extensions after the length are ignored."""
_LINE_END = 2


class ChunkLines:
    """Chunk-size lines of one body.

    Attributes:
        are_over: whether the last one, or one without a length, has been received.
    """

    __slots__ = ("_line", "are_over")

    def __init__(self) -> None:
        self._line = b""
        self.are_over = False

    def add(self, piece: bytes) -> int:
        """Add bytes of a line, at most up to its end.

        Returns:
            Bytes of the following chunk including its line end; 0 if there is none, or the line is
            incomplete.
        """
        self._line = (self._line + piece)[:_LOOKED_AT]
        if not piece.endswith(b"\n"):
            return 0
        found = _LENGTH.match(self._line)
        self._line = b""
        length = int(found[1], 16) if found else 0
        if not length:
            self.are_over = True
            return 0
        return length + _LINE_END
