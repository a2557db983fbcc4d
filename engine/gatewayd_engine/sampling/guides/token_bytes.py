"""What the model's tokens spell: for marks in its answers, which need be no tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from gatewayd_hooks.helpers.spelling import spelling_of


class _Model(msgspec.Struct):
    """A vocabulary; lists have a score beside each token."""

    vocab: dict[str, int] | list[tuple[str, float]] = {}


class _Added(msgspec.Struct):
    id: int
    content: str
    special: bool = False


class _File(msgspec.Struct):
    """What is read of a ``tokenizer.json``; its merges are most of it, and are passed over."""

    model: _Model
    decoder: dict[str, Any] | None = None
    added_tokens: list[_Added] = []


class Letters:
    """The bytes of all tokens, read when somebody asks for them first.

    Args:
        folder: of the checkpoint.
        vocab_size: of the model.
        ends: its end tokens.
    """

    def __init__(self, folder: str, vocab_size: int, ends: Sequence[int]) -> None:
        self.vocab_size = vocab_size
        self.ends = frozenset(ends)
        self._folder = folder
        self._reading = threading.Lock()
        self._pieces: list[bytes] | None = None
        self._special: list[tuple[int, str]] = []

    def pieces(self, marks: Sequence[str]) -> list[bytes]:
        """What each token adds to a text in which of the special tokens only marks are seen.

        Returns:
            Nothing for the end tokens and for ids that the file does not have, shape
            ``[vocab_size]``.

        Raises:
            OSError, msgspec.MsgspecError: there is no such file.
        """
        with self._reading:
            if self._pieces is None:
                self._pieces = self._read()
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
                # Where neighbours decide how a token is spelled, marks are spelled as they stand.
                pieces[token] = text.encode() if spelling is None else spelling.spell(text)
        known = [one for one in file.added_tokens if one.id < self.vocab_size]
        for one in known:
            pieces[one.id] = one.content.encode()
        self._special = [(one.id, one.content) for one in known if one.special]
        return pieces
