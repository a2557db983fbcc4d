"""What the tokens of a vocabulary stand for: the bytes of each, and the text of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from gatewayd.text.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from gatewayd_hooks.helpers.spelling import Spelling, byte_of, has_byte_tokens, spelling_of


class TokenTexts(Protocol):
    """Made once for a tokenizer.

    Attributes:
        pieces: the bytes of each token where it follows another, shape ``[vocab_size]``.
    """

    pieces: Sequence[bytes]

    def opening(self, token: int) -> bytes:
        """The bytes of a token where it begins a text."""

    def detokenizer(
        self, *, skip_special: bool, continues: bool, shown: frozenset[int]
    ) -> Detokenizer:
        """Start decoding a sequence; see ``Tokenizer.detokenizer``."""


_SPREAD, _GAP = 4, 1 << 16
"""Ids that a vocabulary may have for each token, and beside; most have none too many."""


def vocabulary_of(
    backend: Backend, decoder: dict[str, Any], special_ids: frozenset[int]
) -> TokenTexts:
    """Read the vocabulary of a tokenizer with this decoder."""
    ids = backend.get_vocab(with_added_tokens=True)
    last = max(ids.values())
    if last > _SPREAD * len(ids) + _GAP:  # each id between takes memory: one could take all
        raise ValueError(f"it has {len(ids):,} tokens, and one of them the id {last:,}")
    tokens = [""] * (last + 1)
    for token, i in ids.items():
        tokens[i] = token
    spelling = spelling_of(decoder)
    if spelling is not None:
        return _Spelled(tokens, spelling, special_ids)
    return _Neighbours(tokens, backend, special_ids, has_bytes=has_byte_tokens(decoder))


class _Spelled:
    """Tokens that are spelled alike wherever they stand."""

    def __init__(
        self, tokens: Sequence[str], spelling: Spelling, special_ids: frozenset[int]
    ) -> None:
        self.pieces: Sequence[bytes] = [spelling.spell(token) for token in tokens]
        self._num_stripped = spelling.num_stripped
        self._full = ByteTable.of(self.pieces)
        self._special_ids = special_ids
        self._visible = {frozenset[int](): self._without(special_ids)}

    def _without(self, hidden: frozenset[int]) -> ByteTable:
        return ByteTable.of([b"" if i in hidden else one for i, one in enumerate(self.pieces)])

    def opening(self, token: int) -> bytes:
        piece = self.pieces[token]
        num_spaces = len(piece) - len(piece.lstrip(b" "))
        return piece[min(num_spaces, self._num_stripped) :]

    def detokenizer(
        self, *, skip_special: bool, continues: bool, shown: frozenset[int]
    ) -> Detokenizer:
        table = self._full
        if skip_special:
            visible = self._visible.get(shown)
            if visible is None:
                visible = self._visible[shown] = self._without(self._special_ids - shown)
            table = visible
        return ByteDetokenizer(table, num_stripped=0 if continues else self._num_stripped)


class _Neighbours:
    """Tokens whose text depends on what is before them, as the tokenizer itself decodes it."""

    def __init__(
        self,
        tokens: Sequence[str],
        backend: Backend,
        special_ids: frozenset[int],
        *,
        has_bytes: bool,
    ) -> None:
        self._backend = backend
        self._special_ids = special_ids
        added = backend.get_added_tokens_decoder()
        ordinary = (i for i in range(len(tokens)) if i not in added)
        # Stands for whatever was before; a word, as a space or a mark could melt with the next.
        anchor = next((i for i in ordinary if self._decode([i]).isalnum()), None)
        self._before = [] if anchor is None else [anchor]
        self._bytes = {
            i: byte for i, token in enumerate(tokens) if has_bytes and (byte := byte_of(token))
        }
        skipped = len(self._decode(self._before))
        self.pieces: Sequence[bytes] = [
            self._bytes.get(i) or self._decode([*self._before, i])[skipped:].encode()
            for i in range(len(tokens))
        ]

    def opening(self, token: int) -> bytes:
        return self._bytes.get(token) or self._decode([token]).encode()

    def detokenizer(
        self, *, skip_special: bool, continues: bool, shown: frozenset[int]
    ) -> Detokenizer:
        hidden = self._special_ids - shown

        def decode(ids: Sequence[int]) -> str:
            if not shown:
                return self._decode(ids, skip_special=skip_special)
            return self._decode([i for i in ids if not (skip_special and i in hidden)])

        return WindowDetokenizer(decode, self._before if continues else ())

    def _decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text
