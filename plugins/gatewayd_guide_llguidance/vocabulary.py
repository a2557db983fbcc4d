"""Model's tokens in the format of llguidance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLTokenizer

if TYPE_CHECKING:
    from gatewayd_hooks.resources import EngineResources


class LlguidanceVocabulary:
    """Bytes of all tokens, and which of them end an answer.

    Attributes:
        tokenizer: as large as the logits; ids missing in the file are never allowed.
        size: number of tokens.
        ends: the model's end tokens.
        end_mask: a mask that allows them alone.
        special: contents of special tokens, except end tokens, and their ids.
    """

    def __init__(self, resources: EngineResources) -> None:
        file = json.loads((Path(resources.folder) / "tokenizer.json").read_text("utf-8"))
        self.size = resources.vocab_size
        self.ends = frozenset(resources.eos_token_ids)
        contents = _hide_special(file)
        self.special = {
            content: token
            for content, token in contents.items()
            if token not in self.ends and token < self.size
        }
        self.tokenizer = LLTokenizer(
            json.dumps(file), n_vocab=self.size, eos_token=sorted(self.ends)
        )
        self.end_mask = np.zeros(-(-self.size // 32), np.int32)
        # Unsigned: token 31 of a word is the sign of an int32.
        bits = self.end_mask.view(np.uint32)
        for end in self.ends:
            bits[end // 32] |= np.uint32(1 << (end % 32))


def _hide_special(file: dict[str, Any]) -> dict[str, int]:
    """Rename special tokens to something that no text contains.

    llguidance tokenizes forced text as the tokenizer would, which would convert the characters of
    ``<|im_end|>`` to that token and so end an answer. Grammars name special tokens by their ids.

    Returns:
        Ids by the original names.
    """
    contents = {}
    for token in file.get("added_tokens", []):
        if token["special"]:
            contents[token["content"]] = token["id"]
            token["content"] = _hidden(token["id"])
    vocab = file["model"].get("vocab")
    # BPE has an object of ids, Unigram a list of pairs with scores.
    if isinstance(vocab, dict):
        for content, token in contents.items():
            if content in vocab:
                vocab[_hidden(token)] = vocab.pop(content)
    elif isinstance(vocab, list):
        for content, token in contents.items():
            if token < len(vocab) and vocab[token][0] == content:
                vocab[token][0] = _hidden(token)
    return contents


def _hidden(token: int) -> str:
    """Return a name with Unicode noncharacters around the id."""
    return f"\ufdd0{token}\ufdd1"
