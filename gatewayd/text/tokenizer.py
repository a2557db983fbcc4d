"""Tokenizer of a checkpoint's ``tokenizer.json``: encoding, decoding and token bytes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from tokenizers import Tokenizer as Backend

from gatewayd.fairness.fair_queue import QueueStats
from gatewayd.fairness.fair_threads import FairThreads
from gatewayd.runtime import malloc_limits
from gatewayd.runtime.cpu_count import available_cores
from gatewayd.text.detokenizer import Detokenizer
from gatewayd.text.private_special_tokens import SecretSpecialTokens
from gatewayd.text.vocabulary import vocabulary_of

INLINE_SIZE = 2048
"""Maximum characters or tokens processed on the event loop: 0.4 ms, the cost of a thread switch."""
LONG_SIZE = 32 << 10
"""Longer texts are encoded one at a time, in a separate thread: the library allocates up to 250
bytes per token of a text during encoding, 8 MiB at this size."""
PER_TEXT = 16
"""Overhead of encoding a text, expressed in characters."""

# Texts are encoded one at a time, so the library's threads, which warn at each fork, are unused.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

T = TypeVar("T")


class Tokenizer:
    """Tokenizer of a model: encodes and decodes.

    Spelled special tokens are encoded as ordinary text, unless the caller trusts the text.
    """

    def __init__(self, serialized: str) -> None:
        """Build from the contents of a ``tokenizer.json``.

        Raises:
            ValueError: it is invalid.
        """
        try:
            self._trusting = Backend.from_str(serialized)
            spec = json.loads(serialized)
            self._secret_names = SecretSpecialTokens(spec, self._trusting)
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"not a tokenizer.json: {error}") from error
        # A checkpoint may enable both; prompts must be neither cut nor padded.
        for backend in (self._trusting, self._secret_names.backend):
            backend.no_truncation()
            backend.no_padding()
        self._threads = FairThreads("gatewayd-tokenize", 2)
        # On two cores it uses half of one, because the engine may run on both.
        rest = 1 / max(1, available_cores() - 1)
        self._long_thread = FairThreads("gatewayd-tokenize-long", 1, rest=rest)
        added = self._trusting.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = {added[i].content: i for i in self.special_ids}
        self._special_starts = {text[0] for text in self.special_texts}
        # Built eagerly, because a large vocabulary would delay the first request by 0.1 s.
        self._vocabulary = vocabulary_of(
            self._trusting, spec.get("decoder") or {}, self.special_ids
        )
        self.vocab_size = len(self._vocabulary.pieces)
        """Number of ids in the tokenizer; the model may have more."""
        self.longest_token = max(map(len, self._vocabulary.pieces))
        """Bytes of the longest token: a text has at least ``len / longest`` tokens."""

    @classmethod
    def from_folder(cls, folder: Path) -> Tokenizer:
        """Read ``tokenizer.json`` of a checkpoint.

        Raises:
            FileNotFoundError: the file does not exist.
            ValueError: the file is invalid.
        """
        return cls((folder / "tokenizer.json").read_text(encoding="utf-8"))

    @property
    def queues(self) -> dict[str, QueueStats]:
        """Statistics of its thread queues."""
        return {
            "tokenizer": self._threads.stats,
            "tokenizer_long": self._long_thread.stats,
        }

    @cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Pattern that matches any special token's text, longest first; None without any."""
        texts = sorted(self.special_texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def spells_special(self, text: str) -> bool:
        """Whether a text contains the text of a special token."""
        # Fast path: most texts lack the characters that special tokens begin with.
        for start in self._special_starts:
            if start in text:
                break
        else:
            return False
        return self.special_pattern is not None and bool(self.special_pattern.search(text))

    def encode(self, text: str, *, add_special: bool = False, trusted: bool = False) -> list[int]:
        """Encode a text.

        Args:
            text: without lone surrogates.
            add_special: add the special tokens that the tokenizer puts around a text, such as BOS.
            trusted: whether spelled special tokens are encoded as special tokens.
        """
        backend = self._trusting if trusted else self._secret_names.backend
        if len(text) <= INLINE_SIZE:
            found = backend.encode(text, add_special_tokens=add_special)
        else:
            # Unlike encode, it releases the GIL, so that the event loop can run.
            found = backend.encode_batch_fast([text], add_special_tokens=add_special)[0]
        ids: list[int] = found.ids
        return ids

    def rename_special_tokens(self, text: str) -> str:
        """Rename special tokens so that ``encode`` recognizes them in text that is not trusted."""
        return self._secret_names.rename(text)

    async def encode_async(
        self, text: str, *, add_special: bool = False, trusted: bool = False
    ) -> list[int]:
        """Encode a text, in a thread if it is long."""
        return await self.run_by_size(
            len(text), lambda: self.encode(text, add_special=add_special, trusted=trusted)
        )

    async def run_by_size(self, size: int, work: Callable[[], T]) -> T:
        """Run work on ``size`` characters or tokens: inline if small, else in a thread.

        Threads are shared fairly between tenants; a single tenant leaves one free for others.
        """
        if size <= INLINE_SIZE:
            return work()
        if size <= LONG_SIZE:
            return await self._threads.run(work)
        return await self._long_thread.run(lambda: _then_trim_memory(work))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Decode all ids at once; ids outside the vocabulary have no text."""
        text: str = self._trusting.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def detokenizer(
        self,
        *,
        skip_special: bool = True,
        continues: bool = False,
        shown: Collection[str] = (),
    ) -> Detokenizer:
        """Create an incremental detokenizer for a sequence.

        Args:
            skip_special: whether special tokens are omitted from the text.
            continues: whether the text continues another, so that it keeps the space that
                SentencePiece vocabularies drop at the beginning of a text.
            shown: special tokens that are not omitted; other strings are ignored.
        """
        texts = self.special_texts
        ids = frozenset([texts[text] for text in shown if text in texts] if shown else ())
        return self._vocabulary.detokenizer(
            skip_special=skip_special, continues=continues, shown=ids
        )

    def piece(self, token: int, *, opens: bool = False) -> bytes:
        """Return the bytes of one token, special or not; empty for an unknown id.

        Args:
            token: its id.
            opens: whether it is the first token of a text.
        """
        if not 0 <= token < self.vocab_size:
            return b""
        return self._vocabulary.opening_piece(token) if opens else self._vocabulary.pieces[token]


def _then_trim_memory(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        malloc_limits.trim()
