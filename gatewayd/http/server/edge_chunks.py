"""How long the next chunk of a body is: so much need not be searched for the end of a request.

It decides where pieces are cut and nothing else. The parser alone says what a chunk is, and refuses
what is none; where this finds no length, the rest of the body is cut at empty lines.
"""

from __future__ import annotations

import re

_LENGTH = re.compile(rb"([0-9a-fA-F]{1,12})[;\r\t ]")
_LOOKED_AT = 16
"""Bytes of a line that are kept; what follows a length does not matter."""
_LINE_END = 2


class ChunkLines:
    """The lines before the chunks of one body.

    Attributes:
        are_over: whether the last one has come, or one without a length.
    """

    __slots__ = ("_line", "are_over")

    def __init__(self) -> None:
        self._line = b""
        self.are_over = False

    def add(self, piece: bytes) -> int:
        """More of a line, at most to its end.

        Returns:
            Bytes of the chunk behind it and of that chunk's line end; 0 if there is none, or the
            line is not whole.
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
