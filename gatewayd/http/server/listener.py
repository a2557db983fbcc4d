"""The listening socket and uvicorn on top of it, without uvicorn's signal handling."""

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
"""Connections in an iteration of the event loop. uvloop accepts one for each listener it is given,
so it is given copies: else a few clients that connect again and again keep others out for seconds.
"""

_FAREWELL_SECONDS = 1.0
"""That a connection may be silent which will not be served for long."""

_POLL_SECONDS = 0.05


class ListenError(Exception):
    """The address cannot be listened on; the sentence says which and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """Bind a TCP socket; ``port`` 0 takes a free one.

    Raises:
        ListenError: the port is taken, or the address is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ListenError(f"cannot listen on {host}: {error.strerror or error}") from error
    try:
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
    """The sockets to serve on, and whether systemd holds them, too, and goes on listening.

    Raises:
        ListenError: those that systemd passes cannot be served; or see ``listen``.
    """
    try:
        held = inherited()
    except ActivationError as error:
        raise ListenError(str(error)) from error
    return (held, True) if held else ([listen(host, port)], False)


def url_of(listener: socket.socket) -> str:
    """Where a client on this machine finds the socket."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host.strip("[]") else f"http://{host}:{port}"


def is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine reaches the socket."""
    return ip_address(listener.getsockname()[0]).is_loopback


def edge_limits(table: ServerTable) -> EdgeLimits:
    """What a connection may cost, from the configuration."""
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
    """How the data plane is served; ``options`` are uvicorn's and win.

    Args:
        app: the data plane.
        answered: told what the edge answers without asking the app.
        limits: of a connection.
        options: of uvicorn.
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
    """uvicorn for one app on given sockets; the daemon owns the signals."""

    def __init__(self, app: App, answered: Answered, table: ServerTable) -> None:
        super().__init__(server_config(app, answered, edge_limits(table), backlog=_BACKLOG))

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until it should exit."""
        copies = [each.dup() for each in sockets or () for _ in range(_ACCEPTED_AT_ONCE - 1)]
        await super().serve([*sockets, *copies] if sockets else None)

    async def hand_over(self) -> None:
        """Accept nothing more, and return when all that was accepted has been served.

        Whoever else holds the sockets is next: what connects from now on waits there. Clients that
        ask again on a connection they have are answered, and told to open another one; it is only
        closed when it has been silent for a while, for a request may be under way.
        """
        for each in self.servers if self.started else []:
            each.close()
        self.config.encoded_headers = [*self.config.encoded_headers, (b"connection", b"close")]
        await self.on_tick(0)  # the headers of answers are made there
        silent = []
        for connection in self._connections():
            connection.timeout_keep_alive = _FAREWELL_SECONDS
            if connection.cycle is None or connection.cycle.response_complete:
                silent.append((connection, connection.cycle))
        await asyncio.sleep(_FAREWELL_SECONDS)
        for connection, cycle in silent:
            if connection.cycle is cycle:
                connection.shutdown()
        while self._connections():  # noqa: ASYNC110 - uvicorn offers no event
            await asyncio.sleep(_POLL_SECONDS)
        self.should_exit = True

    def _connections(self) -> list[Any]:
        return list(self.server_state.connections)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave them to the daemon."""
        yield
