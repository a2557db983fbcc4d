"""Notices that a client has gone while its request is worked on.

The edge knows when a connection ends and tells through an ASGI extension, at no cost for a client
that stays. Under a server without the extension a task waits for the message instead.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from gatewayd.http.asgi import Receive, Scope
from gatewayd.runtime.callbacks import call_all

_log = logging.getLogger(__name__)

EXTENSION = "gatewayd.departure"


class Departure(Protocol):
    """The end of a client's connection."""

    def listen(self, gone: Callable[[], None]) -> None:
        """Call this when it comes, or now if it has come; once the body has been received."""

    def forget(self, gone: Callable[[], None]) -> None:
        """Do not call it any more; no effect if nobody would."""


class ToldDeparture:
    """Of a connection that the edge watches."""

    __slots__ = ("_has_come", "_listeners")

    def __init__(self) -> None:
        self._listeners: set[Callable[[], None]] = set()
        self._has_come = False

    def listen(self, gone: Callable[[], None]) -> None:
        """See ``Departure``."""
        if self._has_come:
            gone()
        else:
            self._listeners.add(gone)

    def forget(self, gone: Callable[[], None]) -> None:
        """See ``Departure``."""
        self._listeners.discard(gone)

    def tell(self) -> None:
        """The connection has ended."""
        self._has_come = True
        listeners, self._listeners = self._listeners, set()
        call_all(listeners, _log, "a listener for a client's disconnect raised")


class ReceivedDeparture:
    """Of a connection that only says so in a message."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[None] | None = None

    def listen(self, gone: Callable[[], None]) -> None:
        """See ``Departure``."""
        self._task = asyncio.create_task(self._wait(gone))

    def forget(self, gone: Callable[[], None]) -> None:
        """See ``Departure``."""
        if self._task is not None:
            self._task.cancel()

    async def _wait(self, gone: Callable[[], None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        gone()


def departure_of(scope: Scope, receive: Receive) -> Departure:
    """How to learn that the client of a request has gone."""
    told: Departure | None = scope.get("extensions", {}).get(EXTENSION)
    return ReceivedDeparture(receive) if told is None else told
