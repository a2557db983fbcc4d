"""Folder in the layout of a Hugging Face checkpoint, made of a GGUF file. Imports no torch.

The folder is in the user's cache: links to the parts of the model, and the JSON files that its
metadata describe. Its path depends on all of them, so a changed file or another version of this
code makes another folder, and a folder is never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from gatewayd_engine.model.gguf.expansion.config_json import config_json
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
_DIGEST_LENGTH = 32


def needs_expansion(path: Path) -> bool:
    """Whether a path is a file, or a folder of GGUF files that lacks a config.json."""
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
    parts = parts_of(path)
    try:
        states = tuple((str(part), part.stat().st_mtime_ns, part.stat().st_size) for part in parts)
    except OSError as error:
        raise LoadError(f"{error.filename} cannot be read: {error.strerror}") from error
    return _expanded(states, _cache())


@lru_cache(maxsize=8)
def _expanded(states: tuple[tuple[str, int, int], ...], cache: Path) -> Path:
    parts = [Path(path) for path, _, _ in states]
    name, files = _described(parts)
    digest = hashlib.sha256(repr((states, sorted(files.items()))).encode()).hexdigest()
    folder = cache / digest[:_DIGEST_LENGTH] / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".") as made:
            inner = Path(made) / name
            inner.mkdir()
            for part in parts:
                # With the ending that a folder's weights are found by.
                (inner / f"{part.name.removesuffix('.gguf')}.gguf").symlink_to(part)
            for file, text in files.items():
                (inner / file).write_text(text, "utf-8")
            folder.parent.mkdir(exist_ok=True)
            # As a whole, so that no process finds half a folder.
            inner.rename(folder)
    except OSError as error:
        if folder.is_dir():  # made by another process
            return folder
        raise LoadError(
            f"{cache} cannot be written, where the tokenizer and the configuration of"
            f" {parts[0].name} are stored: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error
    return folder


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(base if base else Path.home() / ".cache") / "gatewayd" / "gguf"
    except RuntimeError as error:
        raise LoadError(f"{error}; set XDG_CACHE_HOME to a folder that can be written") from error


def _described(parts: list[Path]) -> tuple[str, dict[str, str]]:
    """Return a model's name, and the texts of its JSON files by name."""
    files = read_parts(parts, WANTED)
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
