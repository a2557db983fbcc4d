"""Limits of connections: time, bytes and numbers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EdgeLimits:
    """Limits of a connection.

    Attributes:
        header_seconds: from the connection, or a request's first byte, to the end of its headers.
        body_seconds: from the end of the headers to the end of the body.
        idle_seconds: between two requests.
        stall_seconds: for which a client may leave written bytes unread.
        header_bytes: of a request line and its headers.
        num_headers: of a request.
        num_chunks: of a chunked body.
        connections: open at once.
        peer_connections: open at once from one IPv4 address or one IPv6 /64 network.
        unparsed_bytes: of pipelined requests; reading is paused beyond.
        write_buffer_bytes: unsent bytes of a client before its stream gets backpressure.
        unauthenticated_buffer_bytes: the same, before the client is authenticated.
    """

    header_seconds: float = 10.0
    body_seconds: float = 30.0
    idle_seconds: float = 60.0
    stall_seconds: float = 30.0
    header_bytes: int = 32 * 1024
    num_headers: int = 100
    num_chunks: int = 8192
    connections: int = 2048
    peer_connections: int = 1024
    unparsed_bytes: int = 16 * 1024
    write_buffer_bytes: int = 64 * 1024
    unauthenticated_buffer_bytes: int = 8 * 1024


def set_options(transport: asyncio.Transport, send_buffer_bytes: int) -> None:
    """Limit the kernel's send buffer and disable Nagle's algorithm."""
    sock = transport.get_extra_info("socket")
    if sock is None:
        return
    set_send_buffer(sock, send_buffer_bytes)
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        # asyncio does this only for sockets made with an explicit protocol number; without it
        # an answer in two writes waits 40 ms for a delayed acknowledgement.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def set_send_buffer(sock: socket.socket, num_bytes: int) -> None:
    """Limit the kernel's send buffer, which otherwise grows to megabytes for slow readers."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, num_bytes)
