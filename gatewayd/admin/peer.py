"""Who is at the other end of a unix socket: only the daemon's own user and root come in."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatewayd.http.asgi import Scope

_UCRED = struct.Struct("3i")
_EXTENSION = "gatewayd.peer"


@dataclass(frozen=True, slots=True)
class Peer:
    """A process, as the kernel vouches for it when it connects.

    Attributes:
        pid: its id.
        uid: its user.
    """

    pid: int
    uid: int

    @property
    def may_enter(self) -> bool:
        """Whether it is root or the daemon's own user."""
        return self.uid in (0, os.geteuid())

    def __str__(self) -> str:
        return f"uid {self.uid}, pid {self.pid}"


def peer_of(transport: asyncio.BaseTransport) -> Peer | None:
    """Who has connected; None where nobody can tell."""
    stream = transport.get_extra_info("socket")
    try:
        raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (AttributeError, OSError):
        return None
    pid, uid, _ = _UCRED.unpack(raw)
    return Peer(pid, uid)


def peer_in(scope: Scope) -> Peer:
    """Who sends a request."""
    peer: Peer = scope["extensions"][_EXTENSION]
    return peer


class AdminProtocol(HttpToolsProtocol):
    """A connection that is cut before a byte is read unless its peer may enter."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look at the peer."""
        peer = peer_of(transport)
        super().connection_made(transport)
        if peer is None or not peer.may_enter:
            transport.abort()
            return
        self._peer = peer

    def on_url(self, url: bytes) -> None:
        """A request has begun; see httptools."""
        super().on_url(url)
        self.scope["extensions"] = cast(Any, {_EXTENSION: self._peer})
