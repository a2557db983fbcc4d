"""The id that every answer carries: the client's own if it sent one, else ours.

A client's ``x-request-id`` is echoed and never used inside: two clients may send the same one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

from gatewayd.http.asgi import Header

NAME = b"x-request-id"

_SAFE_ID = re.compile(rb"[A-Za-z0-9._:@/+=-]{1,128}")

# An id is no secret, and asking the system for each one costs more than making it.
_draw_bits = Random().getrandbits


def new_id() -> str:
    """An id that no other request has."""
    return f"req_{_draw_bits(96):024x}"


def answered_id(headers: Iterable[Header], ours: str) -> bytes:
    """What the answer says: the client's id if it can be echoed, else ``ours``."""
    for name, value in headers:
        if name == NAME:
            return value if _SAFE_ID.fullmatch(value) else ours.encode()
    return ours.encode()
