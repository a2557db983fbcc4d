"""Peers of the admin socket: only root and the daemon's own user are admitted."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gatewayd.http.asgi import Scope

# Linux's ``struct ucred``: pid, uid, gid.
_UCRED = struct.Struct("3i")
_EXTENSION = "gatewayd.peer"


@dataclass(frozen=True, slots=True)
class Peer:
    """Process at the other end, as reported by the kernel when it connected.

    Attributes:
        pid: its process id.
        uid: its user id.
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
    """The peer of a connection; None if it cannot be determined."""
    stream = transport.get_extra_info("socket")
    try:
        raw = stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    except (AttributeError, OSError):
        return None
    pid, uid, _ = _UCRED.unpack(raw)
    return Peer(pid, uid)


def peer_in(scope: Scope) -> Peer:
    """The peer that sent a request."""
    peer: Peer = scope["extensions"][_EXTENSION]
    return peer


class AdminProtocol(HttpToolsProtocol):
    """HTTP protocol that aborts connections of other users before reading a byte."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Check the peer."""
        peer = peer_of(transport)
        # Before the abort: ``connection_lost`` follows it and uses what uvicorn sets here.
        super().connection_made(transport)
        if peer is None or not peer.may_enter:
            transport.abort()
            return
        self._peer = peer

    def on_url(self, url: bytes) -> None:
        """Attach the peer to a new request; see httptools."""
        super().on_url(url)
        self.scope["extensions"] = cast(Any, {_EXTENSION: self._peer})
