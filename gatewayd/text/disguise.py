"""A tokenizer that knows its special tokens under names that nobody can guess.

Whatever a client writes is text to it, while a trusted text can still have special tokens in it,
by those names. All else about the tokens stays as it is: their ids, and whether they swallow the
spaces beside them or stand only between words.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer as Backend


class Disguise:
    """The tokenizer and the names.

    Attributes:
        backend: knows special tokens by their secret names only.
    """

    def __init__(self, spec: Mapping[str, Any]) -> None:
        """Rename the special tokens of a tokenizer.

        Args:
            spec: a ``tokenizer.json``.

        Raises:
            ValueError: an id of an added token does not fit into the vocabulary.
        """
        secret = secrets.token_hex(8)
        added = sorted(spec.get("added_tokens") or [], key=lambda token: int(token["id"]))
        special = [token for token in added if token["special"]]
        self._names = {token["content"]: f"<{secret}:{token['id']}>" for token in special}
        self._pattern = re.compile(_alternatives(special)) if special else None
        renamed = [
            {**token, "content": self._names.get(token["content"], token["content"])}
            for token in added
        ]
        # Without a place in the model's vocabulary a new name would get a new id.
        vocab = _extended(spec["model"]["vocab"], {t["content"]: t["id"] for t in renamed})
        model = {**spec["model"], "vocab": vocab}
        disguised = {**spec, "added_tokens": renamed, "model": model}
        self.backend = Backend.from_str(json.dumps(disguised, ensure_ascii=False))
        for token in renamed:
            if self.backend.token_to_id(token["content"]) != token["id"]:
                raise ValueError(f"the added token {token['id']} does not fit into the vocabulary")

    def apply(self, text: str) -> str:
        """Write the special tokens of a trusted text by their secret names."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda found: self._names[found[0]], text)


def _alternatives(tokens: list[dict[str, Any]]) -> str:
    """Finds what the tokenizer would: the longest, and whole words where it asks for them."""
    longest_first = sorted(tokens, key=lambda token: len(token["content"]), reverse=True)
    return "|".join(
        rf"(?<!\w){re.escape(token['content'])}(?!\w)"
        if token["single_word"]
        else re.escape(token["content"])
        for token in longest_first
    )


def _extended(vocab: Any, names: Mapping[str, int]) -> Any:  # noqa: ANN401 - two forms
    """The vocabulary of a model with these names for their ids, in order."""
    if isinstance(vocab, dict):
        return {**vocab, **names}
    pieces = list(vocab)  # Unigram's: pieces with scores, by id
    for name, i in names.items():
        if i < len(pieces):
            pieces[i] = [name, pieces[i][1]]
        elif i == len(pieces):
            pieces.append([name, 0.0])
    return pieces
