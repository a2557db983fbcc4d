"""In-memory edge connections: what is sent is read as asyncio would read it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from uvicorn.server import ServerState

from gatewayd.http.asgi import App
from gatewayd.http.server.edge import EdgeProtocol
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.edge_reading import ConnectionReader
from gatewayd.http.server.listener import server_config


class Wire(asyncio.Transport):
    """A transport that keeps what is written; nothing is read while reading is paused."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__({"peername": (address, 1), "sockname": ("192.0.2.2", 80)})
        self.written = b""
        self.is_paused = self.is_ended = False
        self.num_pauses = 0
        self.reader: Any = None

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += data

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self.is_ended

    def pause_reading(self) -> None:
        self.is_paused = True
        self.num_pauses += 1

    def resume_reading(self) -> None:
        self.is_paused = False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.reader = protocol

    def write_eof(self) -> None:
        pass

    def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            asyncio.get_running_loop().call_soon(self.reader.connection_lost, None)

    abort = close


class Connection:
    """One connection to an app.

    Attributes:
        edge: its protocol.
        wire: its transport.
        most_unparsed: bytes that were held at once.
    """

    def __init__(self, app: App, limits: EdgeLimits | None = None) -> None:
        config = server_config(app, lambda *_: None, limits or EdgeLimits(), loop="none")
        config.load()
        made: Any = config.http_protocol_class
        self.edge: EdgeProtocol = made(config=config, server_state=ServerState(), app_state={})
        self.wire = Wire()
        self.most_unparsed = 0
        self.edge.connection_made(self.wire)

    def read(self, data: bytes) -> int:
        """One read of what the socket has; how many bytes it took."""
        reader = self.wire.reader
        assert isinstance(reader, ConnectionReader)
        buffer = reader.get_buffer(-1)
        count = min(len(data), len(buffer))
        buffer[:count] = data[:count]
        reader.buffer_updated(count)
        self.most_unparsed = max(self.most_unparsed, self.edge._receive_buffer.size)
        return count

    async def send(self, pieces: Iterable[bytes], turns: int = 0) -> None:
        """Send pieces, each after some turns of the loop."""
        for piece in pieces:
            for _ in range(turns):
                await asyncio.sleep(0)
            while piece and not self.wire.is_ended:
                if self.wire.is_paused:
                    await asyncio.sleep(0)
                else:
                    piece = piece[self.read(piece) :]

    async def answers(self, turns: int = 40) -> bytes:
        """All that is written until nothing more is for so many turns."""
        quiet, seen = 0, -1
        while quiet < turns:
            await asyncio.sleep(0)
            quiet = 0 if len(self.wire.written) != seen else quiet + 1
            seen = len(self.wire.written)
        return self.wire.written

    async def close(self) -> None:
        """End it."""
        self.wire.close()
        for _ in range(3):
            await asyncio.sleep(0)
