"""Edge: slow, idle and non-HTTP connections on raw sockets, and their counters."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running, until
from tests.gatewayd.http.server.raw_sockets import POST, error_code, exchange


@pytest.mark.parametrize(
    "sent",
    [
        b"\r\n\r\nnonsense\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nhost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /livez HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost : x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nhost: x\r\n continued: y\r\n\x00: z\r\n\r\n",
        POST + b"content-length: x\r\n\r\n{}",
        POST + b"content-length: -1\r\n\r\n{}",
        POST + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        POST + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n{}",
        POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        POST + b"transfer-encoding: gzip\r\n\r\n{}",
        b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
)
async def test_what_is_not_http_gets_our_400_and_is_closed(text: TextModel, sent: bytes) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await exchange(gateway, sent)
        assert (await gateway.http.get("/livez")).status_code == 200
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert error_code(answer).startswith("invalid")


async def test_slow_headers_and_bodies_are_cut_at_their_deadlines(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.2, body_seconds=0.3)  # 10 and 30, if they were not set
    drip = [b"GET ", b"/livez ", b"HTTP/1.1\r\n"] + [b"a: b\r\n"] * 40
    body = [POST + b"content-length: 100\r\n\r\n"] + [b" "] * 40
    async with running(text, FakeFleet(), edge=edge) as gateway:
        for parts, seconds in ((drip, 0.2), ([b""], 0.2), (body, 0.3)):
            began = time.monotonic()
            answer = await exchange(gateway, *parts[:1])
            assert seconds * 0.9 <= time.monotonic() - began < seconds + 8
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_code(answer) == "request_timeout"
            began = time.monotonic()
            await exchange(gateway, *parts[:10], gap=0.05)
            assert time.monotonic() - began < 8
        await until(lambda: not gateway.fleet.jobs)


async def test_a_drip_does_not_prolong_the_deadline(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.3)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        began = time.monotonic()
        writer.write(b"GET /livez HTTP/1.1\r\n")
        # Each byte comes before the time that the last one would have had is over.
        while not reader.at_eof() and not reader._buffer:  # type: ignore[attr-defined]
            writer.write(b"a")
            await asyncio.sleep(0.05)
            assert time.monotonic() - began < 8
        writer.close()


async def test_a_fast_request_on_a_kept_connection_outlives_the_deadlines(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.3, body_seconds=0.3)
    async with running(text, FakeFleet(says([100] * 4, delay=0.1)), edge=edge) as gateway:
        assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        await asyncio.sleep(0.35)
        assert (await gateway.http.get("/livez")).status_code == 200


async def answered_and_idle(
    gateway: Gateway, *parts: bytes, gap: float = 0.1
) -> tuple[bytes, float]:
    """Send parts with gaps; what came back, and the seconds from the answer to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(parts[0])
    answer = await reader.readuntil(b"}")
    began = time.monotonic()
    try:
        for part in parts[1:]:
            await asyncio.sleep(gap)
            writer.write(part)
        async with asyncio.timeout(30):
            answer += await reader.read()
    except ConnectionError:
        pass
    writer.close()
    return answer, time.monotonic() - began


LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("idle_seconds", [0.1, 0.5])
async def test_an_idle_connection_is_closed(text: TextModel, idle_seconds: float) -> None:
    async with running(text, FakeFleet(), edge=EdgeLimits(idle_seconds=idle_seconds)) as gateway:
        answer, seconds = await answered_and_idle(gateway, LIVEZ)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert idle_seconds * 0.9 < seconds < 20  # it would be 60


@pytest.mark.parametrize(
    "parts",
    [
        (LIVEZ, b"\r\n"),
        (LIVEZ, b"\r\n", b"\r", b"\n", b"\r\n\r\n"),
        (b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"{}"),
        (b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n", b"{", b"}"),
    ],
)
async def test_bytes_that_begin_no_request_do_not_keep_a_connection(
    text: TextModel, parts: tuple[bytes, ...]
) -> None:
    edge = EdgeLimits(idle_seconds=0.3, header_seconds=60, body_seconds=60)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        answer, seconds = await answered_and_idle(gateway, *parts)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert seconds < 20


async def test_a_request_that_began_ends_the_idle_time(text: TextModel) -> None:
    edge = EdgeLimits(idle_seconds=0.6)
    async with running(text, FakeFleet(says([100] * 7, delay=0.1)), edge=edge) as gateway:
        body = json.dumps(CHAT).encode()
        chat = POST + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        answer, _ = await answered_and_idle(gateway, LIVEZ, b"\r\n" + chat)
        gateway.fleet.script = says([100])
        parts = (chat[:9], chat[9:99], b"", chat[99:])
        split, _ = await answered_and_idle(gateway, LIVEZ, *parts, gap=0.2)
    assert answer.count(b"HTTP/1.1 200 ") == split.count(b"HTTP/1.1 200 ") == 2


COMPLETE = POST + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("sent", "status", "endpoint", "method"),
    [
        (b"", 408, "other", "other"),
        (b"nonsense\r\n\r\n", 400, "other", "other"),
        (POST + b"x-request-id: mine", 408, "other", "other"),
        (POST + b"a: " + b"b" * 40_000, 431, "other", "other"),
        (COMPLETE, 408, "/v1/chat/completions", "POST"),
        (COMPLETE + b"zz\r\n", 400, "/v1/chat/completions", "POST"),
        (COMPLETE + b"1\r\n \r\n" * 60, 413, "/v1/chat/completions", "POST"),
    ],
)
async def test_what_the_edge_answers_is_counted_once(
    text: TextModel, sent: bytes, status: int, endpoint: str, method: str
) -> None:
    seconds = 0.1 if status == 408 else 60
    edge = EdgeLimits(header_seconds=seconds, body_seconds=seconds, num_chunks=50)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        assert (await exchange(gateway, sent)).startswith(b"HTTP/1.1 %d " % status)
        labels = f'endpoint="{endpoint}",method="{method}",status="{status}"'
        await gateway.until_shown(f"gatewayd_http_requests_total{{{labels}}} ")
        page = (await gateway.http.get("/metrics")).text
    counted = [line for line in page.splitlines() if line.startswith("gatewayd_http_requests_t")]
    counted = [line for line in counted if 'endpoint="/metrics"' not in line]
    assert counted == [f"gatewayd_http_requests_total{{{labels}}} 1.0"]


@pytest.mark.parametrize("sent", [POST, POST + b"content-length: 9\r\n\r\n{"])
@pytest.mark.parametrize(
    ("theirs", "echoed"), [(b"mine-1", b"mine-1"), (b"<script>", None), (b"a" * 129, None)]
)
async def test_what_the_edge_answers_carries_the_requests_id(
    text: TextModel, sent: bytes, theirs: bytes, echoed: bytes | None
) -> None:
    sent = sent.replace(b"host: x\r\n", b"host: x\r\nx-request-id: " + theirs + b"\r\n")
    edge = EdgeLimits(header_seconds=0.1, body_seconds=0.1)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        answer = await exchange(gateway, sent)
    assert error_code(answer) == "request_timeout"
    found = answer.partition(b"\r\nx-request-id: ")[2].partition(b"\r\n")[0]
    assert found == echoed if echoed else found.startswith(b"req_")
