"""Edge fairness: round-robin by client; unauthenticated ones never delay a valid key."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.server import edge_scheduler
from gatewayd.http.server.client_address import subscriber
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.edge_scheduler import MOST, ConnectionScheduler
from gatewayd.tenants.principal import IN_SCOPE, Principal
from tests.gatewayd.http.server.in_memory_connections import Connection
from tests.virtual_time import leaping_time


@pytest.fixture(autouse=True)
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a key go on in the next iteration; their rate has a test of its own."""
    monkeypatch.setattr(edge_scheduler, "REST_SECONDS", 0.0)


@pytest.fixture
async def leaping() -> AsyncIterator[None]:
    """Deadlines come when nothing else is left to do, however busy the machine is."""
    with leaping_time():
        yield


GET = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\nauthorization: good\r\ntransfer-encoding: chunked\r\n\r\n"


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Looks at the key at once, as the guard does; takes the body, says how long it was."""
    if any(name == b"authorization" for name, _ in scope["headers"]):
        scope[IN_SCOPE] = Principal(tenant="good", scopes=frozenset(), key_id="key")
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        size += len(message["body"])
        more = message["more_body"]
    said = b"%d" % size
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})


def in_chunks(length: int, size: int) -> bytes:
    whole, rest = divmod(length, size)
    chunk = b"%x\r\n%b\r\n" % (size, b" " * size)
    return chunk * whole + (b"%x\r\n%b\r\n" % (rest, b" " * rest) if rest else b"") + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("body_bytes", "chunk_bytes", "most_turns"),
    [
        (1_500_000, 200, 180),  # 64 chunks in each turn, from the first one on
        (3_500_000, 500, 300),  # what one may have unparsed in each turn
        (3_500_000, 8192, 300),
        (3_500_000, 100_000, 110),  # a read of 64 KiB in each turn
    ],
)
async def test_a_thousand_strangers_do_not_starve_a_chunked_body(
    body_bytes: int, chunk_bytes: int, most_turns: int
) -> None:
    good = Connection(app)
    others = [Connection(app) for _ in range(1000)]
    for other in others:
        other.edge.scheduler = type(good.edge).scheduler  # of one server
        other.read(GET * 600)
    await asyncio.sleep(0)
    left, turns = HEAD + in_chunks(body_bytes, chunk_bytes), 0
    while not good.wire.written:
        # A socket is read once in a turn of the loop, and holds so much.
        if left and not good.wire.is_paused:
            left = left[good.read(left[:65_536]) :]
        turns += 1
        assert turns <= most_turns, f"{len(left)} bytes are left"
        await asyncio.sleep(0)
    assert good.wire.written.endswith(b"%d" % body_bytes)
    assert any(other.edge._receive_buffer.size for other in others), "no connection was in its way"
    for connection in [good, *others]:
        await connection.close()


async def test_long_headers_of_a_first_request_have_no_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They may have a key, and what others pipeline without one is no reason to wait."""
    monkeypatch.setattr(edge_scheduler, "REST_SECONDS", 60.0)
    keyless, *good = (Connection(app) for _ in range(1 + 3 * MOST))
    for one in good:
        one.edge.scheduler = type(keyless.edge).scheduler  # of one server
    keyless.read(GET * 100)
    await keyless.answers()
    head = GET[:-2] + b"".join(b"x-%d: %s\r\n" % (i, b"a" * 900) for i in range(20)) + b"\r\n"
    for one in good:
        await one.send([head])
    for one in good:
        assert (await one.answers()).endswith(b"\r\n\r\n0")
    assert keyless.edge._receive_buffer.size, "what is pipelined has its rate"
    for one in (keyless, *good):
        await one.close()


@dataclass(eq=False)
class Asking:
    """Asks again as soon as it has gone on."""

    turns: ConnectionScheduler
    address: str
    principal: Principal | None
    counts: Counter[str] = field(default_factory=Counter)

    def ask(self) -> None:
        self.turns.enqueue(self, subscriber(self.address), self.principal)

    def resume(self) -> None:
        self.counts[self.address] += 1
        self.ask()


