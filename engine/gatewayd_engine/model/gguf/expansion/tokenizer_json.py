"""``tokenizer.json`` and ``tokenizer_config.json`` from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gatewayd_engine.model.gguf.expansion.byte_level import byte_level
from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.sentencepiece import sentencepiece
from gatewayd_engine.model.gguf.expansion.vocabulary import (
    MERGES,
    SCORES,
    TOKENS,
    TYPES,
    GgufVocabulary,
)
from gatewayd_engine.model.gguf.expansion.wordpiece import wordpiece
from gatewayd_engine.model.loading.safetensors_headers import LoadError

MODEL = "tokenizer.ggml.model"
TEMPLATE = "tokenizer.chat_template"
TOOL_USE = "tool_use"
WANTED = frozenset({TOKENS, TYPES, SCORES, MERGES, TEMPLATE, f"{TEMPLATE}.{TOOL_USE}"})
"""Keys of long values."""
_KINDS: dict[str, Callable[[GgufVocabulary], dict[str, Any]]] = {
    "gpt2": byte_level,
    "llama": sentencepiece,
    "bert": wordpiece,
}
_TOKEN_NAMES = {
    "bos": "bos_token",
    "eos": "eos_token",
    "unknown": "unk_token",
    "padding": "pad_token",
    "seperator": "sep_token",
    "mask": "mask_token",
}
"""Names in tokenizer_config.json of tokens of a special meaning."""


def tokenizer_json(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Return the contents of a tokenizer.json.

    Raises:
        LoadError: the tokenizer is of an unknown kind, or invalid.
    """
    fields = vocabulary.fields
    kind = fields.text(MODEL)
    if kind not in _KINDS:
        raise LoadError(
            f"{fields.where}: {MODEL} is {kind[:60]!r}, which is not known here; known are"
            f" {', '.join(_KINDS)}; serve a folder with the file and the model's config.json and"
            " tokenizer.json"
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        **_KINDS[kind](vocabulary),
    }


def tokenizer_config_json(vocabulary: GgufVocabulary) -> dict[str, Any]:
    """Return the contents of a tokenizer_config.json: special tokens and chat templates.

    Raises:
        LoadError: a template or an id of a token is none.
    """
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for name, entry in _TOKEN_NAMES.items():
        found = vocabulary.special_id(name)
        if found is not None:
            config[entry] = vocabulary.tokens[found]
    if template := _template(vocabulary.fields):
        config["chat_template"] = template
    return config


def _template(fields: GgufFields) -> str | list[dict[str, str]] | None:
    if TEMPLATE not in fields:
        return None
    default = fields.text(TEMPLATE)
    if (key := f"{TEMPLATE}.{TOOL_USE}") not in fields:
        return default
    return [
        {"name": "default", "template": default},
        {"name": TOOL_USE, "template": fields.text(key)},
    ]
