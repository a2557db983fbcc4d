"""Calls a plugin beside the event loop, and waits for it no longer than it is given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from gatewayd_hooks.host.errors import PluginError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def aside(plugin: str, seconds: float, call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call something of a plugin in a thread of its own.

    A thread cannot be stopped: one that does not come back is left behind, and keeps neither the
    event loop nor the end of the process waiting.

    Args:
        plugin: ``<kind>.<name>``, for the error.
        seconds: that it may take.
        call: what to call.
        *args: with these.

    Raises:
        PluginError: it does not come back in time, or wants to end the process.
        Exception: whatever it raises.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call(*args)
        except Exception as error:  # noqa: BLE001 - raised again where somebody waits
            _tell(loop, answer, answer.set_exception, error)
        except BaseException as error:  # noqa: BLE001 - a plugin may even call sys.exit
            _tell(loop, answer, answer.set_exception, PluginError(plugin, f"raised {error!r}"))
        else:
            _tell(loop, answer, answer.set_result, result)

    threading.Thread(target=work, name=plugin, daemon=True).start()
    try:
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done():
            raise PluginError(plugin, f"did not return within {seconds:g} s")
        return answer.result()
    finally:
        answer.cancel()


def _tell(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[T],
    settle: Callable[[T], None] | Callable[[BaseException], None],
    value: object,
) -> None:
    def tell() -> None:
        if not answer.done():
            settle(value)  # type: ignore[arg-type]

    try:
        loop.call_soon_threadsafe(tell)
    except RuntimeError:
        return  # the loop has ended: nobody waits any more