async def test_clients_have_turns_however_many_connections_they_have() -> None:
    turns, counts, rng = ConnectionScheduler(), Counter[str](), random.Random(7)
    addresses = ["192.0.2.1"] * 500 + ["192.0.2.2"] * 20 + ["192.0.2.3"]
    # One network of many addresses is one client.
    addresses += [f"2001:db8::{number:x}" for number in range(1, 200)]
    rng.shuffle(addresses)
    for address in addresses:
        Asking(turns, address, None, counts).ask()
    for _ in range(500):
        await asyncio.sleep(0)
    network = sum(count for address, count in counts.items() if ":" in address)
    shares = [counts["192.0.2.1"], counts["192.0.2.2"], counts["192.0.2.3"], network]
    assert max(shares) - min(shares) <= 2 * MOST
    assert sum(shares) >= 400


async def test_keys_and_strangers_alternate_and_tenants_have_turns() -> None:
    turns, counts = ConnectionScheduler(), Counter[str]()
    many, one = (Principal(tenant=t, scopes=frozenset(), key_id=t) for t in ("many", "one"))
    for number in range(300):
        Asking(turns, "keyless", None, counts).ask()
        Asking(turns, f"many{number}", many, counts).ask()
    Asking(turns, "one", one, counts).ask()
    for _ in range(500):
        await asyncio.sleep(0)
    assert abs(counts["keyless"] - sum(counts.values()) / 2) <= MOST
    assert abs(counts["one"] - sum(counts.values()) / 4) <= MOST
    # Of one client, connections have turns as well.
    each = [counts[f"many{number}"] for number in range(300)]
    assert max(each) - min(each) <= 1


class Slow(ConnectionScheduler):
    """Runs connections only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Asking] = []

    def enqueue(
        self,
        connection: object,
        client: str,
        principal: Principal | None,
        *,
        is_first: bool = False,
    ) -> None:
        self.waiting.append(connection)  # type: ignore[arg-type]


@pytest.mark.usefixtures("leaping")
async def test_time_in_the_queue_is_not_the_clients() -> None:
    connection = Connection(app, EdgeLimits(body_seconds=0.15))
    slow = connection.edge.scheduler = Slow()
    connection.read(HEAD)
    connection.read(b"5\r\n")
    await asyncio.sleep(0.4)
    assert not connection.wire.written
    assert connection.edge._is_queued
    slow.waiting.pop().resume()
    await asyncio.sleep(0.1)
    assert not connection.wire.written, "this has been its own time, and is not over"
    connection.read(b"hello\r\n0\r\n\r\n")
    while slow.waiting:
        slow.waiting.pop().resume()
    assert (await connection.answers()).endswith(b"\r\n\r\n5")
    await connection.close()


@pytest.mark.usefixtures("leaping")
async def test_after_its_time_in_the_queue_a_client_has_no_more_than_its_own() -> None:
    connection = Connection(app, EdgeLimits(body_seconds=0.15))
    slow = connection.edge.scheduler = Slow()
    connection.read(HEAD)
    connection.read(b"5\r\n")
    await asyncio.sleep(0.3)
    slow.waiting.pop().resume()
    await asyncio.sleep(0.4)
    assert connection.wire.written.startswith(b"HTTP/1.1 408 ")
    await connection.close()


@pytest.mark.usefixtures("leaping")
async def test_a_client_that_trickles_between_its_turns_has_no_more_time() -> None:
    connection = Connection(app, EdgeLimits(body_seconds=0.15))
    loop = asyncio.get_running_loop()
    connection.read(HEAD)
    began = loop.time()
    while not connection.wire.written and loop.time() - began < 2:
        connection.read(b"1\r\n \r\n")
        await asyncio.sleep(0.005)
    assert connection.wire.written.startswith(b"HTTP/1.1 408 ")
    assert loop.time() - began < 0.6
    await connection.close()
