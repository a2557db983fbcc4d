"""Once more, until the store can be used: what was computed is not thrown away for a full disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gatewayd.errors import StoreUnavailable

T = TypeVar("T")

_SECONDS = 5.0
"""Between two attempts."""


async def until_done(attempt: Callable[[], Awaitable[T]]) -> T:
    """Attempt it until it does not raise ``StoreUnavailable``, which is logged where it began."""
    while True:
        try:
            return await attempt()
        except StoreUnavailable:
            await asyncio.sleep(_SECONDS)
