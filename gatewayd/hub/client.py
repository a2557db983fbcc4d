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
from typing import BinaryIO, NamedTuple, TypeVar

# Before its import: requests say what is asked for, and not by which program or agent; and
# warnings, which have the signed addresses of files, are not written. Files are fetched by HTTP,
# and not by Xet, whose servers the Hub's answers choose and which writes by itself.
os.environ["HF_HUB_DISABLE_XET"] = "1"
os.environ["HF_HUB_DISABLE_SHARED_BLOBS"] = "1"
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
os.environ.setdefault("HF_HUB_VERBOSITY", "error")

from huggingface_hub import HfApi, constants, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

from gatewayd.hub.errors import (
    DAMAGED,
    NO_ACCESS,
    NO_REVISION,
    NOT_FOUND,
    OFFLINE,
    UNREACHABLE,
    HubError,
    of_store,
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
                f"{endpoint()} gives no valid size and digest of {one.rfilename}", DAMAGED
            )
        files[one.rfilename] = RepoFile(one.rfilename, size, str(digest))
    commit = info.sha
    if not HubReference(reference.repo, commit or "").is_commit:
        raise HubError(f"{endpoint()} names no commit of {reference}", DAMAGED)
    return Listing(str(commit), frozenset(names), files)


def download(
    reference: HubReference, commit: str, file: RepoFile, into: BinaryIO, on_bytes: OnBytes
) -> None:
    """Download a file; interrupted connections are resumed.

    Of the answers nothing but the content is used: not the names, digests and sizes in their
    headers. Redirects are followed; to other hosts than the Hub's without its token.

    Args:
        reference: names the repository.
        commit: of the file.
        file: to fetch.
        into: where its content is written; empty.
        on_bytes: called with the number of bytes fetched so far, before they are written; what it
            raises ends the download.

    Raises:
        HubError: it cannot be fetched.
    """
    with _translated(reference):
        url = hf_hub_url(reference.repo, file.name, revision=commit)
        _patiently(lambda: _fetch(url, file.size, into, on_bytes), into.tell)


def _fetch(url: str, size: int, into: BinaryIO, on_bytes: OnBytes) -> None:
    """Fetch a file, or the rest of it."""
    count = into.tell()
    if count == size and count:
        return
    # What is sent is what is stored, so that it can be resumed.
    headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
    if count:
        headers["Range"] = f"bytes={count}-"
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
        hf_raise_for_status(response)
        if count and response.status_code != 206:
            into.seek(0)
            into.truncate()
            count = 0
        for chunk in response.iter_raw():
            count += len(chunk)
            on_bytes(count)
            into.write(chunk)
    into.flush()


def _patiently(call: Callable[[], T], position: Callable[[], int] = lambda: 0) -> T:
    """Make a call, and repeat it while the server is busy or connections break.

    Args:
        call: to make.
        position: progress of the call; attempts are counted from the last one that made some.
    """
    wait, left = _WAIT_SECONDS, _RETRIES
    while True:
        before = position()
        try:
            return call()
        except HfHubHTTPError as error:
            seconds = _seconds_to_wait(error, wait)
            if seconds is None or not left:
                raise
        except (OSError, ValueError):
            raise
        except Exception:  # its HTTP client's errors are no part of its interface
            if position() > before:
                wait, left = _WAIT_SECONDS, _RETRIES
            if not left:
                raise
            seconds = wait
        time.sleep(seconds)
        wait, left = wait * 2, left - 1


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
    where, repo = endpoint(), reference.repo
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
        return of_store(error, store_folder())
    return HubError(f"cannot fetch {repo} from {where}: {_text(error)}", UNREACHABLE)


def _text(error: BaseException) -> str:
    """Return the first line of the library's error, or of its cause."""
    cause = error.__cause__ or error
    line = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    # Queries of addresses are signatures.
    return _without_user(re.sub(r"\?[^\s'\"]*", "", line))[:300]


def endpoint() -> str:
    """The Hub's address for messages, without a name and password."""
    return _without_user(constants.ENDPOINT)


def _without_user(text: str) -> str:
    return re.sub(r"//[^/\s'\"]*@", "//", text)


def _is_digest(digest: object) -> bool:
    return (
        isinstance(digest, str)
        and len(digest) in (40, 64)
        and all(letter in "0123456789abcdef" for letter in digest)
    )
