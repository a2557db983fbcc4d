"""Detection of client disconnects while a request is processed.

The edge signals the end of a connection through an ASGI extension, at no cost for clients that stay
connected. Under a server without the extension, a task waits for the ASGI message instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gatewayd.http.asgi import Receive, Scope
from gatewayd.runtime.callbacks import call_all

_log = logging.getLogger(__name__)

EXTENSION = "gatewayd.disconnect"


class DisconnectSignal(Protocol):
    """Signal that a client has disconnected."""

    def add_listener(self, on_disconnect: Callable[[], None]) -> None:
        """Call back on disconnect, or now if it has occurred; after the body has been received."""

    def remove_listener(self, on_disconnect: Callable[[], None]) -> None:
        """Remove a callback, if it is registered."""


class EdgeDisconnectSignal:
    """Disconnect signal of a connection that the edge watches."""

    __slots__ = ("_is_disconnected", "_listeners")

    def __init__(self) -> None:
        self._listeners: set[Callable[[], None]] = set()
        self._is_disconnected = False

    def add_listener(self, on_disconnect: Callable[[], None]) -> None:
        """See ``DisconnectSignal``."""
        # The client may have disconnected while its request was prepared.
        if self._is_disconnected:
            on_disconnect()
        else:
            self._listeners.add(on_disconnect)

    def remove_listener(self, on_disconnect: Callable[[], None]) -> None:
        """See ``DisconnectSignal``."""
        self._listeners.discard(on_disconnect)

    def notify(self) -> None:
        """Call the listeners because the connection has ended."""
        self._is_disconnected = True
        # Replaced first: a listener may remove others, which must not change the iterated set.
        listeners, self._listeners = self._listeners, set()
        call_all(listeners, _log, "a listener for a client's disconnect raised")


class ReceivedDisconnectSignal:
    """Disconnect signal of a server that reports it only as an ASGI message."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None

    def add_listener(self, on_disconnect: Callable[[], None]) -> None:
        """See ``DisconnectSignal``."""
        self._task = asyncio.create_task(self._wait(on_disconnect))

    def remove_listener(self, on_disconnect: Callable[[], None]) -> None:
        """See ``DisconnectSignal``."""
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, on_disconnect: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        on_disconnect()


def disconnect_signal(scope: Scope, receive: Receive) -> DisconnectSignal:
    """Return the disconnect signal of a request's client."""
    signal: DisconnectSignal | None = scope.get("extensions", {}).get(EXTENSION)
    return ReceivedDisconnectSignal(receive) if signal is None else signal
