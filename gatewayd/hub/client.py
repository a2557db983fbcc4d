"""Client of the Hub: the only module that uses ``huggingface_hub``.

It honours ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME``, ``HF_HUB_OFFLINE`` and the rest of that
library's variables, which are read when it is imported: by the process of a pull, not the daemon.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

# Before its import: requests say what is asked for, and not by which program or agent; and
# warnings, which have the signed addresses of files, are not written.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_VERBOSITY", "error")

from huggingface_hub import HfApi, constants, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from gatewayd.hub.errors import (
    DAMAGED,
    NO_ACCESS,
    NO_REVISION,
    NO_SPACE,
    NOT_FOUND,
    OFFLINE,
    UNREACHABLE,
    HubError,
)
from gatewayd.hub.reference import HubReference
from gatewayd.hub.repo_files import RepoFile, check_names, is_allowed
from gatewayd.hub.store import store_folder

_RETRIES = 3
_WAIT_SECONDS = 0.5
_LONGEST_WAIT = 300.0
"""Limit of the wait that a rate limit asks for, in seconds; the Hub counts in five minutes."""
_LIST_SECONDS = 30.0
_OF_FILES = frozenset(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
)
"""Numbers of errors of file systems, not of connections."""
_BUSY = frozenset((408, 429, 500, 502, 503, 504))

T = TypeVar("T")

OnBytes = Callable[[int], None]


class Listing(NamedTuple):
    """Content of a repository at a commit.

    Attributes:
        commit: that the revision stands for.
        names: of all files.
        files: those that may be fetched, by name.
    """

    commit: str
    names: frozenset[str]
    files: dict[str, RepoFile]


def list_files(reference: HubReference) -> Listing:
    """List the files of a repository.

    Raises:
        HubError: it cannot be listed, or the answer is not valid.
    """
    with _translated(reference):
        info = _patiently(
            lambda: HfApi().model_info(
                reference.repo,
                revision=reference.revision,
                files_metadata=True,
                timeout=_LIST_SECONDS,
            )
        )
    siblings = info.siblings or []
    names = [one.rfilename for one in siblings]
    check_names(names)
    files = {}
    for one in siblings:
        digest = one.blob_id if one.lfs is None else one.lfs.sha256
        size = one.size if one.lfs is None else one.lfs.size
        if not is_allowed(one.rfilename):
            continue
        if not _is_digest(digest) or not isinstance(size, int) or size < 0:
            raise HubError(
                f"{constants.ENDPOINT} gives no valid size and digest of {one.rfilename}", DAMAGED
            )
        files[one.rfilename] = RepoFile(one.rfilename, size, str(digest))
    commit = info.sha
    if not HubReference(reference.repo, commit or "").is_commit:
        raise HubError(f"{constants.ENDPOINT} names no commit of {reference}", DAMAGED)
    return Listing(str(commit), frozenset(names), files)


def download(reference: HubReference, commit: str, file: RepoFile, on_bytes: OnBytes) -> Path:
    """Download a file into the store, unless it is there; interrupted connections are resumed.

    Args:
        reference: names the repository.
        commit: of the file.
        file: to fetch.
        on_bytes: called with the number of bytes fetched so far.

    Returns:
        Its path in the snapshot of the commit.

    Raises:
        HubError: it cannot be fetched.
    """
    with _translated(reference):
        return Path(
            _patiently(
                lambda: hf_hub_download(
                    reference.repo,
                    file.name,
                    revision=commit,
                    cache_dir=store_folder(),
                    tqdm_class=progress_class(on_bytes),
                )
            )
        )


def progress_class(on_bytes: OnBytes) -> type[Any]:
    """Return a class as the library's ``tqdm_class``, which reports to a function."""

    class Progress(_Progress):
        """Progress of one download."""

        report = staticmethod(on_bytes)

    return Progress


class _Progress:
    """The part of tqdm that the library calls; counts bytes.

    Attributes:
        report: called with the number of bytes.
    """

    report: OnBytes

    def __init__(self, *_: object, initial: int = 0, **__: object) -> None:
        self.n = initial
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is drawn."""

    def update(self, count: float | None = 1) -> None:
        """Count bytes; fewer than none if a connection begins again."""
        self.n += int(count or 0)
        self.report(self.n)

    def update_transfer(self, count: float | None = 1) -> None:
        """Ignore the bytes on the wire, of which there are fewer than of the file."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Ignore what is drawn."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_, **__: None


