"""Edge closing: the last answer arrives, and every connection ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.server import edge_closing
from gatewayd.http.server.edge_closing import EdgeTransport
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.gateway import running, until
from tests.gatewayd.http.server.in_memory_connections import Connection, Wire
from tests.gatewayd.http.server.raw_sockets import POST
from tests.virtual_time import leaping_time


class Full(Wire):
    """A transport whose client reads nothing; it ends by ``abort`` alone."""

    is_shut = is_cut = False

    def get_write_buffer_size(self) -> int:
        return 100

    def write_eof(self) -> None:
        self.is_shut = True

    def close(self) -> None:
        self.is_ended = True

    def abort(self) -> None:
        self.is_cut = True


@pytest.mark.parametrize(
    "sent",
    [
        b"nonsense\r\n\r\n" + b"x" * 3_000_000,
        b"GET /a HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 500_000,
        POST.replace(b"POST", b"PUT")
        + b"connection: close\r\ncontent-length: 3000000\r\n\r\n"
        + b"x" * 3_000_000,
    ],
    ids=["no HTTP", "headers", "body"],
)
async def test_an_answer_arrives_though_its_client_still_sends(
    text: TextModel, sent: bytes
) -> None:
    async with running(text, FakeFleet()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(sent)
        async with asyncio.timeout(30):
            await writer.drain()
            await asyncio.sleep(0.05)  # a reset would have come, and the answer be gone
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.1 4")
    assert answer.endswith(b"}")


@pytest.mark.parametrize("is_sending", [False, True])
async def test_who_does_not_read_the_last_answer_is_cut(is_sending: bool) -> None:
    full = Full()
    transport: Any = EdgeTransport(full, 20.0, lambda: is_sending)
    with leaping_time():
        began = asyncio.get_running_loop().time()
        transport.close()
        assert transport.is_closing()
        assert full.is_shut is is_sending
        assert not full.is_cut
        await until(lambda: full.is_cut)
        assert asyncio.get_running_loop().time() - began == pytest.approx(20.0, abs=0.01)


async def test_who_sends_on_and_on_behind_the_last_answer_is_closed() -> None:
    wire = Wire()
    wire.set_protocol(asyncio.Protocol())
    transport = EdgeTransport(wire, 30, lambda: True)
    with leaping_time():
        began = asyncio.get_running_loop().time()
        transport.close()
        assert not wire.is_ended
        await until(lambda: wire.is_ended)
        assert asyncio.get_running_loop().time() - began == pytest.approx(
            edge_closing._LINGER_SECONDS, abs=0.01
        )


async def test_what_an_app_writes_after_the_end_is_dropped() -> None:
    wire = Wire()
    wire.set_protocol(asyncio.Protocol())
    transport = EdgeTransport(wire, 30, lambda: True)
    transport.write(b"a")
    transport.close()
    transport.write(b"b")
    transport.on_connection_lost()
    assert wire.written == b"a"


async def test_one_too_many_is_not_kept_for_its_end() -> None:
    connection = Connection(_never, EdgeLimits(connections=0))
    assert connection.wire.written.startswith(b"HTTP/1.1 503 ")
    assert connection.wire.is_ended


async def _never(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it is not asked")


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


LAST = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"


async def closed_with_much_behind() -> Connection:
    """One whose last request has as much behind it as is kept; it is answered and closed."""
    connection = Connection(answered)
    while not connection.wire.is_paused:
        connection.read(LAST + b"x" * 20_000)
    await connection.answers()
    assert connection.edge.transport.is_closing()
    assert not connection.wire.is_ended
    assert not connection.wire.is_paused
    return connection


async def test_what_comes_after_the_last_answer_is_read_in_large_pieces() -> None:
    connection = await closed_with_much_behind()
    num_reads, taken = 0, 0
    while taken < 1_000_000:
        taken += connection.read(b"x" * 1_000_000)
        num_reads += 1
        assert num_reads <= 20
    assert connection.edge._receive_buffer.size == 0
    await connection.close()


async def test_what_comes_after_the_last_answer_has_an_end() -> None:
    connection = await closed_with_much_behind()
    taken, num_reads = 0, 0
    while not connection.wire.is_ended:
        taken += connection.read(b"x" * 1_000_000)
        num_reads += 1
        assert num_reads <= 80
    assert 4_000_000 <= taken <= 5_000_000  # who sends a usual body gets to read why it is refused
    await connection.close()
