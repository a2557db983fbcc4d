"""Tokenizers in SentencePiece's and Mistral's files, written byte by byte, and naive encoders."""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, pre_tokenizers

from gatewayd_hooks.helpers.spelling import BYTE_ALPHABET

PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Of Tekken: how a text is split into words."""
SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")
NUM_SPECIAL = 6


def varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes((*made, value))


def message(fields: Sequence[tuple[int, Any]]) -> bytes:
    """A protobuf message; a number of a field is a varint if it is whole, else 32 bits."""
    made = b""
    for number, value in fields:
        match value:
            case int():
                made += varint(number << 3) + varint(value)
            case float():
                made += varint(number << 3 | 5) + struct.pack("<f", value)
            case _:
                raw = value.encode() if isinstance(value, str) else value
                made += varint(number << 3 | 2) + varint(len(raw)) + raw
    return made


def model_proto(
    facts: Mapping[str, Any],
    *,
    trainer: Sequence[tuple[int, Any]] = ((3, 2),),
    normalizer: Sequence[tuple[int, Any]] = ((4, 0),),
) -> bytes:
    """A SentencePiece model with the tokens of a GGUF file's metadata."""
    texts, types = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    pieces = [
        (1, message([(1, text), (2, float(score)), (3, kind)]))
        for text, score, kind in zip(texts, facts["tokenizer.ggml.scores"], types, strict=True)
    ]
    return message([*pieces, (2, message(trainer)), (3, message(normalizer))])


def tekken_of(folder: Path) -> dict[str, Any]:
    """A tekken.json with the tokens of a byte-level tokenizer.json, and more than the model has."""
    file = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    added = {one["content"] for one in file["added_tokens"]}
    vocab: dict[str, int] = file["model"]["vocab"]
    spelled = sorted((text for text in vocab if text not in added), key=lambda text: vocab[text])
    tokens = [bytes(BYTE_ALPHABET[char] for char in text) for text in spelled]
    tokens.sort(key=len)  # single bytes first, and no token before its parts
    return {
        "config": {
            "pattern": PATTERN,
            "default_vocab_size": NUM_SPECIAL + len(tokens),
            "default_num_special_tokens": NUM_SPECIAL,
            "version": "v7",
        },
        "vocab": [
            {"rank": i, "token_bytes": base64.b64encode(token).decode()}
            for i, token in enumerate([*tokens, b"never a token"])
        ],
        "special_tokens": [{"rank": i, "token_str": text} for i, text in enumerate(SPECIAL)],
    }


def naive_tekken(text: str, file: Mapping[str, Any]) -> list[int]:
    """Ids: of all adjacent pairs of a word that with the lowest rank is merged, from the left.

    A word that is a token is taken whole.
    """
    size = file["config"]["default_vocab_size"] - NUM_SPECIAL
    entries = file["vocab"][:size]
    ranks = {base64.b64decode(one["token_bytes"]): one["rank"] for one in entries}
    pattern = "|".join(map(re.escape, SPECIAL))
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    found: list[int] = []
    for part in re.split(f"({pattern})", text):
        if part in SPECIAL:
            found.append(SPECIAL.index(part))
            continue
        for word, _ in split.pre_tokenize_str(part) if part else ():
            parts = [bytes((byte,)) for byte in word.encode()]
            if word.encode() in ranks:
                parts = [word.encode()]
            while len(parts) > 1:
                merged = [ranks.get(a + b, size) for a, b in pairwise(parts)]
                at = merged.index(min(merged))
                if merged[at] == size:
                    break
                parts[at : at + 2] = [parts[at] + parts[at + 1]]
            found += [NUM_SPECIAL + ranks[one] for one in parts]
    return found
