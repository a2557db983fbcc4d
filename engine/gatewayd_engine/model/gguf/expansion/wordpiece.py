"""WordPiece vocabularies of GGUF files, the kind ``bert``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gatewayd_engine.model.gguf.expansion.vocabulary import CONTROL, TOKENS, GgufVocabulary

LOWERCASE = "tokenizer.ggml.normalizer.lowercase"
STRIP_ACCENTS = "tokenizer.ggml.normalizer.strip_accents"
_SPACE, _INNER = "\u2581", "##"
_UNKNOWN_ID, _BOS_ID, _SEPARATOR_ID = 100, 101, 102
"""Where a file does not say otherwise, as in BERT's vocabulary."""
_LONGEST_WORD = 100


def wordpiece(marked: GgufVocabulary) -> dict[str, Any]:
    """Return the parts of a tokenizer.json.

    Args:
        marked: tokens, of which those at the beginning of a word are marked; BERT marks the others.

    Raises:
        LoadError: two tokens are the same without the marks, or none is for unknown words.
    """
    vocabulary = _as_in_bert(marked)
    fields = vocabulary.fields
    bos = vocabulary.special_id("bos", _BOS_ID) if vocabulary.adds("bos_token", True) else None
    has_end = vocabulary.adds("sep_token", True)
    end = vocabulary.special_id("seperator", _SEPARATOR_ID) if has_end else None
    unknown = vocabulary.special_id("unknown", _UNKNOWN_ID)
    if unknown is None:
        raise fields.wrong("tokenizer.ggml.unknown_token_id", "the id of a token")
    strips = fields.flag(STRIP_ACCENTS, False) if STRIP_ACCENTS in fields else None
    return {
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": strips,  # null is as lowercase
            "lowercase": fields.flag(LOWERCASE, True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": vocabulary.template(bos, end),
        "decoder": {"type": "WordPiece", "prefix": _INNER, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": vocabulary.tokens[unknown],
            "continuing_subword_prefix": _INNER,
            "max_input_chars_per_word": _LONGEST_WORD,
            "vocab": vocabulary.ids,
        },
    }


def _as_in_bert(marked: GgufVocabulary) -> GgufVocabulary:
    tokens = [
        text
        if kind == CONTROL
        else text.removeprefix(_SPACE)
        if text.startswith(_SPACE)
        else f"{_INNER}{text}"
        for text, kind in zip(marked.tokens, marked.types, strict=True)
    ]
    made = replace(marked, tokens=tokens)
    if len(made.ids) < len(tokens):
        raise marked.fields.wrong(TOKENS, "texts that differ by more than marks of spaces")
    return made
