"""Models in the store: list them, describe them, and delete one."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gatewayd.hub.errors import IN_USE, NOT_STORED, HubError
from gatewayd.hub.gguf_models import GgufModel, find_gguf, gguf_models
from gatewayd.hub.reference import DEFAULT_REVISION, HubReference
from gatewayd.hub.store import (
    file_names,
    repo_folder,
    snapshot,
    store_folder,
    stored_files,
    stored_repos,
)

ModelFormat = Literal["safetensors", "gguf"]

_LONGEST_CONFIG = 10_000_000


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """A model in the store.

    Attributes:
        reference: its name.
        commit: of its files.
        format: ``safetensors`` or ``gguf``.
        size: of its files, in bytes.
        modified: Unix time of the newest file.
        problem: why it cannot be served, such as missing files; empty if it can.
        family: ``model_type`` of its ``config.json``; empty if unknown.
        dtype: of its weights by ``config.json``, or its GGUF quantization.
        context_length: in tokens, by ``config.json``; 0 if unknown.
    """

    reference: HubReference
    commit: str
    format: ModelFormat
    size: int
    modified: float
    problem: str = ""
    family: str = ""
    dtype: str = ""
    context_length: int = 0

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the model at its commit."""
        return hashlib.sha256(f"{self.reference} {self.commit}".encode()).hexdigest()


def list_stored() -> list[StoreEntry]:
    """List the models of the store, sorted by name; files of other kinds are left out.

    Raises:
        OSError: the store cannot be read.
    """
    if not store_folder().is_dir():
        return []
    return sorted(
        (entry for repo in stored_repos() for entry in _of_repo(repo)),
        key=lambda entry: str(entry.reference),
    )


def delete_stored(reference: HubReference, served: Path | None = None) -> int:
    """Delete a model, and its repository with the last one.

    Args:
        reference: names it; without a part all models of the revision.
        served: path that is being served, which is not deleted.

    Returns:
        Number of bytes freed.

    Raises:
        HubError: it is not there, or it is being served.
        OSError: it cannot be deleted.
    """
    folder = snapshot(reference)
    if folder is None:
        raise HubError(f"{reference} is not in {store_folder()}", NOT_STORED)
    names = file_names(folder)
    if reference.part:
        model = find_gguf(_lenient(gguf_models(names)), reference.part, reference.repo)
        doomed = [folder / name for name in model.files]
    else:
        doomed = [folder / name for name in names]
    if served is not None and _is_served(served, folder, doomed):
        raise HubError(
            f"{reference} is being served; serve another model before it is deleted", IN_USE
        )
    repo = repo_folder(reference.repo)
    before = _size_of(repo)
    is_last = len(doomed) == len(names)
    if is_last and len(list((repo / "snapshots").iterdir())) == 1:
        shutil.rmtree(repo)
        return before
    for path in doomed:
        path.unlink()
    if is_last:
        shutil.rmtree(folder)
        for ref in _refs(repo, folder.name):
            (repo / "refs" / ref).unlink()
    _remove_unused(repo)
    return before - _size_of(repo)


def _of_repo(repo: str) -> Iterator[StoreEntry]:
    folder = repo_folder(repo)
    try:
        commits = sorted(path for path in (folder / "snapshots").iterdir() if path.is_dir())
    except OSError:
        return
    for commit in commits:
        refs = _refs(folder, commit.name)
        if DEFAULT_REVISION in refs:
            refs = [DEFAULT_REVISION]
        for revision in refs or [commit.name]:
            yield from _of_commit(HubReference(repo, revision), commit)


def _of_commit(reference: HubReference, folder: Path) -> Iterator[StoreEntry]:
    names = file_names(folder)
    models = gguf_models(names)
    others = [name for name in names if not name.endswith(".gguf")]
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in others):
        try:
            problem = "" if not stored_files(reference, folder).served else "files are missing"
        except HubError as error:
            problem = str(error)
        yield _entry(reference, folder, others, "safetensors", problem)
    for model in models:
        one = HubReference(reference.repo, reference.revision, model.label)
        missing = f"{model.num_missing} parts are missing" if model.num_missing else ""
        yield _entry(one, folder, model.files, "gguf", missing)


def _entry(
    reference: HubReference,
    folder: Path,
    names: list[str] | tuple[str, ...],
    format: ModelFormat,
    problem: str,
) -> StoreEntry:
    states = [(folder / name).stat() for name in names]
    is_gguf = format == "gguf"
    config = {} if is_gguf else _config(folder)
    context = config.get("max_position_embeddings")
    return StoreEntry(
        reference,
        folder.name,
        format,
        sum(state.st_size for state in states),
        max(state.st_mtime for state in states),
        problem,
        family=_text(config.get("model_type")),
        dtype=reference.part if is_gguf else _text(config.get("dtype", config.get("torch_dtype"))),
        context_length=context if isinstance(context, int) else 0,
    )


def _config(folder: Path) -> dict[str, object]:
    file = folder / "config.json"
    try:
        if file.stat().st_size > _LONGEST_CONFIG:
            return {}
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def _text(value: object) -> str:
    return value[:100] if isinstance(value, str) and value.isprintable() else ""


def _refs(repo: Path, commit: str) -> list[str]:
    """Return the branches and tags of a commit."""
    root = repo / "refs"
    return [n for n in file_names(root) if (root / n).read_bytes().strip() == commit.encode()]


def _is_served(served: Path, folder: Path, doomed: list[Path]) -> bool:
    # By their inodes: a path of the configuration may lead here in another way.
    if served.is_dir():
        return served.samefile(folder) and any(path.suffix != ".gguf" for path in doomed)
    return served.exists() and any(served.samefile(path) for path in doomed)


def _lenient(models: list[GgufModel]) -> list[GgufModel]:
    """Return models as if they were complete: an incomplete one can be deleted, too."""
    return [model._replace(num_missing=0) for model in models]


def _remove_unused(repo: Path) -> None:
    """Remove contents to which no snapshot refers."""
    blobs = repo / "blobs"
    links = (path for path in (repo / "snapshots").rglob("*") if path.is_symlink())
    used = {os.path.basename(os.readlink(link)) for link in links}
    for blob in blobs.iterdir() if blobs.is_dir() else ():
        # Other processes write to files with longer names.
        if blob.name not in used and not blob.name.endswith(".incomplete"):
            blob.unlink()


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
