"""Small tokenizer for tests: every byte, some words, special tokens, as ``tokenizer.json``."""

from __future__ import annotations

import json
from pathlib import Path

END, CALL, CALL_END = 0, 1, 2
"""Special tokens: the end of an answer, ``<tool_call>`` and ``</tool_call>``."""
VOCAB_SIZE = 320
"""Size of the logits; the tokenizer has fewer tokens, as is usual."""
_SPECIAL = ("<|end|>", "<tool_call>", "</tool_call>")
_WORDS = ('{"', '":', '"}', '",', "tr", "ue", "true", "an", "ab", "aba", "12", "00", "ye", "yes")


def write_tokenizer(folder: Path) -> list[bytes]:
    """Write ``tokenizer.json``: byte-level BPE.

    Returns:
        The spelling of each token; empty for special ones.
    """
    letters = _letters()
    vocab = {content: token for token, content in enumerate(_SPECIAL)}
    spelled = [b""] * len(_SPECIAL)
    for byte in range(256):
        vocab[letters[byte]] = len(spelled)
        spelled.append(bytes([byte]))
    merges = []
    for word in _WORDS:
        # Merge the longest prefix that is a token already, and the rest.
        cut = next(i for i in range(len(word) - 1, 0, -1) if {word[:i], word[i:]} <= vocab.keys())
        merges.append(f"{word[:cut]} {word[cut:]}")
        vocab[word] = len(spelled)
        spelled.append(word.encode())
    added = [
        {
            "id": token,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, content in enumerate(_SPECIAL)
    ]
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    file = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(file), encoding="utf-8")
    return spelled


def _letters() -> list[str]:
    """Return the character for each byte in byte-level BPE."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    strange = iter(range(256, 512))
    return [chr(byte if byte in plain else next(strange)) for byte in range(256)]
