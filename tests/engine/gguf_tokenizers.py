"""Tokenizers as llama.cpp's converter writes them to GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
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
