"""Raw sockets: what is slow, large, many or not HTTP."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

from gatewayd.http.edge_limits import EdgeLimits
from gatewayd.http.services import Limits
from gatewayd.text.model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, Gateway, running, until

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def exchange(gateway: Gateway, *parts: bytes, gap: float = 0.0) -> bytes:
    """Send parts with gaps between them; read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(gap)
        async with asyncio.timeout(5):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def error_code(answer: bytes) -> str:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"application/json" in head
    assert b"connection: close" in head.lower()
    assert head.count(b"\r\nx-request-id: ") == 1
    code: str = json.loads(body)["error"]["code"]
    return code


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
    edge = EdgeLimits(header_seconds=0.2, body_seconds=0.3)
    drip = [b"GET ", b"/livez ", b"HTTP/1.1\r\n"] + [b"a: b\r\n"] * 40
    body = [POST + b"content-length: 100\r\n\r\n"] + [b" "] * 40
    async with running(text, FakeFleet(), edge=edge) as gateway:
        for parts, seconds in ((drip, 0.2), ([b""], 0.2), (body, 0.3)):
            began = time.monotonic()
            answer = await exchange(gateway, *parts[:1])
            assert seconds * 0.9 <= time.monotonic() - began < seconds + 0.5
            assert answer.startswith(b"HTTP/1.1 408 ")
            assert error_code(answer) == "request_timeout"
            began = time.monotonic()
            await exchange(gateway, *parts[:20], gap=0.05)
            assert time.monotonic() - began < 2
        await until(lambda: not gateway.fleet.jobs)


async def test_a_drip_does_not_prolong_the_deadline(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.3)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        began = time.monotonic()
        writer.write(b"GET /livez HTTP/1.1\r\n")
        while not reader.at_eof() and time.monotonic() - began < 3:
            writer.write(b"a")
            await asyncio.sleep(0.05)
            if reader._buffer:  # type: ignore[attr-defined]
                break
        assert time.monotonic() - began < 0.6
        writer.close()


async def test_a_fast_request_on_a_kept_connection_outlives_the_deadlines(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.1, body_seconds=0.1)
    async with running(text, FakeFleet(says([100] * 4, delay=0.1)), edge=edge) as gateway:
        for _ in range(2):
            assert (await gateway.http.post("/v1/chat/completions", json=CHAT)).status_code == 200
            await asyncio.sleep(0.15)


