"""Folder in the layout of a Hugging Face checkpoint, made of a GGUF file. Imports no torch.

The folder is in the user's cache: links to the parts of the model, and the JSON files that its
metadata describe. Its path depends on all of them, so a changed file or another version of this
code makes another folder. A folder that has other contents is damaged, and made once more.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

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
from gatewayd_engine.process.file_writes import sync

_NAME = "general.name"
_LONGEST_NAME = 200
"""Limit in bytes; file systems take 255."""
_DIGEST_LENGTH = 32


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
        states = tuple((str(part), part.stat().st_mtime_ns, part.stat().st_size) for part in parts)
        return _expanded(states, _cache())


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LoadError(
            f"{error.filename or path} cannot be read: {error.strerror}; let the user of this"
            " process read it, and enter all folders above it"
        ) from error


def _expanded(states: tuple[tuple[str, int, int], ...], cache: Path) -> Path:
    parts = [Path(path) for path, _, _ in states]
    name, files = _described(states)
    digest = hashlib.sha256(repr((states, sorted(files.items()))).encode()).hexdigest()
    folder = cache / digest[:_DIGEST_LENGTH] / name
    # With the ending that a folder's weights are found by.
    links = {f"{part.name.removesuffix('.gguf')}.gguf": part for part in parts}
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        _refuse_foreign(cache)
        if _is_whole(folder, links, files):
            return folder
        with tempfile.TemporaryDirectory(dir=cache, prefix=".") as made:
            inner = Path(made) / name
            _write(inner, links, files)
            folder.parent.mkdir(exist_ok=True)
            if folder.is_symlink() or folder.exists():
                folder.rename(Path(made) / "damaged")
            # As a whole, so that no process finds half a folder.
            inner.rename(folder)
            sync(folder.parent)
    except OSError as error:
        if _is_whole(folder, links, files):  # made by another process
            return folder
        raise LoadError(
            f"{cache} cannot be written, where the tokenizer and the configuration of"
            f" {parts[0].name} are stored: {error.strerror}; set XDG_CACHE_HOME to another folder"
        ) from error
    return folder


def _is_whole(folder: Path, links: Mapping[str, Path], files: Mapping[str, str]) -> bool:
    """Whether a folder has these links and texts, and nothing else."""
    try:
        return (
            not folder.is_symlink()
            and {path.name for path in folder.iterdir()} == {*links, *files}
            and all((folder / link).readlink() == part for link, part in links.items())
            and all((folder / file).read_bytes() == files[file].encode() for file in files)
        )
    except OSError:
        return False


def _write(folder: Path, links: Mapping[str, Path], files: Mapping[str, str]) -> None:
    """Make a folder that survives a loss of power once it is renamed."""
    folder.mkdir()
    for link, part in links.items():
        (folder / link).symlink_to(part)
    for name, text in files.items():
        (folder / name).write_bytes(text.encode())
        sync(folder / name)
    sync(folder)


def _refuse_foreign(cache: Path) -> None:
    """Refuse a folder where other users could put templates and links.

    Raises:
        LoadError: it is another user's, or others may write it.
    """
    state = cache.stat()
    if state.st_uid != os.geteuid() or state.st_mode & 0o022:
        raise LoadError(
            f"{cache} belongs to, or can be written by, other users; remove it, or set"
            " XDG_CACHE_HOME to another folder"
        )


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    if base and not Path(base).is_absolute():
        raise LoadError(f"XDG_CACHE_HOME is {base!r}; set it to an absolute path, or not at all")
    try:
        return Path(base if base else Path.home() / ".cache") / "gatewayd" / "gguf"
    except RuntimeError as error:
        raise LoadError(f"{error}; set XDG_CACHE_HOME to a folder that can be written") from error


@lru_cache(maxsize=2)
def _described(states: tuple[tuple[str, int, int], ...]) -> tuple[str, dict[str, str]]:
    """Return a model's name, and the texts of its JSON files by name."""
    files = read_parts([Path(path) for path, _, _ in states], WANTED | PATTERNS)
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
