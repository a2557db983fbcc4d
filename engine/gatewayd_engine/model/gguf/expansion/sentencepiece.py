"""SentencePiece vocabularies of GGUF files, the kind ``llama``: BPE with scores for its order."""

from __future__ import annotations

import math
from typing import Any

from gatewayd_engine.model.gguf.expansion.vocabulary import (
    BYTE,
    CONTROL,
    SCORES,
    UNKNOWN,
    GgufVocabulary,
)
from gatewayd_engine.model.gguf.names import PHI
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MOST_MERGES = 1 << 21
"""Limit of pairs of tokens; Gemma's 256,000 tokens have 600,000."""
SPACE_PREFIX = "tokenizer.ggml.add_space_prefix"
_SPACE = "\u2581"
_UNKNOWN_ID, _BOS_ID, _EOS_ID = 0, 1, 2
"""Where a file does not say otherwise, as in Llama's vocabulary."""


def sentencepiece(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Return the parts of a tokenizer.json.

    Raises:
        LoadError: the file has no scores, or some that are no numbers.
    """
    has_prefix = vocabulary.fields.flag(SPACE_PREFIX, True)
    bos = vocabulary.special_id("bos", _BOS_ID) if vocabulary.adds("bos_token", True) else None
    eos = vocabulary.special_id("eos", _EOS_ID) if vocabulary.adds("eos_token", False) else None
    unknown = vocabulary.special_id("unknown", _UNKNOWN_ID)
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    # Before each part of a text between special tokens, as in Llama 2's tokenizer.json.
    prefix = [{"type": "Prepend", "prepend": _SPACE}] if has_prefix else []
    decoders = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {
        "added_tokens": vocabulary.added_tokens(strips_right=_strips_right(vocabulary)),
        "normalizer": {"type": "Sequence", "normalizers": [*prefix, spaces]},
        "pre_tokenizer": None,
        "post_processor": vocabulary.template(bos, eos),
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None if unknown is None else vocabulary.tokens[unknown],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocabulary.ids,
            "merges": _merges(vocabulary),
        },
    }


def _strips_right(vocabulary: GgufVocabulary) -> bool:
    """Whether special tokens take the spaces after them, as Phi-3's do; files do not say it."""
    return vocabulary.fields.text("general.architecture", "") == PHI


def _merges(vocabulary: GgufVocabulary) -> list[list[str]]:
    """Return all pairs of tokens whose text is a token, best score first.

    SentencePiece merges the adjacent pair whose result has the best score; equal scores are ordered
    as in transformers' conversion.
    """
    tokens, ids = vocabulary.tokens, vocabulary.ids
    scores = vocabulary.fields.numbers(SCORES, len(tokens))
    if scores is None:
        raise LoadError(f"{vocabulary.fields.where} lacks {SCORES}")
    if any(map(math.isnan, scores)):
        raise vocabulary.fields.wrong(SCORES, "numbers")
    whole = {
        text
        for text, kind in zip(tokens, vocabulary.types, strict=True)
        if kind in (CONTROL, UNKNOWN, BYTE)
    }
    found: list[tuple[float, int, int, str, str]] = []
    for text, score in zip(tokens, scores, strict=True):
        if text in whole:
            continue
        pairs = [(text[:at], text[at:]) for at in range(1, len(text))]
        pairs = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [
            (-score, -len(left), -len(right), left, right)
            for left, right in pairs
            if left not in whole and right not in whole
        ]
        if len(found) > MOST_MERGES:
            raise LoadError(
                f"{vocabulary.fields.where}: its tokens consist of more than {MOST_MERGES} pairs of"
                " tokens"
            )
    found.sort(key=lambda one: one[:3])
    return [[left, right] for *_, left, right in found]
