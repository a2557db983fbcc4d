"""A checkpoint's ``tokenizer.json``: encoding, decoding and what each token is made of."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from gatewayd.text.detokenizer import (
    ByteDetokenizer,
    ByteTable,
    Detokenizer,
    WindowDetokenizer,
)

INLINE_CHARS = 2048
"""Longer texts are encoded in a thread: about half a millisecond of the event loop."""


class Tokenizer:
    """Encodes and decodes.

    Text that spells a special token is text, unless the caller says that the text is trusted.
    """

    def __init__(self, serialized: str) -> None:
        """Build from the text of a ``tokenizer.json``.

        Raises:
            ValueError: it is not one.
        """
        try:
            self._trusting = Backend.from_str(serialized)
            self._plain = Backend.from_str(serialized)
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"not a tokenizer.json: {error}") from error
        for backend in (self._trusting, self._plain):
            backend.no_truncation()
            backend.no_padding()
        self._plain.encode_special_tokens = True
        self._spec: dict[str, Any] = json.loads(serialized)
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="gatewayd-tokenize")
        added = self._trusting.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = {added[i].content: i for i in self.special_ids}
        self._special_starts = {text[0] for text in self.special_texts}
        # Made now, not at the first request: a large vocabulary takes a tenth of a second.
        self._pieces = self._all_pieces()
        self._full_table = ByteTable.of(self._pieces)
        self._visible_table = ByteTable.of(
            [b"" if i in self.special_ids else piece for i, piece in enumerate(self._pieces)]
        )
        self.longest_token = max(map(len, self._pieces))
        """Bytes of the longest token: a text has at least ``len / longest`` tokens."""

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a checkpoint.

        Raises:
            FileNotFoundError: there is none.
            ValueError: it cannot be read as one.
        """
        return cls((folder / "tokenizer.json").read_text(encoding="utf-8"))

    @property
    def vocab_size(self) -> int:
        """Ids that the tokenizer knows; the model may have more."""
        return max(self._trusting.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Finds the text of a special token, the longest where several fit."""
        texts = sorted(self.special_texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def spells_special(self, text: str) -> bool:
        """Whether a text has the text of a special token in it."""
        # Nearly every text is free of the one character that special tokens begin with.
        if not any(char in text for char in self._special_starts):
            return False
        return self.special_pattern is not None and bool(self.special_pattern.search(text))

    def encode(self, text: str, *, add_special: bool = False, trusted: bool = False) -> list[int]:
        """Encode a text.

        Args:
            text: without lone surrogates.
            add_special: add what the tokenizer puts around a text, such as BOS.
            trusted: whether spelled special tokens become special tokens.
        """
        backend = self._trusting if trusted else self._plain
        # encode_batch_fast takes 2 us less, but starts a thread pool that complains at each fork.
        ids: list[int] = backend.encode(text, add_special_tokens=add_special).ids
        return ids

    async def encode_async(
        self, text: str, *, add_special: bool = False, trusted: bool = False
    ) -> list[int]:
        """Encode; a long text in a thread."""
        if len(text) <= INLINE_CHARS:
            return self.encode(text, add_special=add_special, trusted=trusted)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(
            self._pool, lambda: self.encode(text, add_special=add_special, trusted=trusted)
        )

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Decode all ids at once; ids without a token have no text."""
        text: str = self._trusting.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer:
        """Start decoding a sequence piece by piece."""
        if self.is_byte_level:
            return ByteDetokenizer(self._visible_table if skip_special else self._full_table)
        return WindowDetokenizer(lambda ids: self.decode(ids, skip_special=skip_special))

    def piece(self, token: int) -> bytes:
        """The bytes of one token, special or not; empty for an unknown id."""
        return self._pieces[token] if 0 <= token < len(self._pieces) else b""

    @cached_property
    def is_byte_level(self) -> bool:
        """Whether a token is a run of bytes, whatever its neighbours."""
        decoder = self._spec.get("decoder") or {}
        if decoder.get("type") == "Sequence":
            inner = decoder.get("decoders", [])
            return len(inner) == 1 and inner[0].get("type") == "ByteLevel"
        return bool(decoder.get("type") == "ByteLevel")

    def _all_pieces(self) -> list[bytes]:
        pieces = [b""] * self.vocab_size
        for token, i in self._trusting.get_vocab(with_added_tokens=True).items():
            pieces[i] = _token_bytes(token) if self.is_byte_level else self.decode([i]).encode()
        return pieces


def _byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's).

    Printable bytes stand for themselves, the others for the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in set(printable))
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()


def _token_bytes(token: str) -> bytes:
    """A token with a character outside the alphabet (an added one) is plain text."""
    try:
        return bytes(_ALPHABET[char] for char in token)
    except KeyError:
        return token.encode()
