"""The server's secret, from which digests of keys, salts and seals are derived.

It is a credential passed by systemd, or a file beside the store that only the daemon's user may
read. Without it no key is valid any more: include it in backups of the store.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from gatewayd.store import atomic_files
from gatewayd.store.errors import StoreError

NAME = "secret"
CREDENTIAL = "gatewayd.secret"
_BYTES = 32
_TEXT = 2 * _BYTES
_MAC_BYTES = 16


class ServerSecret:
    """Derives digests, salts and MACs; its representation never shows the secret.

    Args:
        value: 32 random bytes.
    """

    __slots__ = ("_keys", "_reservations", "_salts", "_seals")

    def __init__(self, value: bytes) -> None:
        # A key for each purpose: a digest of one kind is never valid as another.
        def derived(label: bytes) -> bytes:
            return hmac.digest(value, label, "sha256")

        self._keys, self._salts, self._seals = map(derived, (b"keys", b"salts", b"seals"))
        self._reservations = hashlib.blake2b(key=derived(b"reservations"), digest_size=_MAC_BYTES)

    def digest(self, secret: bytes) -> bytes:
        """Digest of an API key's secret, which is stored in its place."""
        return hmac.digest(self._keys, secret, "sha256")

    def salt(self, tenant: str) -> bytes:
        """Salt of a tenant's prefix-cache keys; other tenants cannot guess it."""
        return hmac.digest(self._salts, tenant.encode(), "sha256")

    def seal(self, content: bytes) -> str:
        """MAC of a content, which only this server can compute."""
        return hmac.digest(self._seals, content, "sha256").hex()

    def reservation(self, content: bytes) -> bytes:
        """The MAC of a reservation; keyed BLAKE2b, since each request has two."""
        # Copies the state after the key, which saves hashing it for each MAC.
        mac = self._reservations.copy()
        mac.update(content)
        return mac.digest()

    def __repr__(self) -> str:
        return "Secret(***)"


def secret_of(folder: Path, environ: Mapping[str, str]) -> ServerSecret:
    """Read the secret, or create it.

    Args:
        folder: folder of the store.
        environ: the environment, in which systemd names the folder of credentials.

    Raises:
        StoreError: it cannot be read or created, is damaged, or other users may read it.
    """
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    if credentials is not None and (given := Path(credentials) / CREDENTIAL).exists():
        return _read(given)
    file = folder / NAME
    try:
        _create(file)
    except FileExistsError:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise StoreError(
                f"{file} is readable by others (mode {mode:o}): set mode 600, and replace all "
                "API keys if it may have been read"
            ) from None
    except OSError as error:
        raise StoreError(f"{file} cannot be created: {error.strerror}") from error
    return _read(file)


def _create(file: Path) -> None:
    """Create the file atomically, so that a crash leaves no part of it."""
    if file.exists():
        raise FileExistsError
    atomic_files.replace(file, secrets.token_hex(_BYTES).encode() + b"\n")


def _read(file: Path) -> ServerSecret:
    try:
        text = file.read_text("ascii").strip()
        if len(text) != _TEXT:
            raise ValueError
        return ServerSecret(bytes.fromhex(text))
    except OSError as error:
        raise StoreError(f"{file} cannot be read: {error.strerror}") from error
    except ValueError:
        raise StoreError(f"{file} is not a secret: it must be {_TEXT} hexadecimal digits") from None
