"""Secrets that the configuration names and does not hold: ``api_key = "credential:api-key"``.

They are files: in the folder that systemd fills for the service (``LoadCredential=``), or, for
whoever runs a command without systemd, in ``credentials`` beside the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PREFIX = "credential:"
FOLDER = "credentials"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_MOST_BYTES = 1 << 16


class CredentialError(Exception):
    """A credential is not there; the sentence says where it was looked for."""


class Credentials:
    """Finds credentials by their names.

    Args:
        environ: of the process.
        file: the configuration; None where there is none.
    """

    def __init__(self, environ: Mapping[str, str], file: Path | None) -> None:
        self._folders = []
        if given := environ.get("CREDENTIALS_DIRECTORY"):
            self._folders.append(Path(given))
        if file is not None:
            self._folders.append(file.absolute().parent / FOLDER)

    def read(self, name: str) -> str:
        """The secret, without the end of its line.

        Raises:
            CredentialError: it is not there, cannot be read, or is empty.
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
                looked.append(f"{path} is empty")
        where = "; ".join(looked) or "there is no credentials folder"
        raise CredentialError(f"the credential {name!r}: {where}")


def fill(tree: dict[str, Any], credentials: Credentials, key: str = "") -> dict[str, str]:
    """Put secrets in the place of their names, in place.

    Args:
        tree: tables and values.
        credentials: where they are.
        key: dotted, of the tree itself.

    Returns:
        What is missing: the reason, by the dotted key; its name is left there.
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
