"""A pull: fetch the files of a model into the store, and verify their digests."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gatewayd.hub.choice import INDEX, MOST_INDEX_BYTES, choose, include, too_large
from gatewayd.hub.client import Listing, download, list_files
from gatewayd.hub.digests import digest_of
from gatewayd.hub.errors import DAMAGED, NO_SPACE, OFFLINE, HubError, of_store
from gatewayd.hub.pull_events import PullEvent
from gatewayd.hub.reference import HubReference
from gatewayd.hub.repo_files import RepoFile
from gatewayd.hub.revisions import write_listing, write_ref
from gatewayd.hub.store import free_bytes, path_of, remove_stale_parts, repo_folder, store_folder
from gatewayd.hub.store_locks import changing
from gatewayd_engine.process.file_writes import sync

_REPORT_SECONDS = 0.2
_GIB = 1 << 30
_RESERVE = _GIB
"""Space that a pull leaves free, in bytes: more than ``[store] free_bytes``."""

Report = Callable[[PullEvent], None]


def pull(reference: HubReference, patterns: Sequence[str] = (), *, report: Report) -> str:
    """Fetch a model.

    All of its files are verified, also those that were in the store. The revision refers to the new
    commit only once everything is there.

    Args:
        reference: names the model.
        patterns: of the files to fetch; empty for those that serve it.
        report: called with the progress.

    Returns:
        The commit; empty if the Hub was not asked, in offline mode.

    Raises:
        HubError: it cannot be fetched, or not all of it is there in offline mode.
    """
    report(PullEvent("listing"))
    try:
        listing = list_files(reference)
    except HubError as error:
        if error.code != OFFLINE or patterns:
            raise
        _check_stored(reference)
        report(PullEvent("done"))
        return ""
    try:
        with changing(reference.repo, wait=True) as has_waited:
            if has_waited:
                listing = list_files(reference)  # it may be hours old
            _fetch_chosen(reference, listing, patterns, report)
    except OSError as error:
        raise of_store(error, store_folder()) from error
    report(PullEvent("done"))
    return listing.commit


def _fetch_chosen(
    reference: HubReference, listing: Listing, patterns: Sequence[str], report: Report
) -> None:
    remove_stale_parts(reference.repo)
    fetch = _Fetch(reference, listing, report)
    chosen = (
        include(listing.names, patterns, reference.repo)
        if patterns
        else choose(listing.names, reference, fetch.read_index)
    )
    files = [listing.files[name] for name in chosen.names]
    fetch.check_space(files)
    repo = repo_folder(reference.repo)
    write_listing(repo, listing.commit, sorted(listing.files))
    for file in files:
        fetch.verified(file.name)
    fetch.sync_folders()
    write_ref(repo, reference, listing.commit)


def _check_stored(reference: HubReference) -> None:
    """Check that a model is complete, in offline mode.

    Raises:
        HubError: it is not.
    """
    try:
        path_of(reference)
    except HubError as error:
        raise HubError(
            f"{reference} is not completely in {store_folder()}, and HF_HUB_OFFLINE is set: unset"
            " it, or copy the model's folder there",
            OFFLINE,
        ) from error


class _Fetch:
    """Fetches and verifies files of one commit, each once."""

    def __init__(self, reference: HubReference, listing: Listing, report: Report) -> None:
        self._reference = reference
        self._commit = listing.commit
        self._files: Mapping[str, RepoFile] = listing.files
        self._report = report
        self._folder = repo_folder(reference.repo)
        self._done: dict[str, Path] = {}

    def check_space(self, files: Sequence[RepoFile]) -> None:
        """Check that the disk has space for all files that are not in the store.

        Raises:
            HubError: it has not.
        """
        # By digest: files of one content are stored once.
        sizes = {file.digest: file.size for file in files if not self._has(file)}
        needed = sum(sizes.values())
        free = free_bytes()
        if needed and needed + _RESERVE > free:
            raise HubError(
                f"{self._reference} needs {needed} bytes ({needed / _GIB:.1f} GiB) in"
                f" {store_folder()}, where {free} bytes ({free / _GIB:.1f} GiB) are free: free"
                " some, or set HF_HOME to a folder on another disk",
                NO_SPACE,
            )

    def read_index(self) -> bytes:
        """Return the content of the index, which names the other files.

        Raises:
            HubError: it cannot be fetched, or is too large.
        """
        index = self._files[INDEX]
        if index.size > MOST_INDEX_BYTES:
            raise too_large(self._reference.repo)
        self.check_space([index])
        return self.verified(INDEX).read_bytes()

    def verified(self, name: str) -> Path:
        """Return the path of a file with the right content.

        Raises:
            HubError: it cannot be fetched.
        """
        if name not in self._done:
            self._done[name] = self._fetch(self._files[name])
        return self._done[name]

    def sync_folders(self) -> None:
        """Flush the entries of all folders to disk; contents were flushed when they came."""
        inside = {folder for path in self._done.values() for folder in path.parents}
        for folder in (*inside, self._folder / "blobs"):
            if folder.is_relative_to(self._folder.parent) and folder.is_dir():
                sync(folder)

    def _fetch(self, file: RepoFile) -> Path:
        """Return the path of a file, fetched unless it is there with the right content."""
        path, content = self._path(file), self._content(file)
        for found in (path, content):
            if found.is_file():
                if self._is_right(found, file):
                    if found is content:
                        _link(path, content)
                    return path
                self._remove(found, file)
        self.check_space([file])
        content.parent.mkdir(parents=True, exist_ok=True)
        # By a name with which other tools, too, recognize an incomplete file.
        part = content.with_name(f"{file.digest}.{secrets.token_hex(4)}.incomplete")
        try:
            with part.open("xb") as into:
                on_bytes = self._reporter(file)
                on_bytes(0)
                download(self._reference, self._commit, file, into, on_bytes)
                into.flush()
                os.fsync(into.fileno())
            if not self._is_right(part, file):
                raise HubError(
                    f"{file.name} of {self._reference} was not the file that the Hub lists, by its"
                    " digest; it was removed: try again, and check HF_ENDPOINT and proxies",
                    DAMAGED,
                )
            # Only now, so that what the store has was verified, however this process ends.
            part.replace(content)
        finally:
            part.unlink(missing_ok=True)
        _link(path, content)
        return path

    def _reporter(self, file: RepoFile) -> Callable[[int], None]:
        told = 0.0

        def on_bytes(count: int) -> None:
            nonlocal told
            if count > file.size:
                # Before it fills the disk.
                raise HubError(
                    f"{file.name} of {self._reference} has more than the {file.size} bytes that"
                    " the Hub lists; check HF_ENDPOINT and proxies",
                    DAMAGED,
                )
            if count < file.size and time.monotonic() - told < _REPORT_SECONDS:
                return
            told = time.monotonic() if count < file.size else 0.0
            self._report(PullEvent("fetching", *_fields(file), count))

        return on_bytes

    def _is_right(self, found: Path, file: RepoFile) -> bool:
        self._report(PullEvent("fetching", *_fields(file), file.size))
        self._report(PullEvent("verifying", *_fields(file), file.size))
        return digest_of(found, file.digest) == file.digest

    def _remove(self, found: Path, file: RepoFile) -> None:
        """Remove a damaged file from this repository; what a link leads to elsewhere stays."""
        content = self._content(file)
        if found.resolve() == content.resolve():
            content.unlink(missing_ok=True)
        found.unlink(missing_ok=True)

    def _path(self, file: RepoFile) -> Path:
        return self._folder / "snapshots" / self._commit / file.name

    def _content(self, file: RepoFile) -> Path:
        # The digest was checked to have only hexadecimal digits.
        return self._folder / "blobs" / file.digest

    def _has(self, file: RepoFile) -> bool:
        return self._content(file).exists() or self._path(file).is_file()


def _fields(file: RepoFile) -> tuple[str, str, int]:
    """Return the fields of an event that describe a file."""
    return file.name, file.digest, file.size


def _link(path: Path, content: Path) -> None:
    """Link a file of a snapshot to its content, as huggingface's library does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(os.path.relpath(content, path.parent))
