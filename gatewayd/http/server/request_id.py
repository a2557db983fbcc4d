"""The id that every answer carries: the client's own if it sent one, else ours.

A client's ``x-request-id`` is echoed, logged and shown, and never used inside: two clients may send
the same one. A key that somebody sends there by mistake is not taken for an id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random

from gatewayd.http.asgi import Header

NAME = b"x-request-id"

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")
_KEY = re.compile(rb"gw_[0-9a-f]{12}_[A-Za-z0-9_-]{43}")
_SECRETS = (b"authorization", b"x-api-key")
_LONG = 16
"""Characters; what is shorter may be in an id by chance."""

# An id is no secret, and asking the system for each one costs more than making it.
_draw_bits = Random().getrandbits


def new_id() -> str:
    """An id that no other request has."""
    return f"req_{_draw_bits(96):024x}"


def answered_id(headers: Sequence[Header], ours: str) -> bytes:
    """What the answer says: the client's id if it can be echoed, else ``ours``."""
    for name, value in headers:
        if name == NAME:
            is_taken = _SAFE_ID.fullmatch(value) and not _is_secret(value, headers)
            return value if is_taken else ours.encode()
    return ours.encode()


def _is_secret(value: bytes, headers: Sequence[Header]) -> bool:
    """Whether it has the form of a key, or is what the request proves itself with."""
    if _KEY.search(value):
        return True
    sent = [given.rpartition(b" ")[2] for name, given in headers if name in _SECRETS]
    return any(key == value or (len(key) >= _LONG and key in value) for key in sent)
