"""Credentials: secrets that the configuration only names, ``api_key = "credential:api-key"``.

They are files in the folder that systemd passes to the service (``LoadCredential=``), or, for
commands run without systemd, in ``credentials`` beside the configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "credential:"
FOLDER = "credentials"
# Without slashes, and not beginning with a dot: a name cannot leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_BYTES = 1 << 16


class CredentialError(Exception):
    """A credential is missing; the message lists where it was searched."""


class Credentials:
    """Reads credentials by name.

    Args:
        environ: environment of the process.
        file: the configuration file; None without one.
    """

    def __init__(self, environ: Mapping[str, str], file: Path | None) -> None:
        self._folders = []
        # systemd's folder comes first: the service's user may be unable to read the file beside the
        # configuration, which `gatewayd init --system` creates for root.
        if given := environ.get("CREDENTIALS_DIRECTORY"):
            self._folders.append(Path(given))
        if file is not None:
            self._folders.append(file.absolute().parent / FOLDER)

    def read(self, name: str) -> str:
        """Read a secret, without the trailing newline.

        Raises:
            CredentialError: it is missing, unreadable or empty.
        """
        if not _NAME.fullmatch(name):
            raise CredentialError(f"{name!r} is not a valid credential name")
        looked = []
        for folder in self._folders:
            path = folder / name
            try:
                with path.open(encoding="utf-8") as stream:
                    secret = stream.read(_MOST_BYTES).strip()
            except FileNotFoundError:
                looked.append(f"{path} does not exist")
            except (OSError, UnicodeDecodeError) as error:
                looked.append(f"{path} cannot be read: {getattr(error, 'strerror', error)}")
            else:
                if secret:
                    return secret
                # Empty by the unit's default for a missing file; the next folder may have it.
                looked.append(f"{path} is empty")
        where = "; ".join(looked) or "there is no credentials folder"
        raise CredentialError(f"the credential {name!r}: {where}")


def fill(tree: dict[str, Any], credentials: Credentials, key: str = "") -> dict[str, str]:
    """Replace names of credentials by their secrets, in place.

    Args:
        tree: tables and values.
        credentials: reads them.
        key: dotted key of the tree itself.

    Returns:
        Missing credentials: the reason by dotted key; their names are left in place.
    """
    missing: dict[str, str] = {}
    for name, value in tree.items():
        here = f"{key}.{name}" if key else name
        if isinstance(value, dict):
            missing |= fill(value, credentials, here)
        elif isinstance(value, str) and value.startswith(PREFIX):
            try:
                tree[name] = credentials.read(value.removeprefix(PREFIX))
            except CredentialError as error:
                missing[here] = str(error)
    return missing


def named(tree: Mapping[str, Any], key: str = "") -> set[str]:
    """Dotted keys of all values that name a credential."""
    found: set[str] = set()
    for name, value in tree.items():
        here = f"{key}.{name}" if key else name
        if isinstance(value, Mapping):
            found |= named(value, here)
        elif isinstance(value, str) and value.startswith(PREFIX):
            found.add(here)
    return found
