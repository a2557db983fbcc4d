"""Calls of plugin code in a separate thread, with a timeout."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

from gatewayd_hooks.host.errors import PluginError
from gatewayd_hooks.host.threads import start_call

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def call_with_timeout(plugin: str, seconds: float, call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call plugin code in a thread of its own, which is abandoned after the timeout.

    Args:
        plugin: ``<kind>.<name>``, for the error.
        seconds: timeout.
        call: the function.
        *args: its arguments.

    Raises:
        PluginError: it does not return in time, or tries to exit the process.
        Exception: any exception of the function.
    """
    answer = asyncio.wrap_future(
        start_call(
            plugin, partial(call, *args), lambda error: PluginError(plugin, f"raised {error!r}")
        )
    )
    try:
        # ``wait`` leaves the future alone at its timeout; a thread cannot be cancelled.
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done():
            raise PluginError(plugin, f"did not return within {seconds:g} s")
        return answer.result()
    finally:
        # Otherwise asyncio would log the late exception of an abandoned call as never retrieved.
        answer.cancel()
