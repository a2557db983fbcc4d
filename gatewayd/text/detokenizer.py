"""Incremental detokenization that never returns incomplete UTF-8 characters.

The concatenated pieces equal the tokenizer's decoding of all ids at once, except for invalid
UTF-8, where the tokenizer may revise already decoded text. The prompt is never decoded here, so
none of its text can appear in a response.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """Incremental detokenizer of one sequence."""

    @property
    def is_opening(self) -> bool:
        """Whether the next token is the first of a text, whose leading spaces may be dropped."""

    def feed(self, ids: Sequence[int]) -> str:
        """Decode more ids; return the complete characters."""

    def finish(self) -> str:
        """Return the rest at the end of the sequence, U+FFFD for an incomplete character."""


class NoDetokenizer:
    """Detokenizer of an answer that comes as text, from an upstream."""

    is_opening = False

    def feed(self, ids: Sequence[int]) -> str:
        """Refuse ids.

        Raises:
            TypeError: always.
        """
        raise TypeError("the answers of upstreams have no token ids")

    def finish(self) -> str:
        """Return nothing."""
        return ""


@dataclass(frozen=True, slots=True)
class ByteTable:
    """Context-independent bytes and text of each token id.

    Attributes:
        pieces: bytes of each id, shape ``[vocab_size]``; empty for skipped ids.
        texts: the same as text if the bytes are complete characters, else None.
    """

    pieces: Sequence[bytes]
    texts: Sequence[str | None]

    @classmethod
    def of(cls, pieces: Sequence[bytes]) -> ByteTable:
        """Build a table from the bytes of each id."""
        return cls(pieces, [_whole(piece) for piece in pieces])


def _whole(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None


class ByteDetokenizer:
    """Detokenizer for context-independent tokens: a byte table and an incremental UTF-8 decoder."""

    __slots__ = ("_decoder", "_is_whole", "_num_stripped", "_pieces", "_size", "_texts")

    def __init__(self, table: ByteTable, *, num_stripped: int = 0) -> None:
        """Start at the beginning of a sequence.

        Args:
            table: of the vocabulary.
            num_stripped: spaces to drop at the beginning of the text.
        """
        self._pieces = table.pieces
        self._texts = table.texts
        self._size = len(table.pieces)
        # Created with the first token that is not whole characters: many answers have none.
        self._decoder: codecs.IncrementalDecoder | None = None
        self._num_stripped = num_stripped
        self._is_whole = not num_stripped

    @property
    def is_opening(self) -> bool:
        """Whether leading spaces may still be dropped."""
        return self._num_stripped > 0

    def feed(self, ids: Sequence[int]) -> str:
        """Decode more ids; ids beyond the tokenizer's vocabulary have no text."""
        # Fast path for one token of whole characters, at a character's boundary.
        if len(ids) == 1 and self._is_whole and 0 <= ids[0] < self._size:
            text = self._texts[ids[0]]
            if text is not None:
                return text
        pieces, size = self._pieces, self._size
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = _utf8(errors="replace")
        text = decoder.decode(b"".join([pieces[i] for i in ids if 0 <= i < size]))
        if self._num_stripped:
            text = self._strip(text)
        # The decoder's state begins with the bytes of an incomplete character.
        self._is_whole = not (self._num_stripped or decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """Return U+FFFD if the last character is incomplete."""
        return "" if self._decoder is None else self._decoder.decode(b"", final=True)

    def _strip(self, text: str) -> str:
        """Drop up to ``num_stripped`` leading spaces of the text."""
        while self._num_stripped and text.startswith(" "):
            text = text[1:]
            self._num_stripped -= 1
        if text:
            self._num_stripped = 0
        return text


_MAX_WAITING = 16
"""Maximum ids that wait for the rest of a character, which has at most four bytes."""


class WindowDetokenizer:
    """Detokenizer for vocabularies whose decoding of a token depends on its neighbours.

    Decodes the preceding ids without and with the new ones, and returns the difference.
    """

    __slots__ = ("_before", "_decode", "_waiting")

    def __init__(self, decode: Callable[[Sequence[int]], str], before: Sequence[int] = ()) -> None:
        """Start at the beginning of a sequence.

        Args:
            decode: the tokenizer's own decoding of a run of ids.
            before: ids that precede the first fed ones; empty at the beginning of a text.
        """
        self._decode = decode
        self._before = list(before)
        self._waiting: list[int] = []

    @property
    def is_opening(self) -> bool:
        """Whether no ids have been fed yet."""
        return not (self._before or self._waiting)

    def feed(self, ids: Sequence[int]) -> str:
        """Decode more ids; text ending in U+FFFD may be incomplete, so it waits for further ids."""
        self._waiting.extend(ids)
        return self._advance(is_final=False)

    def finish(self) -> str:
        """Decode the waiting ids."""
        return self._advance(is_final=True)

    def _advance(self, *, is_final: bool) -> str:
        # Both decodings begin with `before`, so effects of a text's beginning cancel out.
        together = [*self._before, *self._waiting]
        text = self._decode(together)[len(self._decode(self._before)) :]
        is_late = len(self._waiting) > _MAX_WAITING
        # After `_MAX_WAITING` ids the character is invalid, not incomplete.
        if text and (is_final or is_late or not text.endswith("\ufffd")):
            # The last run is enough context; a growing one would make decoding quadratic.
            self._before, self._waiting = self._waiting, []
            return text
        if is_late:
            # Special tokens without text; dropped, because each step would cost more otherwise.
            del self._waiting[: _MAX_WAITING // 2]
        return ""