def _patiently(call: Callable[[], T]) -> T:
    """Make a call, and repeat it while the server is busy or connections break."""
    wait = _WAIT_SECONDS
    for _ in range(_RETRIES):
        try:
            return call()
        except HfHubHTTPError as error:
            seconds = _seconds_to_wait(error, wait)
            if seconds is None:
                raise
        except (OSError, ValueError):
            raise
        except Exception:  # noqa: BLE001 - its HTTP client's errors are no part of its interface
            seconds = wait
        time.sleep(seconds)
        wait *= 2
    return call()


def _seconds_to_wait(error: HfHubHTTPError, usual: float) -> float | None:
    """Return when to repeat a request that was refused; None if that is of no use."""
    if error.response.status_code not in _BUSY:
        return None
    asked = error.response.headers.get("retry-after", "")
    seconds = float(asked) if asked.isascii() and asked.isdigit() else usual
    return seconds if seconds <= _LONGEST_WAIT else None


@contextmanager
def _translated(reference: HubReference) -> Iterator[None]:
    """Translate the library's errors.

    Raises:
        HubError: there was one.
    """
    where, repo = constants.ENDPOINT, reference.repo
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise HubError(
            f"HF_HUB_OFFLINE is set, so {repo} cannot be asked for: unset it", OFFLINE
        ) from error
    except GatedRepoError as error:
        raise HubError(
            f"{where} grants no access to {repo}: accept its terms there, and set HF_TOKEN to a"
            " token of that account",
            NO_ACCESS,
        ) from error
    except RepositoryNotFoundError as error:
        raise HubError(
            f"{where} has no model {repo}, or it is private: check the name, or set HF_TOKEN",
            NOT_FOUND,
        ) from error
    except RevisionNotFoundError as error:
        raise HubError(
            f"{repo} has no revision {reference.revision!r}; it may have been deleted: choose"
            " another, or none for main",
            NO_REVISION,
        ) from error
    except RemoteEntryNotFoundError as error:
        raise HubError(
            f"{where} lists a file of {repo} that it lacks: {_text(error)}", DAMAGED
        ) from error
    except HfHubHTTPError as error:
        raise _of_status(error, where, repo) from error
    except HubError:
        raise
    except OSError as error:
        raise _of_os_error(error, where, repo) from error
    except Exception as error:  # the errors of its HTTP client are no part of its interface
        raise HubError(f"cannot fetch {repo} from {where}: {_text(error)}", UNREACHABLE) from error


def _of_status(error: HfHubHTTPError, where: str, repo: str) -> HubError:
    status = error.response.status_code
    if status in (401, 403):
        return HubError(
            f"{where} refuses {repo} with status {status}: check HF_TOKEN and its rights", NO_ACCESS
        )
    if status == 429:
        asked = error.response.headers.get("retry-after", "")
        when = f" after {asked[:20]} s" if asked else " later"
        return HubError(f"{where} limits requests: try again{when}", UNREACHABLE)
    return HubError(f"{where} answers {repo} with status {status}; try again later", UNREACHABLE)


def _of_os_error(error: OSError, where: str, repo: str) -> HubError:
    if isinstance(error.__cause__, HfHubHTTPError):
        return _of_status(error.__cause__, where, repo)
    if error.errno in _OF_FILES:
        return HubError(
            f"cannot write {error.filename or store_folder()}: {error.strerror}", NO_SPACE
        )
    return HubError(f"cannot fetch {repo} from {where}: {_text(error)}", UNREACHABLE)


def _text(error: BaseException) -> str:
    """Return the first line of the library's error, or of its cause."""
    cause = error.__cause__ or error
    line = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    # Queries of addresses are signatures.
    return re.sub(r"\?[^\s'\"]*", "", line)[:300]


def _is_digest(digest: object) -> bool:
    return (
        isinstance(digest, str)
        and len(digest) in (40, 64)
        and all(letter in "0123456789abcdef" for letter in digest)
    )
