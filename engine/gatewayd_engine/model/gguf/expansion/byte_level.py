"""Byte-level BPE of GGUF files, the kind ``gpt2``."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.model.gguf.expansion.pre_tokenizers import WORD_SPLITS
from gatewayd_engine.model.gguf.expansion.vocabulary import MERGES, GgufVocabulary
from gatewayd_engine.model.loading.safetensors_headers import LoadError

PRE = "tokenizer.ggml.pre"
COMPOSING = frozenset(("qwen2", "qwen35", "command-r", "olmo"))
"""Kinds whose original tokenizers compose letters and accents before they split words; llama.cpp
does not."""


def byte_level(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Return the parts of a tokenizer.json.

    Raises:
        LoadError: words are split in an unknown way, or a merge is not of this vocabulary.
    """
    fields = vocabulary.fields
    name = fields.text(PRE, "default")
    split = WORD_SPLITS.get(name)
    if split is None:
        raise LoadError(
            f"{fields.where}: {PRE} is {name[:60]!r}, which is not known here; known are"
            f" {', '.join(WORD_SPLITS)}; serve a folder with the file and the model's config.json"
            " and tokenizer.json"
        )
    before = vocabulary.special_id("bos") if vocabulary.adds("bos_token", split.adds_bos) else None
    after = vocabulary.special_id("eos") if vocabulary.adds("eos_token", False) else None
    return {
        "added_tokens": vocabulary.added_tokens(),
        "normalizer": {"type": "NFC"} if name in COMPOSING else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(split.steps)},
        "post_processor": vocabulary.template(before, after),
        "decoder": {
            "type": "ByteLevel",
            "add_prefix_space": True,
            "trim_offsets": True,
            "use_regex": True,
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": split.ignores_merges,
            "vocab": vocabulary.ids,
            "merges": _merges(vocabulary),
        },
    }


def _merges(vocabulary: GgufVocabulary) -> list[list[str]]:
    fields, ids = vocabulary.fields, vocabulary.ids
    made: list[list[str]] = []
    for number, merge in enumerate(fields.texts(MERGES)):
        # A token may begin with a space: the one that separates comes later.
        at = merge.find(" ", 1)
        pair = [merge[:at], merge[at + 1 :]]
        if at < 0 or not {*pair, "".join(pair)} <= ids.keys():
            raise LoadError(
                f"{fields.where}: {MERGES} has {merge[:40]!r} as number {number}, which merges no"
                " two tokens into a third"
            )
        made.append(pair)
    return made
