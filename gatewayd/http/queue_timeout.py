"""The time that a request gives itself until an engine begins with it runs while it is prepared."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gatewayd.pipeline.timing import queue_timeout

T = TypeVar("T")


async def in_time(preparing: Awaitable[T], seconds: float | None, left: float) -> T:
    """Wait for what prepares it, which may wait for a model to be loaded.

    Args:
        preparing: that.
        seconds: its ``queue_timeout``; None for all the time there is.
        left: of these.

    Raises:
        QueueTimeout: they are over.
    """
    if seconds is None:
        return await preparing
    try:
        async with asyncio.timeout(max(0.0, left)) as limit:
            return await preparing
    except TimeoutError:
        if limit.expired():
            raise queue_timeout(seconds) from None
        raise
