"""The server's own secret, from which every key's digest, salt and seal is made.

It is a credential that systemd hands over, or a file beside the store, which only the daemon's
user reads. Without it no key is valid any more: it belongs into a backup of the store.
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
    """Derives what is needed; never shows itself.

    Args:
        value: 32 random bytes.
    """

    __slots__ = ("_keys", "_reservations", "_salts", "_seals")

    def __init__(self, value: bytes) -> None:
        def derived(label: bytes) -> bytes:
            return hmac.digest(value, label, "sha256")

        self._keys, self._salts, self._seals = map(derived, (b"keys", b"salts", b"seals"))
        self._reservations = hashlib.blake2b(key=derived(b"reservations"), digest_size=_MAC_BYTES)

    def digest(self, secret: bytes) -> bytes:
        """What is kept of an API key's secret."""
        return hmac.digest(self._keys, secret, "sha256")

    def salt(self, tenant: str) -> bytes:
        """What the prefix cache of a tenant begins with; nobody can guess another's."""
        return hmac.digest(self._salts, tenant.encode(), "sha256")

    def seal(self, content: bytes) -> str:
        """What only this server can have written below something."""
        return hmac.digest(self._seals, content, "sha256").hex()

    def reservation(self, content: bytes) -> bytes:
        """The MAC of a reservation; keyed BLAKE2b, since each request has two."""
        mac = self._reservations.copy()
        mac.update(content)
        return mac.digest()

    def __repr__(self) -> str:
        return "Secret(***)"


def secret_of(folder: Path, environ: Mapping[str, str]) -> ServerSecret:
    """Read the secret, or make it.

    Args:
        folder: of the store.
        environ: the environment, in which systemd names the folder of credentials.

    Raises:
        StoreError: it cannot be read or made, is damaged, or others may read it.
    """
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    if credentials is not None and (given := Path(credentials) / CREDENTIAL).exists():
        return _read(given)
    file = folder / NAME
    try:
        _make(file)
    except FileExistsError:
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise StoreError(
                f"{file} is readable by others (mode {mode:o}): set mode 600, and replace all "
                "API keys if it may have been read"
            ) from None
    except OSError as error:
        raise StoreError(f"{file} cannot be made: {error.strerror}") from error
    return _read(file)


def _make(file: Path) -> None:
    """Whole or not at all, whenever the machine stops."""
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
        raise StoreError(f"{file} is no secret: it must be {_TEXT} hexadecimal digits") from None
