"""Retries until the store is usable again, so that a full disk does not lose computed results."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gatewayd.errors import StoreUnavailable

T = TypeVar("T")

_SECONDS = 5.0
"""Delay between attempts."""


async def until_done(attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeat an attempt while it raises ``StoreUnavailable``, which was logged at its origin."""
    while True:
        try:
            return await attempt()
        except StoreUnavailable:
            await asyncio.sleep(_SECONDS)
