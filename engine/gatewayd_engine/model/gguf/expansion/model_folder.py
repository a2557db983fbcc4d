"""Folder in the layout of a Hugging Face checkpoint, made of a GGUF file. Imports no torch.

It has links to the parts of the model, and the JSON files that its metadata describe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from gatewayd_engine.model.derived_folder import FileState, derived_folder
from gatewayd_engine.model.gguf.expansion.config_json import PATTERNS, config_json
from gatewayd_engine.model.gguf.expansion.fields import GgufFields
from gatewayd_engine.model.gguf.expansion.tokenizer_json import (
    WANTED,
    tokenizer_config_json,
    tokenizer_json,
)
from gatewayd_engine.model.gguf.expansion.vocabulary import GgufVocabulary
from gatewayd_engine.model.gguf.files import parts_of, read_parts
from gatewayd_engine.model.loading.safetensors_headers import LoadError

_NAME = "general.name"
_LONGEST_NAME = 200
"""Limit in bytes; file systems take 255."""


def needs_expansion(path: Path) -> bool:
    """Whether a path is a file, or a folder of GGUF files that lacks a config.json.

    Raises:
        LoadError: it cannot be looked at.
    """
    with _readable(path):
        if path.is_dir():
            return not (path / "config.json").exists() and any(path.glob("*.gguf"))
        # A missing one, too, so that it is named as a file.
        return path.is_file() or path.suffix == ".gguf"


def expanded(path: Path) -> Path:
    """Return the folder of a GGUF model, which is named after the model.

    Args:
        path: a file, a part of a model in several files, or a folder with nothing but these.

    Raises:
        LoadError: a file is broken or its content not supported, or the cache cannot be written.
    """
    with _readable(path):
        parts = parts_of(path)
        return _expanded(tuple(map(FileState.of, parts)))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LoadError(
            f"{error.filename or path} cannot be read: {error.strerror}; let the user of this"
            " process read it, and enter all folders above it"
        ) from error


def _expanded(states: tuple[FileState, ...]) -> Path:
    name, texts = _described(states)
    # With the ending that a folder's weights are found by.
    links = {f"{Path(one.path).name.removesuffix('.gguf')}.gguf": Path(one.path) for one in states}
    return derived_folder("gguf", name, states, links, texts)


@lru_cache(maxsize=2)
def _described(states: tuple[FileState, ...]) -> tuple[str, dict[str, str]]:
    """Return a model's name, and the texts of its JSON files by name."""
    files = read_parts([Path(one.path) for one in states], WANTED | PATTERNS)
    vocabulary = GgufVocabulary.of_metadata(GgufFields(files.metadata, files.first.name))
    config = config_json(files, vocabulary.ends)
    if len(vocabulary.tokens) > config["vocab_size"]:
        raise LoadError(
            f"{files.first.name} has {len(vocabulary.tokens)} tokens, but embeddings of"
            f" {config['vocab_size']}"
        )
    made: dict[str, dict[str, Any]] = {
        "config.json": config,
        "generation_config.json": {"eos_token_id": config["eos_token_id"]},
        "tokenizer.json": tokenizer_json(vocabulary),
        "tokenizer_config.json": tokenizer_config_json(vocabulary),
    }
    texts = {name: json.dumps(values, ensure_ascii=False) for name, values in made.items()}
    return _model_name(files.metadata.get(_NAME), files.first), texts


def _model_name(given: object, first: Path) -> str:
    """Return the model's name as a folder can have it, else the file's without its ending."""
    # A name with an organisation is that of a folder in another.
    name = given.rpartition("/")[2].strip() if isinstance(given, str) else ""
    is_usable = name.isprintable() and name.strip(".") and len(name.encode()) <= _LONGEST_NAME
    return name if is_usable else first.stem
