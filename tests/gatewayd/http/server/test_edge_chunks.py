"""Edge chunking: same answers for any split of many requests, within bounds."""

from __future__ import annotations

import asyncio
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.server import edge_scheduler
from gatewayd.http.server.edge_limits import EdgeLimits
from tests.gatewayd.http.server.in_memory_connections import Connection


@pytest.fixture(autouse=True)
def without_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a key go on in the next iteration; their rate has a test of its own."""
    monkeypatch.setattr(edge_scheduler, "REST_SECONDS", 0.0)


running = 0
most_running = 0


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Say what was asked: method, path, body; ``/early`` before the body is read."""
    global running, most_running
    running += 1
    most_running = max(most_running, running)
    body, more = b"", scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            running -= 1
            return
        body += message["body"]
        more = message["more_body"]
    if scope["path"] == "/slow":
        for _ in range(5):
            await asyncio.sleep(0)
    said = f"{scope['method']} {scope['path']} {len(body)} {zlib.crc32(body)}\n".encode()
    headers = [(b"content-length", b"%d" % len(said))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": said})
    running -= 1


def chunked(body: bytes, size: int, trailer: bytes) -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailer


BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        [
            b"\r\n\r\n" * 40,
            b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n",
            b"0\r\n\r\nGET /inner HTTP/1.1\r\nhost: x\r\n\r\n",
            b"x" * 70_000,
        ]
    ),
)
PATHS = st.sampled_from([b"/a", b"/slow", b"/early", b"/%61?b=c"])
EXTRA = st.sampled_from(
    [b"", b"", b"connection: upgrade\r\nupgrade: h2c\r\n", b"x: " + b"y" * 400 + b"\r\n"]
)
BEFORE = st.sampled_from([b"", b"", b"\r\n", b"\r\n\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One that is good."""
    path, extra, before = draw(PATHS), draw(EXTRA), draw(BEFORE)
    head = b"%b HTTP/1.1\r\nhost: x\r\n%b" % (path, extra)
    kind = draw(st.sampled_from(["none", "sized", "chunked"]))
    if kind == "none":
        return before + b"GET " + head + b"\r\n"
    body = draw(BODIES)
    if kind == "sized":
        return before + b"POST " + head + b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
    trailer = draw(st.sampled_from([b"\r\n", b"a: b\r\n\r\n"]))
    sent = chunked(body, draw(st.sampled_from([7, 64, 100_000])), trailer)
    if len(body) > 1000:
        sent = chunked(body, 9000, trailer)
    return before + b"POST " + head + b"transfer-encoding: chunked\r\n\r\n" + sent


LAST = st.sampled_from(
    [
        b"",
        b"nonsense\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /a HTTP/1.1\r\na: b\n\n",
        b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    ]
)


def told(written: bytes) -> bytes:
    """Without what is never the same twice."""
    return re.sub(rb"x-request-id: req_[0-9a-f]+\r\n", b"", written)


async def one_by_one(sent: list[bytes]) -> bytes:
    """The answers of connections that send one request each, until one is closed."""
    whole = b""
    for request in sent:
        connection = Connection(echo)
        await connection.send([request])
        whole += await connection.answers()
        is_ended = connection.edge.transport.is_closing()
        await connection.close()
        if is_ended:
            break
    return told(whole)


@given(
    st.lists(requests(), min_size=1, max_size=6),
    LAST,
    LAST,
    st.lists(st.integers(1, 300), max_size=30),
    st.integers(0, 3),
)
def test_any_pieces_get_the_answers_of_one_request_for_each_connection(
    good: list[bytes], last: bytes, behind: bytes, sizes: list[int], turns: int
) -> None:
    global most_running
    sent = [*good, *[each for each in (last, behind) if each]]
    stream = b"".join(sent)
    cuts = [0]
    for size in sizes:
        cuts.append(cuts[-1] + size)
    pieces = [stream[at:to] for at, to in zip(cuts, [*cuts[1:], len(stream)], strict=True)]

    async def together() -> bytes:
        connection = Connection(echo)
        await connection.send(pieces, turns)
        written = await connection.answers()
        await connection.close()
        return told(written)

    most_running = 0
    assert asyncio.run(together()) == asyncio.run(one_by_one(sent))
    assert most_running == 1


GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


async def test_a_hundred_requests_in_one_write_are_all_answered_in_order() -> None:
    connection = Connection(echo)
    await connection.send(
        [b"".join(b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % i for i in range(100))]
    )
    written = await connection.answers()
    await connection.close()
    assert re.findall(rb"GET /(\d+) ", written) == [b"%d" % i for i in range(100)]


async def stuck(scope: Scope, receive: Receive, send: Send) -> None:
    """Never answers."""
    await asyncio.Event().wait()


async def test_behind_a_request_are_so_many_bytes_and_no_other_request() -> None:
    limits = EdgeLimits(unparsed_bytes=4096)
    connection = Connection(stuck, limits)
    sent, taken = GET * 9000, 0
    while not connection.wire.is_paused and taken < len(sent):
        taken += connection.read(sent[taken : taken + 100_000])
        await asyncio.sleep(0)
    assert taken <= limits.unparsed_bytes + len(GET)
    assert connection.most_unparsed <= limits.unparsed_bytes
    assert len(connection.edge.tasks) == 1
    assert not connection.edge.pipeline
    for task in connection.edge.tasks:
        task.cancel()
    await connection.close()


async def test_reading_goes_on_when_half_of_what_waits_is_answered() -> None:
    connection = Connection(echo)
    await connection.send([GET * 5000])
    written = await connection.answers()
    await connection.close()
    assert written.count(b"HTTP/1.1 200 ") == 5000
    # With a pause for each request there are thousands.
    assert 0 < connection.wire.num_pauses < 5000 * len(GET) / 4096


async def test_of_many_connections_a_few_requests_begin_in_a_turn() -> None:

    begun = 0

    async def counted(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal begun
        begun += 1
        await echo(scope, receive, send)

    first = Connection(counted)
    kind = type(first.edge)
    connections = [first]
    for _ in range(99):
        other = Connection(counted)
        other.edge.scheduler = kind.scheduler  # of one server
        connections.append(other)
    for connection in connections:
        connection.read(GET * 50)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    most, seen = 0, begun
    while begun < 5000:
        await asyncio.sleep(0)
        most, seen = max(most, begun - seen), begun
    assert most <= 10  # of a hundred
    fewest = [connection.wire.written.count(b"200 OK") for connection in connections]
    assert min(fewest) >= 48
    for connection in connections:
        await connection.close()


async def test_chunks_of_next_to_nothing_have_turns() -> None:
    turns, fed = await turns_and_pieces(b"1\r\n \r\n" * 8000)
    assert fed >= 16_000
    assert turns >= 8000 / 64 * 0.9


async def test_the_data_of_a_chunk_is_not_cut_at_its_empty_lines() -> None:
    data = b"\r\n" * 60_000
    turns, fed = await turns_and_pieces(b"%x\r\n" % len(data) + data)
    assert fed <= 20
    assert turns <= 20


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 100_000])
@pytest.mark.parametrize("line", [b"%x", b"%X", b"000%x", b"%x;a=b", b"%x;" + b"a" * 90, b"%020x"])
async def test_chunks_are_what_they_say_however_they_are_written(line: bytes, size: int) -> None:
    parts = [
        b"a",
        b"\r\n\r\n" * 30,
        b"GET /inner HTTP/1.1\r\nhost: x\r\n\r\n",
        b"0\r\n\r\n",
        b"x" * 171,
    ]
    body = b"".join(parts)
    sent = b"".join(line % len(part) + b"\r\n" + part + b"\r\n" for part in parts)
    head = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    stream = 2 * (head + sent + b"0\r\na: b\r\n\r\n") + GET
    connection = Connection(echo)
    await connection.send([stream[at : at + size] for at in range(0, len(stream), size)])
    said = b"POST /a %d %d\n" % (len(body), zlib.crc32(body))
    written = await connection.answers()
    assert re.findall(rb"(?:POST|GET) .*\n", written) == [said, said, b"GET /a 0 0\n"]
    await connection.close()


async def turns_and_pieces(sent: bytes) -> tuple[int, int]:
    """The loop's turns while a chunked body is read, and the pieces that it is cut into."""
    connection = Connection(echo)
    turns = fed = 0
    feed = connection.edge._feed

    def counted(piece: bytes) -> None:
        nonlocal fed
        fed += 1
        feed(piece)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    connection.edge._feed = counted  # type: ignore[method-assign]
    counting = asyncio.create_task(count())
    head = b"POST /early HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    await connection.send([head + sent])
    while connection.edge._is_queued:
        await asyncio.sleep(0)
    counting.cancel()
    await connection.close()
    assert connection.most_unparsed <= 16 * 1024
    return turns, fed


async def test_offers_in_one_write_are_read_one_by_one() -> None:
    connection = Connection(echo)
    offer = b"GET /a HTTP/1.1\r\nhost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    await connection.send([offer * 900])
    written = await connection.answers()
    await connection.close()
    assert written.count(b"HTTP/1.1 200 ") == 900


async def test_two_requests_in_one_piece_would_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from gatewayd.http.server.receive_buffer import ReceiveBuffer

    monkeypatch.setattr(
        ReceiveBuffer, "read_through_empty_line", lambda self, most: self.read(most)
    )
    connection = Connection(stuck)
    await connection.send([GET + GET])
    assert await connection.answers() == b""
    assert connection.wire.is_ended or connection.edge.transport.is_closing()
    for task in connection.edge.tasks:
        task.cancel()
    await connection.close()
