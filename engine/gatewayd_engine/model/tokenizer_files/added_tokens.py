"""Tokens that a model adds to the vocabulary of its tokenizer's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gatewayd_engine.model.gguf.expansion.vocabulary import CONTROL, UNUSED, USER_DEFINED
from gatewayd_engine.model.json_fields import LARGEST_SIZE
from gatewayd_engine.model.loading.safetensors_headers import LoadError

_MOST_ADDED = 1 << 16


class VocabularyFile(NamedTuple):
    """Tokens by id, with their types (see ``gguf.expansion.vocabulary``) and scores."""

    tokens: list[str]
    types: list[int]
    scores: list[float]

    def add(self, config: Mapping[str, Any], added: Mapping[str, Any]) -> None:
        """Add tokens, or name those of the vocabulary otherwise.

        Args:
            config: contents of tokenizer_config.json.
            added: contents of added_tokens.json: ids by text.

        Raises:
            LoadError: an entry is none.
        """
        decoder = config.get("added_tokens_decoder") or {}
        if not isinstance(decoder, dict):
            raise LoadError("tokenizer_config.json: added_tokens_decoder must be an object")
        for name, id_ in added.items():
            self._put("added_tokens.json", id_, name, USER_DEFINED)
        for id_, entry in decoder.items():
            where = "tokenizer_config.json: added_tokens_decoder"
            text = entry.get("content") if isinstance(entry, dict) else None
            kind = CONTROL if text is None or entry.get("special", False) else USER_DEFINED
            self._put(where, int(id_) if id_.isdecimal() and len(id_) < 10 else None, text, kind)

    def _put(self, where: str, id_: object, text: object, kind: int) -> None:
        if not isinstance(text, str) or not text:
            raise LoadError(f"{where} has a token without a text")
        most = min(LARGEST_SIZE, len(self.tokens) + _MOST_ADDED)
        if type(id_) is not int or not 0 <= id_ < most:
            raise LoadError(f"{where} has {text[:40]!r} with an id that is not from 0 to {most}")
        while len(self.tokens) <= id_:
            self.tokens.append(f"[PAD{len(self.tokens)}]")
            self.types.append(UNUSED)
            self.scores.append(0.0)
        self.tokens[id_], self.types[id_] = text, kind
