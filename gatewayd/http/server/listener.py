"""Listening sockets, and a uvicorn server on them without uvicorn's signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any

import uvicorn

from gatewayd.config.tables import ServerTable
from gatewayd.http.asgi import App
from gatewayd.http.server.edge import edge_protocol
from gatewayd.http.server.edge_errors import Answered
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.socket_activation import ActivationError, inherited

_BACKLOG = 2048

_ACCEPTED_AT_ONCE = 16
"""Connections accepted per iteration of the event loop. uvloop accepts one per listener, so it gets
duplicates: otherwise a few clients that reconnect constantly keep others out for seconds."""

_FAREWELL_SECONDS = 1.0
"""Idle time after which connections are closed during a handover."""

_POLL_SECONDS = 0.05


class ListenError(Exception):
    """The address cannot be listened on; the message says which and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Bind a TCP socket and listen; ``port`` 0 chooses a free one.

    Raises:
        ListenError: the port is in use, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
        # A restart must not wait for connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            reason = f"port {port} of {host} is in use; stop what uses it, or choose another port"
        else:
            reason = f"cannot listen on {host} port {port}: {error.strerror}"
        raise ListenError(reason) from error
    listener.setblocking(False)
    return listener


def listeners(host: str, port: int) -> tuple[list[socket.socket], bool]:
    """Return the sockets to serve on, and whether they are systemd's, which keeps listening.

    Raises:
        ListenError: the sockets passed by systemd are unsuitable; or see ``listen``.
    """
    try:
        held = inherited()
    except ActivationError as error:
        raise ListenError(str(error)) from error
    return (held, True) if held else ([listen(host, port)], False)


def url_of(listener: socket.socket) -> str:
    """Return the URL of a listener for clients on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host.strip("[]") else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether the socket is reachable from this machine only."""
    return ip_address(listener.getsockname()[0]).is_loopback


def edge_limits(table: ServerTable) -> EdgeLimits:
    """Return the connection limits of the configuration."""
    return EdgeLimits(
        header_seconds=table.header_seconds,
        body_seconds=table.body_seconds,
        idle_seconds=table.idle_seconds,
        stall_seconds=table.stall_seconds,
        header_bytes=int(table.header_bytes),
        num_headers=table.header_count,
        connections=table.connections,
        peer_connections=table.peer_connections,
    )


def server_config(
    app: App,
    answered: Answered,
    limits: EdgeLimits = EdgeLimits(),  # noqa: B008 - frozen
    **options: Any,  # noqa: ANN401 - uvicorn's own
) -> uvicorn.Config:
    """Return uvicorn's configuration for the data plane.

    Args:
        app: the data plane.
        answered: counts responses that the edge sends without the app.
        limits: of a connection.
        options: of uvicorn; they take precedence.
    """
    settings: dict[str, Any] = {
        "http": edge_protocol(limits, answered),
        "ws": "none",
        "loop": "auto",
        "lifespan": "off",
        "interface": "asgi3",
        "proxy_headers": False,
        "server_header": False,
        "access_log": False,
        "log_config": None,
        "timeout_keep_alive": limits.idle_seconds,
        **options,
    }
    return uvicorn.Config(app, **settings)


class HttpServer(uvicorn.Server):
    """uvicorn server of one app on given sockets; the daemon handles signals."""

    def __init__(self, app: App, answered: Answered, table: ServerTable) -> None:
        super().__init__(server_config(app, answered, edge_limits(table), backlog=_BACKLOG))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit`` is set."""
        copies = [each.dup() for each in sockets or () for _ in range(_ACCEPTED_AT_ONCE - 1)]
        await super().serve([*sockets, *copies] if sockets else None)

    async def hand_over(self) -> None:
        """Stop accepting connections, and return when all open ones have been served.

        New connections wait in the sockets for the next process that holds them. Requests on open
        connections are answered with ``connection: close``; an idle connection is closed only
        after a delay, because a request may be in flight.
        """
        for each in self.servers if self.started else []:
            each.close()
        self.config.encoded_headers = [*self.config.encoded_headers, (b"connection", b"close")]
        await self.on_tick(0)  # builds the default response headers
        silent = []
        for connection in self._connections():
            # Connections whose response ends from here on close after this time.
            connection.timeout_keep_alive = _FAREWELL_SECONDS
            if connection.cycle is None or connection.cycle.response_complete:
                silent.append((connection, connection.cycle))
        await asyncio.sleep(_FAREWELL_SECONDS)
        for connection, cycle in silent:
            # Otherwise a request has arrived in the meantime.
            if connection.cycle is cycle:
                connection.shutdown()
        while self._connections():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(_POLL_SECONDS)
        self.should_exit = True

    def _connections(self) -> list[Any]:
        return list(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the daemon."""
        yield
