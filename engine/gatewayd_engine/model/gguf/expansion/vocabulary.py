"""Tokens of a GGUF file, with their types and those of a special meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.loading.safetensors_headers import LoadError

LONGEST_TOKEN = 1024
"""Limit in characters of a token."""
MOST_CHARACTERS = 1 << 24
"""Limit in characters of all tokens."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Types of tokens, as llama.cpp numbers them."""
_PREFIX = "tokenizer.ggml"
TOKENS, TYPES, SCORES = f"{_PREFIX}.tokens", f"{_PREFIX}.token_type", f"{_PREFIX}.scores"
MERGES = f"{_PREFIX}.merges"
_NAMES = ("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask")
"""Special meanings of tokens, spelled as in the keys."""
_UNSTRIPPED = ("<unk>", "<s>", "<|endoftext|>")
"""Texts of special tokens that never take the spaces after them."""
_ENDS = frozenset(
    {
        *("</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>"),
        *("<|end|>", "<end_of_turn>", "<eos>", "<EOT>", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    }
)
"""Texts of tokens that end an answer or a document. Files name only one or two by their ids."""


@dataclass(frozen=True)
class GgufVocabulary:
    """Tokens by id, and the settings of a tokenizer that all kinds share.

    Attributes:
        fields: metadata.
        tokens: texts by id, each unique.
        types: by id, see ``NORMAL`` and following.
    """

    fields: GgufFields
    tokens: list[str]
    types: list[int]

    @classmethod
    def of_metadata(cls, fields: GgufFields) -> GgufVocabulary:
        """Read the tokens.

        Raises:
            LoadError: they are missing, too long, or not unique.
        """
        # llama.cpp's name for a token that has none.
        tokens = [text or f"[EMPTY_{i}]" for i, text in enumerate(fields.texts(TOKENS))]
        if not tokens:
            raise fields.wrong(TOKENS, "an array of at least one text")
        longest = max(range(len(tokens)), key=lambda i: len(tokens[i]))
        if len(tokens[longest]) > LONGEST_TOKEN:
            raise LoadError(
                f"{fields.where}: token {longest} has {len(tokens[longest])} characters; at most"
                f" {LONGEST_TOKEN} are read"
            )
        if (total := sum(map(len, tokens))) > MOST_CHARACTERS:
            raise LoadError(
                f"{fields.where}: its tokens have {total} characters; at most {MOST_CHARACTERS}"
                " are read"
            )
        numbers = fields.numbers(TYPES, len(tokens))
        if numbers is not None and not all(math.isfinite(kind) for kind in numbers):
            raise fields.wrong(TYPES, "an array of integers")
        types = [NORMAL] * len(tokens) if numbers is None else [int(kind) for kind in numbers]
        found = cls(fields, tokens, types)
        if len(found.ids) < len(tokens):
            twice = next(i for i, text in enumerate(tokens) if found.ids[text] != i)
            raise LoadError(
                f"{fields.where}: tokens {twice} and {found.ids[tokens[twice]]} are both"
                f" {tokens[twice][:40]!r}"
            )
        return found

    @cached_property
    def ids(self) -> dict[str, int]:
        """Ids by text."""
        return {text: i for i, text in enumerate(self.tokens)}

    def special_id(self, name: str, default: int | None = None) -> int | None:
        """Return the id of a token of a special meaning, such as ``bos``; None for none.

        Raises:
            LoadError: the vocabulary has no such id.
        """
        key = f"{_PREFIX}.{name}_token_id"
        if key not in self.fields:
            return default if default is not None and default < len(self.tokens) else None
        found = self.fields.size(key, least=0)
        if found >= len(self.tokens):
            raise self.fields.wrong(key, f"below {len(self.tokens)}, the number of tokens")
        return found

    def adds(self, name: str, default: bool) -> bool:
        """Whether a special token is put before or after a text."""
        return self.fields.flag(f"{_PREFIX}.add_{name}", default)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Ids of the tokens that end a generation, sorted."""
        named = {self.special_id(name) for name in ("eos", "eot", "eom")} - {None}
        known = {i for i in self._added if self.tokens[i] in _ENDS}
        return tuple(sorted({*(i for i in named if i is not None), *known}))

    @cached_property
    def _added(self) -> list[int]:
        """Ids of the tokens that are found in a text before it is split."""
        if TYPES in self.fields:
            kinds = (CONTROL, USER_DEFINED, UNKNOWN)
            return [i for i, kind in enumerate(self.types) if kind in kinds]
        # Only where nothing else tells them: a file may name an ordinary token for padding.
        named = {self.special_id(name) for name in _NAMES}
        return sorted(i for i in named if i is not None)

    def added_tokens(self, *, strips_right: bool = False) -> list[dict[str, Any]]:
        """Return the entry ``added_tokens`` of a tokenizer.json.

        Args:
            strips_right: whether spaces after a special token belong to it.
        """
        ends = set(self.ends)
        made = []
        for i in self._added:
            is_special = self.types[i] != USER_DEFINED or i in ends
            made.append(
                {
                    "id": i,
                    "content": self.tokens[i],
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": strips_right and is_special and self.tokens[i] not in _UNSTRIPPED,
                    "normalized": False,
                    "special": is_special,
                }
            )
        return made

    def template(self, before: int | None, after: int | None) -> dict[str, Any] | None:
        """Return the post-processor that puts tokens around a text; None without any."""
        around = [
            *([] if before is None else [_special(self.tokens[before])]),
            {"Sequence": {"id": "A", "type_id": 0}},
            *([] if after is None else [_special(self.tokens[after])]),
        ]
        if len(around) == 1:
            return None
        return {
            "type": "TemplateProcessing",
            "single": around,
            # Required, though two texts are never encoded together.
            "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {
                self.tokens[i]: {"id": self.tokens[i], "ids": [i], "tokens": [self.tokens[i]]}
                for i in (before, after)
                if i is not None
            },
        }


def _special(token: str) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": 0}}
