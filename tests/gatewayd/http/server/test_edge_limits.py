"""Edge limits: too large, too many, or unread, on raw sockets."""

from __future__ import annotations

import asyncio
import json

import pytest

from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.services import RequestLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running
from tests.gatewayd.http.server.raw_sockets import POST, error_code, exchange


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
    limits = RequestLimits(body_bytes=1000)
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
        answer = await exchange(gateway)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert error_code(answer) == "too_many_connections"
        assert b"\r\nretry-after: 1\r\n" in answer
        for _, writer in held:
            writer.close()
        num_refused = 1
        async with asyncio.timeout(30):
            while (await gateway.http.get("/livez")).status_code != 200:
                num_refused += 1  # they have not ended yet
        page = (await gateway.http.get("/metrics")).text
    line = 'requests_total{endpoint="other",method="other",status="503"}'
    assert f"{line} {num_refused}.0" in page


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
        ("GET", "/livez/x", 404),
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
