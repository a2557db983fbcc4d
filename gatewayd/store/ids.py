"""Object ids, which sort by creation time and cannot be guessed."""

from __future__ import annotations

import secrets
import time


def new_id(prefix: str) -> str:
    """Generate an id, such as ``file-18ba...``: nanoseconds, then 64 random bits."""
    # Padded to the width of 64 bits, so that text sorts by time.
    return f"{prefix}{time.time_ns():016x}{secrets.token_hex(8)}"
