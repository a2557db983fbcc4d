"""A checkpoint's ``tokenizer.json``: encoding, decoding and what each token is made of."""

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
from gatewayd.text.private_special_tokens import Disguise
from gatewayd.text.vocabulary import vocabulary_of

INLINE_SIZE = 2048
"""Texts of more characters or tokens go to a thread: 0.4 ms, what that costs on a busy core."""
LONG_SIZE = 32 << 10
"""Longer ones are encoded one at a time, apart from the others: the library takes up to 250 bytes
for each token of a text until it is through, 8 MiB at this size."""
PER_TEXT = 16
"""Characters that cost about as much as encoding an empty text."""

# One text at a time needs no threads of the library's own, which complain at each fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

T = TypeVar("T")


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
            spec = json.loads(serialized)
            self._disguise = Disguise(spec, self._trusting)
        except Exception as error:  # tokenizers raises bare Exception
            raise ValueError(f"not a tokenizer.json: {error}") from error
        for backend in (self._trusting, self._disguise.backend):
            backend.no_truncation()
            backend.no_padding()
        self._threads = FairThreads("gatewayd-tokenize", 2)
        # Of two cores it takes half of one: the other is the engine's, which may run on them.
        rest = 1 / max(1, available_cores() - 1)
        self._long_thread = FairThreads("gatewayd-tokenize-long", 1, rest=rest)
        added = self._trusting.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)
        self.special_texts = {added[i].content: i for i in self.special_ids}
        self._special_starts = {text[0] for text in self.special_texts}
        # Made now, not at the first request: a large vocabulary takes a tenth of a second.
        self._vocabulary = vocabulary_of(
            self._trusting, spec.get("decoder") or {}, self.special_ids
        )
        self.vocab_size = len(self._vocabulary.pieces)
        """Ids that the tokenizer knows; the model may have more."""
        self.longest_token = max(map(len, self._vocabulary.pieces))
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
    def queues(self) -> dict[str, QueueStats]:
        """Counts of its queues."""
        return {
            "tokenizer": self._threads.stats,
            "tokenizer_long": self._long_thread.stats,
        }

    @cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """Finds the text of a special token, the longest where several fit."""
        texts = sorted(self.special_texts, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts))) if texts else None

    def spells_special(self, text: str) -> bool:
        """Whether a text has the text of a special token in it."""
        # Nearly every text is free of the one character that special tokens begin with.
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
            add_special: add what the tokenizer puts around a text, such as BOS.
            trusted: whether spelled special tokens become special tokens.
        """
        backend = self._trusting if trusted else self._disguise.backend
        if len(text) <= INLINE_SIZE:
            found = backend.encode(text, add_special_tokens=add_special)
        else:
            # Unlike encode it lets other threads run meanwhile, the event loop's above all.
            found = backend.encode_batch_fast([text], add_special_tokens=add_special)[0]
        ids: list[int] = found.ids
        return ids

    def disguise(self, text: str) -> str:
        """Write special tokens so that ``encode`` finds them although the text is not trusted."""
        return self._disguise.apply(text)

    async def encode_async(
        self, text: str, *, add_special: bool = False, trusted: bool = False
    ) -> list[int]:
        """Encode; a long text in a thread."""
        return await self.apart(
            len(text), lambda: self.encode(text, add_special=add_special, trusted=trusted)
        )

    async def apart(self, size: int, work: Callable[[], T]) -> T:
        """Work on so many characters or tokens: here if they are few, else in a thread.

        Tenants take turns at the threads, and one alone leaves a thread free while others come.
        """
        if size <= INLINE_SIZE:
            return work()
        if size <= LONG_SIZE:
            return await self._threads.run(work)
        return await self._long_thread.run(lambda: _and_give_back(work))

    def decode(self, ids: Sequence[int], *, skip_special: bool = False) -> str:
        """Decode all ids at once; ids without a token have no text."""
        text: str = self._trusting.decode(list(ids), skip_special_tokens=skip_special)
        return text

    def detokenizer(
        self,
        *,
        skip_special: bool = True,
        continues: bool = False,
        shown: Collection[str] = (),
    ) -> Detokenizer:
        """Start decoding a sequence piece by piece.

        Args:
            skip_special: special tokens have no text.
            continues: the text goes on after another, so it keeps the space that SentencePiece
                vocabularies drop at the beginning of a text.
            shown: special tokens that have their text all the same; others are ignored.
        """
        ids = frozenset(self.special_texts[text] for text in shown if text in self.special_texts)
        return self._vocabulary.detokenizer(
            skip_special=skip_special, continues=continues, shown=ids
        )

    def piece(self, token: int, *, opens: bool = False) -> bytes:
        """The bytes of one token, special or not; empty for an unknown id.

        Args:
            token: its id.
            opens: whether it begins a text, rather than going on after another token.
        """
        if not 0 <= token < self.vocab_size:
            return b""
        return self._vocabulary.opening(token) if opens else self._vocabulary.pieces[token]


def _and_give_back(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        malloc_limits.trim()
