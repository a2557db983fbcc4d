"""Digests of downloaded files: SHA-256, or git's SHA-1 for files outside of Git LFS."""

from __future__ import annotations

import hashlib
from pathlib import Path

_SHA256_LENGTH = 64
_CHUNK = 1 << 20


def digest_of(path: Path, like: str) -> str:
    """Return the digest of a file's content.

    Args:
        path: of the file.
        like: a digest of the kind to compute, by its length.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if len(like) == _SHA256_LENGTH:
            digest = hashlib.sha256()
        else:
            # Not for security, but what git has: the server chooses the digest in any case.
            digest = hashlib.sha1(usedforsecurity=False)
            digest.update(b"blob %d\0" % path.stat().st_size)
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
