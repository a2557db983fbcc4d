"""Errors about models of the Hub; each has a code for programs."""

from __future__ import annotations

import errno
from typing import Final

NO_REFERENCE: Final = "invalid_model_name"
NOT_STORED: Final = "model_not_stored"
IN_USE: Final = "model_in_use"
NOT_FOUND: Final = "model_not_found"
NO_REVISION: Final = "revision_not_found"
NO_ACCESS: Final = "model_not_accessible"
NO_CHOICE: Final = "model_ambiguous"
UNSERVABLE: Final = "model_not_servable"
NO_SPACE: Final = "disk_full"
NO_STORE: Final = "model_store_unusable"
NOT_CONFINED: Final = "pull_not_confined"
OFFLINE: Final = "hub_offline"
UNREACHABLE: Final = "hub_unavailable"
DAMAGED: Final = "download_damaged"
BUSY: Final = "too_many_pulls"

STATUSES: Final = {
    NO_REFERENCE: 400,
    NOT_STORED: 404,
    IN_USE: 409,
    NOT_FOUND: 404,
    NO_REVISION: 404,
    NO_ACCESS: 403,
    NO_CHOICE: 400,
    UNSERVABLE: 400,
    NO_SPACE: 507,
    NO_STORE: 500,
    NOT_CONFINED: 500,
    OFFLINE: 503,
    UNREACHABLE: 502,
    DAMAGED: 502,
    BUSY: 503,
}
"""HTTP status of each code."""


class HubError(ValueError):
    """A model of the Hub cannot be fetched, served or deleted.

    Attributes:
        code: one of ``STATUSES``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def of_store(error: OSError, folder: object) -> HubError:
    """Return the error for one of the file system.

    Args:
        error: of the file system.
        folder: of the store, named if the error names no file.
    """
    code = NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else NO_STORE
    where = error.filename or folder
    return HubError(f"cannot read or write {where}: {error.strerror or error}", code)
