"""API keys: ``gw_<id>_<secret>``. The id finds the row, the secret proves it."""

from __future__ import annotations

import re
import secrets
from hmac import compare_digest
from typing import NamedTuple

from gatewayd.tenants.tamper_evidence.secret import ServerSecret

_FORM = re.compile(rb"gw_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_SECRET_BYTES = 32
_NOBODY = (bytes(32), bytes(32))
"""Digests that no secret has; compared with where there is no row, or one digest only."""


class ApiKey(NamedTuple):
    """A key, whole; shown once.

    Attributes:
        id: which may be shown and logged.
        secret: 256 random bits.
    """

    id: str
    secret: str

    @property
    def text(self) -> str:
        """As its owner sends it."""
        return f"gw_{self.id}_{self.secret}"


def new_key(key_id: str | None = None) -> ApiKey:
    """A fresh key, or a fresh secret for one."""
    return ApiKey(key_id or secrets.token_hex(6), secrets.token_urlsafe(_SECRET_BYTES))


def parsed(given: bytes) -> tuple[str, bytes] | None:
    """The id and the secret of what a request sends; None for what is no key of ours."""
    found = _FORM.fullmatch(given)
    return None if found is None else (found[1].decode(), found[2])


def place_among(secret: ServerSecret, given: bytes, digests: tuple[bytes, ...]) -> int | None:
    """Which digest a secret has, in a time that says nothing; None for none of them.

    Args:
        secret: the server's.
        given: by a request.
        digests: that are good now, two at most; none for an id that nobody has.
    """
    digest = secret.digest(given)
    place = -1
    for at, known in enumerate((digests + _NOBODY)[: len(_NOBODY)]):
        place = max(place, at if compare_digest(digest, known) else -1)
    return place if 0 <= place < len(digests) else None
