"""Models in the store: list them, describe them, and delete one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gatewayd.hub.errors import IN_USE, NOT_STORED, HubError
from gatewayd.hub.gguf_models import GgufModel, find_gguf, gguf_models
from gatewayd.hub.reference import DEFAULT_REVISION, HubReference
from gatewayd.hub.revisions import (
    commit_at,
    commits_of,
    forget_listing,
    forget_revision,
    read_listing,
    revisions_of,
)
from gatewayd.hub.shared_blobs import free_unused, shared_targets
from gatewayd.hub.store import (
    file_names,
    find_stored,
    repo_folder,
    store_folder,
    stored_files,
    stored_repos,
)
from gatewayd.hub.store_locks import changing, is_served
from gatewayd_engine.model.config.context import served_context

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


def delete_stored(reference: HubReference) -> int:
    """Delete a model, and its repository with the last one.

    Args:
        reference: names it; without a part all models of the revision.

    Returns:
        Number of bytes freed.

    Raises:
        HubError: it is not there, or it is being served, pulled or deleted.
        OSError: it cannot be deleted.
    """
    if not _snapshots(reference):
        raise HubError(f"{reference} is not in {store_folder()}", NOT_STORED)
    with changing(reference.repo, wait=False):
        return _delete(reference)


def _delete(reference: HubReference) -> int:
    repo = repo_folder(reference.repo)
    doomed = _doomed(reference)
    for folder, names in doomed.items():
        paths = [folder / name for name in names]
        if any(not name.endswith(".gguf") for name in names):
            paths.append(folder)
        if any(map(is_served, paths)):
            raise HubError(
                f"{reference} is being served; serve another model before it is deleted", IN_USE
            )
    before, shared = _size_of(repo), shared_targets(repo)
    for folder, names in doomed.items():
        for name in names:
            (folder / name).unlink(missing_ok=True)
        if not file_names(folder):
            shutil.rmtree(folder)
            forget_listing(repo, folder.name)
            for revision in revisions_of(repo, folder.name):
                if commit_at(repo, revision) == folder.name:
                    forget_revision(repo, revision)
    if not reference.part and not reference.is_commit:
        # Else it would be served from the commit that the branch had before.
        forget_revision(repo, reference.revision)
    if not any((repo / "snapshots").iterdir()):
        shutil.rmtree(repo)
        return before + free_unused(shared)
    _remove_unused(repo)
    return before - _size_of(repo) + free_unused(shared - shared_targets(repo))


def _doomed(reference: HubReference) -> dict[Path, list[str]]:
    """Return the files to delete, by snapshot.

    Raises:
        HubError: there are none.
    """
    folders = _snapshots(reference)
    if not reference.part:
        entries = _of_repo(reference.repo)
        named = {one.commit for one in entries if one.reference.revision == reference.revision}
        at = commit_at(repo_folder(reference.repo), reference.revision) or reference.revision
        return {one: file_names(one) for one in folders if one.name in named or one.name == at}
    doomed: dict[Path, list[str]] = {}
    problem: HubError | None = None
    for folder in folders:
        names = file_names(folder)
        models = _models(reference.repo, folder, names)
        try:
            model = find_gguf(_lenient(models), reference.part, reference.repo)
        except HubError as error:
            problem = problem or error
        else:
            doomed[folder] = [name for name in model.files if name in names]
    if not doomed and problem is not None:
        raise problem
    return doomed


def _snapshots(reference: HubReference) -> list[Path]:
    """Return the stored commits that a reference may mean, the preferred one first."""
    repo = repo_folder(reference.repo)
    folders = [repo / "snapshots" / commit for commit in commits_of(repo, reference)]
    return [folder for folder in folders if folder.is_dir()]


def _of_repo(repo: str) -> list[StoreEntry]:
    root = repo_folder(repo) / "snapshots"
    try:
        commits = sorted(path for path in root.iterdir() if path.is_dir())
    except OSError:
        return []
    found: list[StoreEntry] = []
    for commit in commits:
        # Other processes may delete it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            found += _of_commit(repo, commit)
    return found


def _of_commit(repo: str, folder: Path) -> list[StoreEntry]:
    names = file_names(folder)
    others = [name for name in names if not name.endswith(".gguf")]
    entries = []
    if any(name.endswith((".safetensors", ".safetensors.index.json")) for name in others):
        for reference in _names(HubReference(repo), folder):
            try:
                problem = "" if not stored_files(reference, folder).served else "files are missing"
            except HubError as error:
                problem = str(error)
            entries.append(_entry(reference, folder, others, "safetensors", problem))
    for model in _models(repo, folder, names):
        files = [name for name in model.files if name in names]
        missing = f"{model.num_missing} parts are missing" if model.num_missing else ""
        entries += [
            _entry(reference, folder, files, "gguf", missing)
            for reference in _names(HubReference(repo, part=model.label), folder)
        ]
    return entries


def _models(repo: str, folder: Path, names: list[str]) -> list[GgufModel]:
    """Return the GGUF models of a snapshot, by the names that they have among all of the commit."""
    listed = read_listing(repo_folder(repo), folder.name)
    models = []
    for model in gguf_models({*names, *listed}):
        absent = sum(name not in names for name in model.files)
        if absent < len(model.files):
            models.append(model._replace(num_missing=model.num_missing + absent))
    return models


def _names(model: HubReference, folder: Path) -> list[HubReference]:
    """Return the references to a model of a commit: its branches and tags, or else the commit.

    Args:
        model: a reference to it, of any revision.
        folder: of the commit.
    """
    found = []
    for revision in revisions_of(repo_folder(model.repo), folder.name):
        reference = HubReference(model.repo, revision, model.part)
        try:
            is_meant = find_stored(reference)[0] == folder
        except HubError:
            is_meant = commit_at(repo_folder(model.repo), revision) == folder.name
        if is_meant:
            found.append(reference)
    main = [one for one in found if one.revision == DEFAULT_REVISION]
    return main or found or [HubReference(model.repo, folder.name, model.part)]


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
    return StoreEntry(
        reference,
        folder.name,
        format,
        sum(state.st_size for state in states),
        max(state.st_mtime for state in states),
        problem,
        family=_text(config.get("model_type")),
        dtype=reference.part if is_gguf else _text(config.get("dtype", config.get("torch_dtype"))),
        context_length=served_context(config) or 0,
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
