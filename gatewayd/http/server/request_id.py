"""Request ids: every response carries the client's id if it sent one, else a generated one.

A client's ``x-request-id`` is echoed, logged and displayed, but never used as a key, because two
clients may send the same one. An API key that is sent there by mistake is not echoed.
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
"""Minimum length of a secret to search for in ids; shorter ones may match by chance."""

# An id is not a secret, and a system call for each one would cost more than generating it.
_draw_bits = Random().getrandbits


def new_id() -> str:
    """Generate a unique request id."""
    return f"req_{_draw_bits(96):024x}"


def answered_id(headers: Sequence[Header], ours: str) -> bytes:
    """Return the id of the response: the client's id if it can be echoed, else ``ours``."""
    for name, value in headers:
        if name == NAME:
            is_taken = _SAFE_ID.fullmatch(value) and not _is_secret(value, headers)
            return value if is_taken else ours.encode()
    return ours.encode()


def _is_secret(value: bytes, headers: Sequence[Header]) -> bool:
    """Whether an id has the format of an API key, or contains a credential of the request."""
    if _KEY.search(value):
        return True
    sent = [given.rpartition(b" ")[2] for name, given in headers if name in _SECRETS]
    return any(key == value or (len(key) >= _LONG and key in value) for key in sent)
