"""Files of a repository: which names may be fetched, and the checks of hostile listings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from gatewayd.hub.errors import DAMAGED, HubError

ALLOWED: Final = (
    *("*.safetensors", "*.gguf", "*.json", "*.jinja"),
    *("tokenizer.model", "vocab.txt", "merges.txt"),
)
"""Patterns of all names that are ever fetched: weights and data, no code and no pickles."""
PICKLES: Final = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".h5", ".msgpack")
"""Endings of weights in formats that can run code, or that are not read here."""

_LONGEST_NAME = 500
_LONGEST_SEGMENT = 200
_MOST_FILES = 100_000


@dataclass(frozen=True, slots=True)
class RepoFile:
    """A file of a repository.

    Attributes:
        name: path in the repository, with slashes.
        size: in bytes.
        digest: SHA-256 in hexadecimal; of a small file git's SHA-1 of the blob.
    """

    name: str
    size: int
    digest: str


def is_allowed(name: str) -> bool:
    """Whether a file may be fetched, by its name."""
    return any(fnmatchcase(name, pattern) for pattern in ALLOWED)


def check_names(names: Iterable[str]) -> None:
    """Check the names of a listing, which the server chose.

    Raises:
        HubError: a name would lead outside of its folder, or is no name on some file systems.
    """
    seen: set[str] = set()
    for name in names:
        # Names of files that are not fetched may have any characters.
        is_safe = _is_plain(name) if is_allowed(name) else _stays(name)
        if not is_safe or name in seen or len(seen) >= _MOST_FILES:
            shown = name[:_LONGEST_SEGMENT]
            raise HubError(
                f"the Hub lists a file named {shown!a}, which is not a plain relative path;"
                " nothing was fetched",
                DAMAGED,
            )
        seen.add(name)


def _is_plain(name: str) -> bool:
    return (
        0 < len(name) <= _LONGEST_NAME
        and name.isprintable()
        and "\\" not in name
        and _stays(name)
        and all(len(segment.encode()) <= _LONGEST_SEGMENT for segment in name.split("/"))
    )


def _stays(name: str) -> bool:
    """Whether a name leads to no place outside of its folder."""
    return not {"", ".", ".."}.intersection(name.split("/"))
