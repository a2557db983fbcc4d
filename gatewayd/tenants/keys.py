"""API keys: ``gw_<id>_<secret>``. The id finds the row, the secret proves it."""

from __future__ import annotations

import re
import secrets
from hmac import compare_digest
from typing import NamedTuple

from gatewayd.tenants.tamper_evidence.secret import ServerSecret

# 43 characters are 32 bytes in unpadded base64.
_FORM = re.compile(rb"gw_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_SECRET_BYTES = 32
_NO_DIGESTS = (bytes(32), bytes(32))
"""Digests that no secret has, for comparison in constant time where fewer digests exist."""


class ApiKey(NamedTuple):
    """An API key with its secret; shown once.

    Attributes:
        id: may be shown and logged.
        secret: 256 random bits.
    """

    id: str
    secret: str

    @property
    def text(self) -> str:
        """The key as clients send it."""
        return f"gw_{self.id}_{self.secret}"


def new_key(key_id: str | None = None) -> ApiKey:
    """Generate a key, or a new secret for a key."""
    return ApiKey(key_id or secrets.token_hex(6), secrets.token_urlsafe(_SECRET_BYTES))


def parsed(given: bytes) -> tuple[str, bytes] | None:
    """Parse a key into id and secret; None if it does not have a key's format."""
    found = _FORM.fullmatch(given)
    return None if found is None else (found[1].decode(), found[2])


def matching_digest(secret: ServerSecret, given: bytes, digests: tuple[bytes, ...]) -> int | None:
    """Index of the digest that matches a secret, in constant time; None if none matches.

    Args:
        secret: the server's.
        given: secret sent by a request.
        digests: the valid ones, two at most; none for an unknown id.
    """
    digest = secret.digest(given)
    place = -1
    # Always two comparisons, without an early exit: the time says nothing about the key.
    for at, known in enumerate((digests + _NO_DIGESTS)[: len(_NO_DIGESTS)]):
        place = max(place, at if compare_digest(digest, known) else -1)
    return place if 0 <= place < len(digests) else None
