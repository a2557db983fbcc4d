"""From the operator's secret to each tenant's key."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from pathlib import Path

from gatewayd_logits_watermark.config import MIN_SECRET_CHARS, WatermarkConfig

_PURPOSE = b"gatewayd watermark 1\0"
"""Keeps these keys apart from whatever else the same secret may serve."""

_EVERYBODY = ("", "default")
"""Names of the one tenant of all who come without a key: what is counted of it has the second."""

KeyOf = Callable[[str], bytes]
"""A tenant's name to its key, 32 bytes."""


def keys_of(config: WatermarkConfig) -> KeyOf:
    """What derives keys; HMAC-SHA256, so no tenant's key tells of another's.

    Raises:
        OSError: ``secret_file`` cannot be read.
        ValueError: it holds too little.
    """
    secret = config.secret or _read(Path(config.secret_file))
    start = hmac.new(secret.encode(), _PURPOSE, hashlib.sha256)

    def key_of(tenant: str) -> bytes:
        derived = start.copy()
        derived.update(tenant.encode())
        return derived.digest()

    return key_of


def names_of(tenant: str) -> tuple[str, ...]:
    """The names whose keys have marked a tenant's answers: today's, then those of earlier versions.

    Once, a limit on the tenant of everybody changed its name, and so its key.
    """
    return _EVERYBODY if tenant in _EVERYBODY else (tenant,)


def _read(file: Path) -> str:
    secret = file.expanduser().read_text("utf-8").removesuffix("\n")
    if len(secret) < MIN_SECRET_CHARS:
        raise ValueError(f"{file} holds fewer than {MIN_SECRET_CHARS} characters")
    return secret
