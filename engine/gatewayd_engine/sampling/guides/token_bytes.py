"""Bytes of the model's tokens, to find markers in outputs that are not single tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gatewayd_hooks.helpers.spelling import spelling_of


class _Model(msgspec.Struct):
    """Vocabulary of a tokenizer; lists have a score with each token."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _File(msgspec.Struct):
    """Fields read from ``tokenizer.json``; its merges, which are most of it, are skipped."""

    model: _Model
    decoder: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


class TokenBytes:
    """Bytes of all tokens, loaded at the first use.

    Args:
        folder: folder of the checkpoint.
        vocab_size: vocabulary size of the model.
        ends: end tokens of the model.
    """

    def __init__(self, folder: str, vocab_size: int, ends: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self.ends = frozenset(ends)
        self._folder = folder
        self._reading = threading.Lock()
        self._pieces: list[bytes] | None = None
        self._special: list[tuple[int, str]] = []

    def pieces(self, marks: Sequence[str]) -> list[bytes]:
        """Return the bytes of each token in text where only ``marks`` are visible special tokens.

        Returns:
            Bytes by token id, empty for end tokens and for ids that the file does not have, shape
            ``[vocab_size]``.

        Raises:
            OSError, msgspec.MsgspecError: the file cannot be read.
        """
        # Compiler threads may need it at the same time.
        with self._reading:
            if self._pieces is None:
                self._pieces = self._read()
        # Which special tokens are visible depends on the markers.
        pieces = self._pieces.copy()
        for token, content in self._special:
            pieces[token] = content.encode() if content in marks else b""
        for end in self.ends:
            pieces[end] = b""
        return pieces

    def _read(self) -> list[bytes]:
        data = (Path(self._folder) / "tokenizer.json").read_bytes()
        file = msgspec.json.decode(data, type=_File)
        spelling = spelling_of(file.decoder or {})
        vocab = file.model.vocab
        pairs = (
            vocab.items() if isinstance(vocab, dict) else ((w[0], i) for i, w in enumerate(vocab))
        )
        pieces = [b""] * self.vocab_size
        for text, token in pairs:
            if token < self.vocab_size:
                # Without a context-free spelling, the vocabulary's own text is used.
                pieces[token] = text.encode() if spelling is None else spelling.spell(text)
        known = [one for one in file.added_tokens if one.id < self.vocab_size]
        for one in known:
            pieces[one.id] = one.content.encode()
        self._special = [(one.id, one.content) for one in known if one.special]
        return pieces
