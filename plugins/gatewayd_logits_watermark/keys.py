"""Derivation of each tenant's key from the operator's secret."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

from gatewayd_logits_watermark.config import MIN_SECRET_CHARS, WatermarkConfig

_PURPOSE = b"gatewayd watermark 1\0"
"""Separates these keys from any others derived from the same secret."""

_DEFAULT_TENANT = ("", "default")
"""Names of the tenant of clients without a key: usage is accounted under the second."""

KeyOf = Callable[[str], bytes]
"""Function from a tenant's name to its key, 32 bytes."""


def keys_of(config: WatermarkConfig) -> KeyOf:
    """Return a function that derives keys with HMAC-SHA256, so that keys reveal nothing of others.

    Raises:
        OSError: ``secret_file`` cannot be read.
        ValueError: its content is too short.
    """
    secret = config.secret or _read(Path(config.secret_file))
    start = hmac.new(secret.encode(), _PURPOSE, hashlib.sha256)

    def key_of(tenant: str) -> bytes:
        derived = start.copy()
        derived.update(tenant.encode())
        return derived.digest()

    return key_of


def names_of(tenant: str) -> tuple[str, ...]:
    """Return the names for a tenant's keys: the present one, then those of earlier versions.

    Earlier, a limit on the default tenant changed its name, and so its key.
    """
    return _DEFAULT_TENANT if tenant in _DEFAULT_TENANT else (tenant,)


def _read(file: Path) -> str:
    secret = file.expanduser().read_text("utf-8").removesuffix("\n")
    if len(secret) < MIN_SECRET_CHARS:
        raise ValueError(f"{file} contains fewer than {MIN_SECRET_CHARS} characters")
    return secret
