"""Token ids to text, piece by piece, without ever giving half a character.

The pieces, joined, equal the tokenizer's decoding of all ids at once. The prompt is never
decoded here, so none of its text can appear in an answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Decodes one sequence."""

    def feed(self, ids: Sequence[int]) -> str:
        """Take more ids; give the characters that are complete."""

    def finish(self) -> str:
        """The sequence is at its end: give the rest, U+FFFD for half a character."""


@dataclass(frozen=True, slots=True)
class ByteTable:
    """What each token id of a byte-level vocabulary stands for.

    Attributes:
        pieces: the bytes of each id, shape ``[vocab_size]``; empty for ids to skip.
        texts: the same as text where the bytes are whole characters, else None.
    """

    pieces: Sequence[bytes]
    texts: Sequence[str | None]

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> ByteTable:
        """Make both columns from the bytes."""
        return cls(pieces, [_whole(piece) for piece in pieces])


def _whole(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class ByteDetokenizer:
    """For byte-level vocabularies: a table and an incremental UTF-8 decoder."""

    __slots__ = ("_decoder", "_is_whole", "_pieces", "_size", "_texts")

    def __init__(self, table: ByteTable) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._size = len(table.pieces)
        self._decoder = _utf8(errors="replace")
        self._is_whole = True

    def feed(self, ids: Sequence[int]) -> str:
        """Decode; ids beyond the tokenizer's vocabulary have no text."""
        if len(ids) == 1 and self._is_whole and 0 <= ids[0] < self._size:
            text = self._texts[ids[0]]
            if text is not None:
                return text
        pieces, size = self._pieces, self._size
        text = self._decoder.decode(b"".join([pieces[i] for i in ids if 0 <= i < size]))
        self._is_whole = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        """Give U+FFFD if the last character is incomplete."""
        self._is_whole = True
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For other vocabularies, whose decoding of a token depends on its neighbours.

    Decodes a short window twice, without and with the new ids, and gives the difference. The
    window starts at the last place where the text was whole.
    """

    __slots__ = ("_decode", "_ids", "_start", "_whole")

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        """Start at the beginning of a sequence.

        Args:
            decode: the tokenizer's own decoding of a run of ids.
        """
        self._decode = decode
        self._ids: list[int] = []
        self._start = 0  # of the window
        self._whole = 0  # ids before this have been given

    def feed(self, ids: Sequence[int]) -> str:
        """Decode; a text that ends in U+FFFD may be incomplete, so it waits."""
        self._ids.extend(ids)
        return self._advance(final=False)

    def finish(self) -> str:
        """Give what waited."""
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        window = self._ids[self._start :]
        before = self._decode(window[: self._whole - self._start])
        after = self._decode(window)
        if after.endswith("\ufffd") and not final:
            return ""
        if len(after) > len(before):
            self._start, self._whole = self._whole, len(self._ids)
        return after[len(before) :]
