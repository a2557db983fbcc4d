"""Upgrade requests: the offer is ignored, and the body stays the request's own."""

from __future__ import annotations

import asyncio
import json

import pytest

from gatewayd.http.server.upgrade import without_upgrade
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, says
from tests.gatewayd.gateway import CHAT, running

LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
BODY = json.dumps(CHAT).encode()
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
OFFERS = {
    "h2c": H2C,
    "h2c, last header": b"x-a: b\r\n" + H2C,
    "websocket": b"connection: keep-alive, Upgrade\r\nupgrade: websocket\r\n",
}


def post(offer: bytes, body: bytes) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    return head + offer + body


SIZED = b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize("body", [SIZED, CHUNKED])
@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("packet", [1, 40, 10_000])
async def test_the_body_of_a_request_that_offers_another_protocol_is_its_own(
    text: TextModel, offer: str, body: bytes, packet: int
) -> None:
    async with running(text, FakeFleet(says([100]))) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        sent = post(OFFERS[offer], body) * 2 + LIVEZ
        for begin in range(0, len(sent), packet):
            writer.write(sent[begin : begin + packet])
            if packet < 10_000:
                await asyncio.sleep(0)
        async with asyncio.timeout(30):
            received = await reader.read()
        writer.close()
    answers = received.split(b"HTTP/1.1 ")[1:]
    assert [answer[:4] for answer in answers] == [b"200 "] * 3
    assert [b'"usage"' in answer for answer in answers] == [True, True, False]
    assert [len(job.request.prompt) for job in gateway.fleet.jobs] == [
        len(gateway.fleet.jobs[0].request.prompt)
    ] * 2


async def test_a_tunnel_is_refused(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(b"CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\n\r\n" + LIVEZ)
        received = await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"invalid_http" in received


def test_only_the_offer_is_left_out() -> None:
    headers = [
        (b"host", b"x"),
        (b"connection", b"Upgrade,close , HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"AA"),
        (b"x-upgrade", b"a: b"),
    ]
    assert without_upgrade(b"GET", b"/a?b", "1.1", headers) == (
        b"GET /a?b HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-upgrade: a: b\r\n\r\n"
    )
