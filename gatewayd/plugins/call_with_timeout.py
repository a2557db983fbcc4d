"""Calls of plugin code in a separate thread, with a timeout."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from gatewayd_hooks.host.errors import PluginError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


async def call_with_timeout(plugin: str, seconds: float, call: Callable[[*Ts], T], *args: *Ts) -> T:
    """Call plugin code in a thread of its own.

    A thread cannot be stopped: one that does not return is abandoned, and blocks neither the event
    loop nor the exit of the process.

    Args:
        plugin: ``<kind>.<name>``, for the error.
        seconds: timeout.
        call: the function.
        *args: its arguments.

    Raises:
        PluginError: it does not return in time, or tries to exit the process.
        Exception: any exception of the function.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call(*args)
        except Exception as error:  # noqa: BLE001 - raised again in the caller
            _resolve(loop, answer, answer.set_exception, error)
        except BaseException as error:  # noqa: BLE001 - a plugin may even call sys.exit
            _resolve(loop, answer, answer.set_exception, PluginError(plugin, f"raised {error!r}"))
        else:
            _resolve(loop, answer, answer.set_result, result)

    threading.Thread(target=work, name=plugin, daemon=True).start()
    try:
        await asyncio.wait([answer], timeout=seconds)
        if not answer.done():
            raise PluginError(plugin, f"did not return within {seconds:g} s")
        return answer.result()
    finally:
        answer.cancel()


def _resolve(
    loop: asyncio.AbstractEventLoop,
    answer: asyncio.Future[T],
    settle: Callable[[T], None] | Callable[[BaseException], None],
    value: object,
) -> None:
    def resolve() -> None:
        if not answer.done():
            settle(value)  # type: ignore[arg-type]

    try:
        loop.call_soon_threadsafe(resolve)
    except RuntimeError:
        return  # the event loop has ended, and with it the caller
