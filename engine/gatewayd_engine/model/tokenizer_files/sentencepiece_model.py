"""SentencePiece's ``tokenizer.model`` as a ``tokenizer.json``.

The file is a protobuf message, ``ModelProto`` of SentencePiece's ``sentencepiece_model.proto``.
Its pieces have the types and scores that GGUF files have too, so that both are one conversion.
"""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.sentencepiece import SPACE_PREFIX
from gatewayd_engine.model.gguf.expansion.tokenizer_json import MODEL, tokenizer_json
from gatewayd_engine.model.gguf.expansion.vocabulary import (
    BYTE,
    NORMAL,
    SCORES,
    TOKENS,
    TYPES,
    USER_DEFINED,
    GgufVocabulary,
)
from gatewayd_engine.model.loading.safetensors_headers import LoadError
from gatewayd_engine.model.tokenizer_files.added_tokens import VocabularyFile
from gatewayd_engine.model.tokenizer_files.protobuf import NotProtobuf, fields

_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_BPE = "bpe"
_SPACE = "\u2581"
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_NO_ID = (1 << 64) - 1
"""-1 as protobuf writes it."""


@dataclass(slots=True)
class _Model:
    """Contents of a file that are used."""

    pieces: VocabularyFile = field(default_factory=lambda: VocabularyFile([], [], []))
    kind: str = "unigram"
    ids: dict[str, int] = field(
        default_factory=lambda: {"unknown": 0, "bos": 1, "eos": 2, "padding": _NO_ID}
    )
    charsmap: bytes = b""
    adds_prefix: bool = True
    removes_spaces: bool = True
    escapes_spaces: bool = True
    is_suffix: bool = False


def sentencepiece_json(
    data: bytes, where: str, config: Mapping[str, Any], added: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the contents of a tokenizer.json.

    Args:
        data: contents of the file.
        where: its name, for errors.
        config: contents of tokenizer_config.json, empty for none.
        added: contents of added_tokens.json, empty for none.

    Raises:
        LoadError: the file is damaged, or its kind has no equal among tokenizer.json's.
    """
    try:
        model = _read(memoryview(data))
    except (NotProtobuf, UnicodeDecodeError, TypeError) as error:
        raise LoadError(f"{where} is no SentencePiece model: {error}") from error
    if not model.pieces.tokens:
        raise LoadError(f"{where} is no SentencePiece model: it has no pieces")
    if model.kind != _BPE or model.is_suffix or not model.escapes_spaces:
        kind = model.kind if model.kind != _BPE else "one that writes spaces otherwise"
        raise LoadError(f"{where} is a model of the kind {kind}; only bpe is converted here")
    model.pieces.add(config, added)
    adds = {key: _flag(config, f"add_{key}_token", key == "bos") for key in ("bos", "eos")}
    prefix = _flag(config, "add_prefix_space", model.adds_prefix)
    metadata: dict[str, Any] = {
        MODEL: "llama",
        TOKENS: model.pieces.tokens,
        TYPES: array("i", model.pieces.types),
        SCORES: array("d", model.pieces.scores),
        SPACE_PREFIX: prefix,
        "tokenizer.ggml.add_bos_token": adds["bos"] and model.ids["bos"] != _NO_ID,
        "tokenizer.ggml.add_eos_token": adds["eos"] and model.ids["eos"] != _NO_ID,
    }
    for name, one in model.ids.items():
        if one != _NO_ID:
            metadata[f"tokenizer.ggml.{name}_token_id"] = one
    made = tokenizer_json(GgufVocabulary.of_metadata(GgufFields(metadata, where)))
    made["model"]["byte_fallback"] = model.pieces.types.count(BYTE) == 256
    _normalize(made, model, prefix, is_legacy=_flag(config, "legacy", True))
    return made


def _flag(config: Mapping[str, Any], name: str, default: bool) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise LoadError(f"tokenizer_config.json: {name} must be true or false")
    return default if value is None else value


def _normalize(made: dict[str, Any], model: _Model, prefix: bool, *, is_legacy: bool) -> None:
    """Put before the conversion's own steps what the file says of texts."""
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        encoded = base64.b64encode(model.charsmap).decode()
        steps.append({"type": "Precompiled", "precompiled_charsmap": encoded})
    if model.removes_spaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if is_legacy or not prefix:
        steps += made["normalizer"]["normalizers"]
    else:
        # As transformers: the space is put before a text, and not behind its special tokens too.
        made["pre_tokenizer"] = {
            "type": "Metaspace",
            "replacement": _SPACE,
            "prepend_scheme": "first",
            "split": False,
        }
    made["normalizer"] = {"type": "Sequence", "normalizers": steps} if steps else None


def _read(data: memoryview) -> _Model:
    model = _Model()
    for number, value in fields(data):
        if number in (_PIECES, _TRAINER, _NORMALIZER) and not isinstance(value, memoryview):
            raise NotProtobuf(f"field {number} is a number")
        if number == _PIECES:
            _read_piece(value, model.pieces)  # type: ignore[arg-type]
        elif number == _TRAINER:
            _read_trainer(value, model)  # type: ignore[arg-type]
        elif number == _NORMALIZER:
            _read_normalizer(value, model)  # type: ignore[arg-type]
    return model


def _read_piece(data: memoryview, pieces: VocabularyFile) -> None:
    text, score, kind = "", 0.0, NORMAL
    for number, value in fields(data):
        if number == 1:
            text = _bytes(value).decode()
        elif number == 2:
            score = float(value)
        elif number == 3:
            kind = _integer(value)
    if not NORMAL <= kind <= BYTE or not math.isfinite(score):
        raise NotProtobuf(f"piece {len(pieces.tokens)} has the type {kind} and the score {score}")
    # These are found in a text before its spaces are replaced.
    pieces.tokens.append(text.replace(_SPACE, " ") if kind == USER_DEFINED else text)
    pieces.types.append(kind)
    pieces.scores.append(score)


def _read_trainer(data: memoryview, model: _Model) -> None:
    names = {40: "unknown", 41: "bos", 42: "eos", 43: "padding"}
    for number, value in fields(data):
        if number == 3:
            model.kind = _KINDS.get(_integer(value), "unknown")
        elif number == 24:
            model.is_suffix = bool(_integer(value))
        elif number in names:
            model.ids[names[number]] = _integer(value)


def _read_normalizer(data: memoryview, model: _Model) -> None:
    for number, value in fields(data):
        if number == 2:
            model.charsmap = _bytes(value)
        elif number == 3:
            model.adds_prefix = bool(_integer(value))
        elif number == 4:
            model.removes_spaces = bool(_integer(value))
        elif number == 5:
            model.escapes_spaces = bool(_integer(value))


def _bytes(value: object) -> bytes:
    if not isinstance(value, memoryview):
        raise NotProtobuf("a number is where bytes belong")
    return bytes(value)


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise NotProtobuf("bytes are where a number belongs")
    return value
