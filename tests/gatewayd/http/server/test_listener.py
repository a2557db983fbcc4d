"""Listener: accepts many connections at once; repeated connections delay no other client."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvloop

from gatewayd.config.tables import ServerTable
from gatewayd.http.server.listener import HttpServer, listen

MANY = 160


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers nothing."""


async def iterations_until_accepted() -> int:
    """Of the event loop, for connections that are all there when it begins to look."""
    server = HttpServer(app, lambda *_: None, ServerTable())
    listener = listen("127.0.0.1", 0)
    serving = asyncio.create_task(server.serve([listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(MANY)]
    count = 0
    while len(server.server_state.connections) < MANY:
        count += 1
        await asyncio.sleep(0)
    for client in clients:
        client.close()
    server.should_exit = True
    await serving
    assert listener.fileno() == -1
    return count


def test_connections_are_accepted_sixteen_at_once() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(iterations_until_accepted()) <= 2 * MANY / 16
