"""Vocabulary of a tokenizer: bytes of each token, and detokenizers for sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer as Backend

from gatewayd.text.detokenizer import ByteDetokenizer, ByteTable, Detokenizer, WindowDetokenizer
from gatewayd_hooks.helpers.spelling import Spelling, byte_of, has_byte_tokens, spelling_of


class TokenTexts(Protocol):
    """Token bytes of a tokenizer, computed once.

    Attributes:
        pieces: bytes of each token when it follows another, shape ``[vocab_size]``.
    """

    pieces: Sequence[bytes]

    def opening_piece(self, token: int) -> bytes:
        """Return the bytes of a token at the beginning of a text."""

    def detokenizer(
        self, *, skip_special: bool, continues: bool, shown: frozenset[int]
    ) -> Detokenizer:
        """Create a detokenizer; see ``Tokenizer.detokenizer``."""


_SPREAD, _GAP = 4, 1 << 16
"""Maximum number of ids: so many per token, plus a constant; most vocabularies have no gaps."""


def vocabulary_of(
    backend: Backend, decoder: dict[str, Any], special_ids: frozenset[int]
) -> TokenTexts:
    """Read a tokenizer's vocabulary; its ``decoder`` section decides how tokens are decoded."""
    ids = backend.get_vocab(with_added_tokens=True)
    last = max(ids.values())
    if last > _SPREAD * len(ids) + _GAP:  # each unused id takes memory, so one could exhaust it
        raise ValueError(f"it has {len(ids):,} tokens, one of which has the id {last:,}")
    tokens = [""] * (last + 1)
    for token, i in ids.items():
        tokens[i] = token
    spelling = spelling_of(decoder)
    if spelling is not None:
        return _ContextFreeTexts(tokens, spelling, special_ids)
    return _ContextualTexts(tokens, backend, special_ids, has_bytes=has_byte_tokens(decoder))


class _ContextFreeTexts:
    """Vocabulary whose tokens have the same bytes in every context."""

    def __init__(
        self, tokens: Sequence[str], spelling: Spelling, special_ids: frozenset[int]
    ) -> None:
        self.pieces: Sequence[bytes] = [spelling.spell(token) for token in tokens]
        self._num_stripped = spelling.num_stripped
        self._full = ByteTable.of(self.pieces)
        self._special_ids = special_ids
        # One table per set of shown tokens: sets come from the model's parsers, so there are few.
        self._visible = {frozenset[int](): self._without(special_ids)}

    def _without(self, hidden: frozenset[int]) -> ByteTable:
        return ByteTable.of([b"" if i in hidden else one for i, one in enumerate(self.pieces)])

    def opening_piece(self, token: int) -> bytes:
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


class _ContextualTexts:
    """Vocabulary whose tokens depend on preceding ones, decoded by the tokenizer itself."""

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
        # Stands for preceding text: a word, as spaces or punctuation could merge with the next.
        anchor = next((i for i in ordinary if self._decode([i]).isalnum()), None)
        self._before = [] if anchor is None else [anchor]
        # The library decodes a byte token alone as U+FFFD; its byte is in its name.
        self._bytes = {
            i: byte for i, token in enumerate(tokens) if has_bytes and (byte := byte_of(token))
        }
        skipped = len(self._decode(self._before))
        self.pieces: Sequence[bytes] = [
            self._bytes.get(i) or self._decode([*self._before, i])[skipped:].encode()
            for i in range(len(tokens))
        ]

    def opening_piece(self, token: int) -> bytes:
        return self._bytes.get(token) or self._decode([token]).encode()

    def detokenizer(
        self, *, skip_special: bool, continues: bool, shown: frozenset[int]
    ) -> Detokenizer:
        hidden = self._special_ids - shown

        def decode(ids: Sequence[int]) -> str:
            # The library omits all special tokens by itself.
            if not shown:
                return self._decode(ids, skip_special=skip_special)
            return self._decode([i for i in ids if not (skip_special and i in hidden)])

        return WindowDetokenizer(decode, self._before if continues else ())

    def _decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        text: str = self._backend.decode(list(ids), skip_special_tokens=skip_special)
        return text
