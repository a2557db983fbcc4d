"""Enforcement of ``queue_timeout`` while a request is prepared, before it reaches an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from gatewayd.pipeline.timing import queue_timeout

T = TypeVar("T")


async def within_queue_timeout(preparing: Awaitable[T], seconds: float | None, left: float) -> T:
    """Await a request's preparation, which may wait for the model to be loaded.

    Args:
        preparing: the preparation.
        seconds: the request's ``queue_timeout``; None for no limit.
        left: the remaining seconds of it.

    Raises:
        QueueTimeout: the timeout expired.
    """
    if seconds is None:
        return await preparing
    try:
        async with asyncio.timeout(max(0.0, left)) as limit:
            return await preparing
    except TimeoutError:
        # Otherwise the error is another timeout's, raised by the preparation.
        if limit.expired():
            raise queue_timeout(seconds) from None
        raise
