"""Mistral's ``tekken.json`` as a ``tokenizer.json``.

Tokens are bytes with ranks: of all adjacent pairs the one whose result has the lowest rank is
merged, which are merges by rank. Ids begin with special tokens, and not all tokens of the file are
the model's.
"""

from __future__ import annotations

import base64
import binascii
from array import array
from collections.abc import Mapping
from typing import Any

from gatewayd_engine.model.gguf.expansion.byte_level import PRE
from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.tokenizer_json import MODEL, tokenizer_json
from gatewayd_engine.model.gguf.expansion.vocabulary import (
    CONTROL,
    LONGEST_TOKEN,
    MERGES,
    NORMAL,
    TOKENS,
    TYPES,
    GgufVocabulary,
)
from gatewayd_engine.model.json_fields import JsonFields
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_hooks.helpers.spelling import BYTE_ALPHABET

_MOST_TOKENS = 1 << 20
_MOST_MERGES = 1 << 22
_BOS = "<s>"
_LETTERS = {byte: letter for letter, byte in BYTE_ALPHABET.items()}


def tekken_json(values: Mapping[str, Any], where: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the contents of a tokenizer.json.

    Args:
        values: contents of the file.
        where: its name, for errors.
        config: contents of tokenizer_config.json, empty for none.

    Raises:
        LoadError: the file is damaged, or older than its special tokens.
        SpecError: a value is missing or of another type.
    """
    about = JsonFields(values, where).inner("config")
    if about is None:
        raise LoadError(f"{where} lacks config")
    num_special = about.size("default_num_special_tokens", most=_MOST_TOKENS)
    size = about.size("default_vocab_size", most=_MOST_TOKENS)
    pattern = about.text("pattern", "")
    if not pattern:
        raise LoadError(f"{where}: config lacks pattern")
    special = _special(values, where, num_special)
    ranks = _ranks(values, where, size - num_special)
    adds_bos = config.get("add_bos_token", True)
    spelled = ["".join(_LETTERS[byte] for byte in token) for token in ranks]
    metadata: dict[str, Any] = {
        MODEL: "gpt2",
        PRE: "tekken",
        TOKENS: [*special, *spelled],
        TYPES: array("i", [CONTROL] * num_special + [NORMAL] * len(spelled)),
        MERGES: [],
    }
    vocabulary = GgufVocabulary.of_metadata(GgufFields(metadata, where))
    made = tokenizer_json(vocabulary)
    made["model"]["merges"] = _merges(ranks, where)
    made["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {
                "type": "Split",
                "pattern": {"Regex": pattern},
                "behavior": "Isolated",
                "invert": False,
            },
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            },
        ],
    }
    bos = special.index(_BOS) if adds_bos and _BOS in special else None
    made["post_processor"] = vocabulary.template(bos, None)
    return made


def _special(values: Mapping[str, Any], where: str, count: int) -> list[str]:
    entries = values.get("special_tokens")
    if not isinstance(entries, list):
        raise LoadError(f"{where} has no special_tokens, as files before version 7")
    texts = [f"<SPECIAL_{i}>" for i in range(count)]
    for entry in entries:
        text = entry.get("token_str") if isinstance(entry, dict) else None
        rank = entry.get("rank") if isinstance(entry, dict) else None
        if not isinstance(text, str) or type(rank) is not int or not 0 <= rank < count:
            raise LoadError(f"{where}: special_tokens must have token_str and rank below {count}")
        texts[rank] = text
    return texts


def _ranks(values: Mapping[str, Any], where: str, count: int) -> dict[bytes, int]:
    """Return the ranks of the model's tokens."""
    entries = values.get("vocab")
    if not isinstance(entries, list) or not 256 <= count <= len(entries):
        raise LoadError(f"{where}: vocab must have the {count} tokens of config, 256 at least")
    ranks: dict[bytes, int] = {}
    for rank, entry in enumerate(entries[:count]):
        encoded = entry.get("token_bytes") if isinstance(entry, dict) else None
        try:
            token = base64.b64decode(encoded or "", validate=True)
        except (TypeError, ValueError, binascii.Error):
            token = b""
        if not 0 < len(token) <= LONGEST_TOKEN or entry.get("rank") != rank:
            raise LoadError(f"{where}: vocab has no token_bytes and rank as number {rank}")
        ranks[token] = rank
    if len(ranks) < count or any(bytes((byte,)) not in ranks for byte in range(256)):
        raise LoadError(f"{where}: vocab has a token twice, or lacks one of a byte")
    return ranks


def _merges(ranks: Mapping[bytes, int], where: str) -> list[list[str]]:
    made: list[list[str]] = []
    for token in ranks:
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        made += [["".join(_LETTERS[byte] for byte in part) for part in pair] for pair in known]
        if len(made) > _MOST_MERGES:
            raise LoadError(f"{where}: its tokens consist of more than {_MOST_MERGES} pairs")
    return made
