"""Responses while the store takes nothing new: those that are not to be kept go on."""

from __future__ import annotations

import msgspec

from gatewayd.batches.calls import ACCEPTED
from gatewayd.errors import StoreFull
from gatewayd.http.asgi import App, Message, Receive, Scope, Send
from gatewayd.store.room import Room


class _Wish(msgspec.Struct):
    store: msgspec.Raw = msgspec.Raw(b"null")


_wish = msgspec.json.Decoder(_Wish).decode


class IfThereIsRoom:
    """Around ``POST /v1/responses``; refuses before anything is computed.

    Args:
        app: the route.
        room: for what is kept.
    """

    def __init__(self, app: App, room: Room) -> None:
        self._app = app
        self._room = room

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request.

        Raises:
            StoreFull: it is to be kept, and there is no room.
            StoreUnavailable: the store cannot be read.
        """
        if ACCEPTED not in scope.get("extensions", ()):
            try:
                await self._room.check()
            except StoreFull as refusal:
                receive = _Reading(receive, refusal)
        await self._app(scope, receive, send)


class _Reading:
    """A body that is refused at its end if its response is to be kept."""

    def __init__(self, receive: Receive, refusal: StoreFull) -> None:
        self._receive = receive
        self._refusal = refusal
        self._parts: list[bytes] = []

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._parts.append(message.get("body", b""))
            if not message.get("more_body") and _is_to_be_kept(b"".join(self._parts)):
                raise self._refusal
        return message


def _is_to_be_kept(body: bytes) -> bool:
    try:
        return bytes(_wish(body).store) != b"false"
    except msgspec.DecodeError:
        return False  # the route says what is wrong
