"""Tokenizers as llama.cpp's converter writes them to GGUF files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"
SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


def byte_level(folder: Path, pre: str = "llama-bpe") -> dict[str, Any]:
    """Metadata of the tokenizer.json of a folder, which is byte-level BPE."""
    file = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    ids = {**file["model"]["vocab"], **{one["content"]: one["id"] for one in file["added_tokens"]}}
    tokens = [f"[PAD{i}]" for i in range(max(ids.values()) + 1)]
    types = [UNUSED] * len(tokens)
    for token, i in ids.items():
        tokens[i], types[i] = token, NORMAL
    for one in file["added_tokens"]:
        types[one["id"]] = CONTROL if one["special"] else USER_DEFINED
    made = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in file["model"]["merges"]],
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": config.get("chat_template"),
    }
    for name, key in SPECIAL.items():
        if config.get(name) is not None:
            made[f"tokenizer.ggml.{key}_token_id"] = ids[config[name]]
    return made


def sentencepiece(texts: Iterable[str], size: int = 700) -> dict[str, Any]:
    """Metadata of a vocabulary as SentencePiece makes it: bytes, pieces by score, characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    pieces = list(dict.fromkeys("".join(pair) for pair in model["merges"]))
    characters = [one for one in model["vocab"] if len(one) == 1]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{i:02X}>" for i in range(256)), *pieces, *characters, "<|end|>"]
    tokens.append("  ")  # user-defined, of which the converter writes the text
    scores = [0.0] * len(tokens)
    for i in range(259, 259 + len(pieces) + len(characters)):
        scores[i] = float(259 - i)
    types = [NORMAL] * len(tokens)
    types[:259] = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256]
    types[-2:] = [CONTROL, USER_DEFINED]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }


def wordpiece(texts: Iterable[str], size: int = 500) -> tuple[dict[str, Any], dict[str, int]]:
    """Metadata of a vocabulary of BERT's kind, and its tokens as BERT spells them, by text."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special)
    tokenizer.train_from_iterator(texts, trainer)
    ids = tokenizer.get_vocab()
    tokens = []
    for token in sorted(ids, key=lambda token: ids[token]):
        # As the converter marks them.
        inner = token.removeprefix("##")
        tokens.append(token if token in special else inner if inner != token else SPACE + token)
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL] * 5 + [NORMAL] * (len(tokens) - 5),
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
    }, ids