async def answered_and_idle(gateway: Gateway, *parts: bytes) -> tuple[bytes, float]:
    """Send parts with gaps; what came back, and the seconds from the answer to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(parts[0])
    answer = await reader.readuntil(b"}")
    began = time.monotonic()
    try:
        for part in parts[1:]:
            await asyncio.sleep(0.1)
            writer.write(part)
        async with asyncio.timeout(5):
            answer += await reader.read()
    except ConnectionError:
        pass
    writer.close()
    return answer, time.monotonic() - began


LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.mark.parametrize("idle_seconds", [0.3, 0.7])
async def test_an_idle_connection_is_closed(text: TextModel, idle_seconds: float) -> None:
    async with running(text, FakeFleet(), edge=EdgeLimits(idle_seconds=idle_seconds)) as gateway:
        answer, seconds = await answered_and_idle(gateway, LIVEZ)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert idle_seconds * 0.9 < seconds < idle_seconds + 0.5


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
    async with running(text, FakeFleet(), edge=EdgeLimits(idle_seconds=0.3)) as gateway:
        answer, seconds = await answered_and_idle(gateway, *parts)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert seconds < 1


async def test_a_request_that_began_ends_the_idle_time(text: TextModel) -> None:
    edge = EdgeLimits(idle_seconds=0.3)
    async with running(text, FakeFleet(says([100] * 5, delay=0.1)), edge=edge) as gateway:
        body = json.dumps(CHAT).encode()
        chat = POST + b"content-length: %d\r\n\r\n" % len(body) + body
        answer, _ = await answered_and_idle(gateway, LIVEZ, b"\r\n" + chat)
        split, _ = await answered_and_idle(gateway, LIVEZ, chat[:9], chat[9:99], b"", chat[99:])
    assert answer.count(b"HTTP/1.1 200 ") == split.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.parametrize(
    "headers",
    [
        b"a: " + b"b" * 40_000 + b"\r\n",
        b"".join(b"h%d: x\r\n" % at for at in range(101)),
        b"a: " + b"b" * 20_000 + b"\r\nc: " + b"d" * 20_000 + b"\r\n",
    ],
)
async def test_headers_over_the_caps_are_431(text: TextModel, headers: bytes) -> None:
    async with running(text, FakeFleet()) as gateway:
        whole = await exchange(gateway, b"GET /livez HTTP/1.1\r\nhost: x\r\n" + headers + b"\r\n")
        split = await exchange(
            gateway, b"GET /livez HTTP/1.1\r\n", headers[:-50], headers[-50:] + b"\r\n", gap=0.02
        )
        long_path = await exchange(gateway, b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n\r\n")
    for answer in (whole, split, long_path):
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert error_code(answer) == "headers_too_large"


async def test_a_body_over_the_limit_is_refused_before_and_while_it_comes(
    text: TextModel,
) -> None:
    limits = Limits(body_bytes=1000)
    chunk = b"64\r\n" + b" " * 100 + b"\r\n"
    async with running(text, FakeFleet(), limits=limits) as gateway:
        declared = await exchange(gateway, POST + b"content-length: 10737418240\r\n\r\n")
        huge = await exchange(gateway, POST + b"content-length: " + b"9" * 18 + b"\r\n\r\n")
        counted = await exchange(
            gateway, POST + b"transfer-encoding: chunked\r\n\r\n", *[chunk] * 11, gap=0.01
        )
    for answer in (declared, huge, counted):
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert error_code(answer) == "payload_too_large"


async def test_a_flood_of_tiny_chunks_is_refused(text: TextModel) -> None:
    async with running(text, FakeFleet(), edge=EdgeLimits(num_chunks=50)) as gateway:
        answer = await exchange(
            gateway, POST + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * 60
        )
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_connections_over_the_caps_are_turned_away(text: TextModel) -> None:
    async with running(text, FakeFleet(), edge=EdgeLimits(peer_connections=3)) as gateway:
        held = [await asyncio.open_connection("127.0.0.1", gateway.port) for _ in range(3)]
        await asyncio.sleep(0.05)
        answer = await exchange(gateway)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert error_code(answer) == "too_many_connections"
        assert b"\r\nretry-after: 1\r\n" in answer
        for _, writer in held:
            writer.close()
        await asyncio.sleep(0.05)
        assert (await gateway.http.get("/livez")).status_code == 200
        page = (await gateway.http.get("/metrics")).text
    assert 'requests_total{endpoint="other",method="other",status="503"} 1.0' in page


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
    edge = EdgeLimits(header_seconds=0.1, body_seconds=0.1, num_chunks=50)
    async with running(text, FakeFleet(), edge=edge) as gateway:
        assert (await exchange(gateway, sent)).startswith(b"HTTP/1.1 %d " % status)
        await asyncio.sleep(0.05)
        page = (await gateway.http.get("/metrics")).text
    counted = [line for line in page.splitlines() if line.startswith("gatewayd_http_requests_t")]
    labels = f'endpoint="{endpoint}",method="{method}",status="{status}"'
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


async def test_a_client_that_does_not_read_is_cut_and_its_request_stopped(
    text: TextModel,
) -> None:
    edge = EdgeLimits(stall_seconds=0.3)
    # Long words fill the kernel's buffers quickly.
    longest = max(range(6, 4096), key=lambda i: len(text.tokenizer.piece(i)))
    fleet = FakeFleet(says([longest] * 1_000_000, step=2000, delay=0.001))
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 1900, "n": 16}).encode()
    fleet.model = fleet.model and type(fleet.model)(
        **{name: getattr(fleet.model, name) for name in fleet.model.__struct_fields__}
        | {"max_model_len": 10_000_000}
    )
    body = json.dumps({**CHAT, "stream": True, "max_tokens": 1_000_000, "n": 8}).encode()
    async with running(text, fleet, edge=edge) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        writer.write(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        finished = await gateway.until_finished()
        assert fleet.jobs[0].gone.is_set()
        assert (await gateway.http.get("/livez")).status_code == 200
        writer.close()
        assert fleet.jobs[0].task is not None
        fleet.jobs[0].task.cancel()
    assert finished[0].outcome == "abort"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=-"}, 415),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "APPLICATION/JSON"}, 200),
    ],
)
async def test_only_plain_json_is_read(
    text: TextModel, headers: dict[str, str], status: int
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        answer = await gateway.http.post(
            "/v1/chat/completions", content=json.dumps(CHAT), headers=headers
        )
    assert answer.status_code == status
    if status == 415:
        assert answer.json()["error"]["code"] == "unsupported_media_type"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/models/none", 404),
        ("POST", "/livez", 405),
        ("GET", "/v1/chat/completions", 405),
        ("OPTIONS", "/v1/models", 405),
        ("DELETE", "/v1/models/nano", 405),
        ("BREW", "/livez", 400),
        ("GET", "//livez", 404),
        ("GET", "/livez/", 404),
        ("GET", "/v1/%2e%2e/livez", 404),
    ],
)
async def test_routing_errors_are_openai_errors(
    text: TextModel, method: str, path: str, status: int
) -> None:
    async with running(text, FakeFleet()) as gateway:
        answer = await exchange(
            gateway, f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        )
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert error_code(answer)
    assert (b"allow: " in answer.lower()) == (status == 405)
