"""Tokenizer whose special tokens have secret names, against special-token injection.

Text from clients is always encoded as ordinary text, while trusted text can contain special tokens
by their secret names. All other properties of the tokens are unchanged: their ids, and whether
they strip adjacent spaces or match only whole words.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend


class SecretSpecialTokens:
    """Secret names of special tokens, and a tokenizer that uses them.

    Attributes:
        backend: tokenizer that recognizes special tokens by their secret names only.
    """

    def __init__(self, spec: Mapping[str, Any], genuine: Backend) -> None:
        """Build a copy of a tokenizer with renamed special tokens.

        Args:
            spec: contents of a ``tokenizer.json``.
            genuine: tokenizer built from it, which may correct the ids of added tokens.
        """
        # Random, so that no client can write a name.
        secret = secrets.token_hex(8)
        known = {token.content: i for i, token in genuine.get_added_tokens_decoder().items()}
        added = [token for token in spec.get("added_tokens") or [] if token["content"] in known]
        special = [token for token in added if token["special"]]
        self._names = {token["content"]: f"<{secret}:{at}>" for at, token in enumerate(special)}
        self._pattern = re.compile(_alternatives(special)) if special else None
        renamed, ids = [], {}
        for token in added:
            name = self._names.get(token["content"], token["content"])
            renamed.append({**token, "content": name})
            ids[name] = known[token["content"]]
        # A name that is not in the model's vocabulary would get a new id.
        model = {**spec["model"], "vocab": _extended(spec["model"]["vocab"], ids)}
        disguised = {**spec, "added_tokens": renamed, "model": model}
        self.backend = Backend.from_str(json.dumps(disguised, ensure_ascii=False))

    def rename(self, text: str) -> str:
        """Replace the special tokens in a trusted text by their secret names."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)


def _alternatives(tokens: list[dict[str, Any]]) -> str:
    """Build a pattern with the tokenizer's matching rules: longest first, ``single_word``."""
    longest_first = sorted(tokens, key=lambda token: len(token["content"]), reverse=True)
    return "|".join(
        rf"(?<!\w){re.escape(token['content'])}(?!\w)"
        if token["single_word"]
        else re.escape(token["content"])
        for token in longest_first
    )


def _extended(vocab: Any, ids: Mapping[str, int]) -> Any:  # noqa: ANN401 - two forms
    """Return a model's vocabulary with additional names for its ids, or with new ids."""
    if isinstance(vocab, dict):
        return {**vocab, **ids}
    pieces = list(vocab)  # Unigram's: pieces with scores, by id; new ids follow the last one
    for name, i in sorted(ids.items(), key=lambda item: item[1]):
        if i < len(pieces):
            pieces[i] = [name, pieces[i][1]]
        else:
            pieces.append([name, 0.0])
    return pieces
