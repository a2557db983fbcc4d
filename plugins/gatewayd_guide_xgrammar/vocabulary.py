"""Model's tokens in the format of XGrammar."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from xgrammar import GrammarCompiler, TokenizerInfo

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources


class XgrammarVocabulary:
    """Spelling of tokens. Special ones are empty, except where a delimiter is one of them.

    Attributes:
        size: number of tokens.
        ends: the model's end tokens.
        end_mask: a mask that allows them alone.
        special: contents of special tokens, except end tokens, and their ids.
    """

    def __init__(self, resources: EngineResources, threads: int) -> None:
        text = (Path(resources.folder) / "tokenizer.json").read_text("utf-8")
        file = json.loads(text)
        self.size = resources.vocab_size
        self.ends = frozenset(resources.eos_token_ids)
        self._threads = threads
        self._metadata: dict[str, Any] = TokenizerInfo._detect_metadata_from_hf(text)
        self._words = _words(file, self.size)
        added = file.get("added_tokens", [])
        self.special = {
            token["content"]: token["id"]
            for token in added
            if token["special"] and token["id"] < self.size and token["id"] not in self.ends
        }
        for token in added:
            if token["special"] and token["id"] < self.size:
                self._words[token["id"]] = ""
        self.end_mask = np.zeros(-(-self.size // 32), np.int32)
        # Unsigned: token 31 of a word is the sign of an int32.
        bits = self.end_mask.view(np.uint32)
        for end in self.ends:
            bits[end // 32] |= np.uint32(1 << (end % 32))
        self._plain: GrammarCompiler | None = None

    def compiler(self, marks: frozenset[str]) -> GrammarCompiler:
        """Return a compiler in whose vocabulary some special tokens are spelled by their names.

        The one without such tokens is cached. Others are created for each grammar, in 60 ms for
        150,000 tokens: if they were cached, timing would reveal which delimiters other tenants use.
        """
        if marks:
            return self._made(marks)
        if self._plain is None:
            self._plain = self._made(marks)
        return self._plain

    def _made(self, marks: frozenset[str]) -> GrammarCompiler:
        words = list(self._words)
        for mark in marks:
            words[self.special[mark]] = mark
        info = TokenizerInfo(
            words,
            self._metadata["vocab_type"],
            vocab_size=self.size,
            stop_token_ids=sorted(self.ends),
            add_prefix_space=self._metadata["add_prefix_space"],
        )
        # Without a cache of its own: engines cache grammars within one limit on memory, see ADR
        # 0020.
        return GrammarCompiler(info, max_threads=self._threads, cache_enabled=False)

    def marks_in(self, texts: Collection[str]) -> frozenset[str]:
        """Return the special tokens whose contents occur in texts."""
        return frozenset(one for one in self.special if any(one in text for text in texts))


def _words(file: dict[str, Any], size: int) -> list[str]:
    """Return every token as spelled in the file; empty where there is none."""
    vocab = file["model"]["vocab"]
    pairs = vocab.items() if isinstance(vocab, dict) else ((w[0], i) for i, w in enumerate(vocab))
    words = [""] * size
    for word, token in pairs:
        if token < size:
            words[token] = word
    for token in file.get("added_tokens", []):
        if token["id"] < size:
            words[token["id"]] = token["content"]
    return words
