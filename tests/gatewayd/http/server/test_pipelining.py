"""Pipelining: answers in order, and no error within another's answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, hangs_after, says
from tests.gatewayd.gateway import CHAT, running, until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"


def chat(*, is_stream: bool) -> bytes:
    body = json.dumps({**CHAT, "stream": is_stream}).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


async def answers(port: int, sent: bytes) -> bytes:
    """Send all at once; read until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        async with asyncio.timeout(30):
            return await reader.read()
    finally:
        writer.close()


LATER = {
    "no HTTP": b"nonsense\r\n\r\n",
    "slow headers": b"GET /livez HTTP/1.1\r\nhost",
    "slow body": HEAD + b"content-length: 100\r\n\r\n{",
    "bad chunk": HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
    "good, then bad": LIVEZ + b"nonsense\r\n\r\n",
    "large headers": b"GET /livez HTTP/1.1\r\na: " + b"b" * 40_000,
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("later", LATER)
async def test_a_bad_request_behind_a_good_one_is_answered_after_it(
    text: TextModel, later: str, is_stream: bool
) -> None:
    edge = EdgeLimits(header_seconds=0.15, body_seconds=0.15, idle_seconds=1)
    fleet = FakeFleet(says([100] * 10, delay=0.04))
    async with running(text, fleet, edge=edge) as gateway:
        received = await answers(gateway.port, chat(is_stream=is_stream) + LATER[later])
        finished = await gateway.until_finished()
        page = (await gateway.http.get("/metrics")).text
    first, *good, last = received.split(b"HTTP/1.1 ")[1:]
    head, _, body = first.partition(b"\r\n\r\n")
    assert head.startswith(b"200 ")
    assert [answer[:4] for answer in good] == [b"200 "] * LATER[later].startswith(LIVEZ)
    assert last.startswith(b"4")
    assert b"\r\nconnection: close\r\n" in last
    assert json.loads(last.partition(b"\r\n\r\n")[2])["error"]["code"]
    assert f'status="{last[:3].decode()}"}} 1.0' in page
    if is_stream:
        assert body.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        assert json.loads(body)["choices"][0]["finish_reason"] == "stop"
    assert finished[0].outcome == "stop"


async def test_good_requests_are_answered_in_their_order(text: TextModel) -> None:
    last = LIVEZ.replace(b"host: x", b"host: x\r\nconnection: close")
    async with running(text, FakeFleet(says([100], delay=0.05))) as gateway:
        received = await answers(
            gateway.port, chat(is_stream=False) + LIVEZ + chat(is_stream=True) + last
        )
    assert received.count(b"HTTP/1.1 200 ") == 4
    order = [received.index(mark) for mark in (b"usage", b'"status"', b"[DONE]")]
    assert order == sorted(order)


async def test_a_bad_request_after_an_answer_gets_its_own(text: TextModel) -> None:
    async with running(text, FakeFleet()) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(LIVEZ)
        assert (await reader.readuntil(b"}")).startswith(b"HTTP/1.1 200 ")
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()


async def test_a_body_that_is_late_for_its_own_answer_gets_no_second_one(text: TextModel) -> None:
    sent = b"POST /nowhere HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{"
    async with running(text, FakeFleet(), edge=EdgeLimits(body_seconds=0.1)) as gateway:
        received = await answers(gateway.port, sent)
    assert received.startswith(b"HTTP/1.1 404 ")
    assert received.count(b"HTTP/1.1 ") == 1


async def test_leaving_behind_a_bad_request_is_seen(text: TextModel) -> None:
    fleet = FakeFleet(hangs_after([100]))
    async with running(text, fleet) as gateway:
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(is_stream=True))
        await until(lambda: fleet.jobs)
        writer.write(LATER["good, then bad"])
        await asyncio.sleep(0.05)
        writer.close()
        await until(lambda: fleet.jobs[0].gone.is_set())


@pytest.mark.parametrize("num_packets", [1, 2, 3])
async def test_a_request_behind_a_long_answer_has_time(text: TextModel, num_packets: int) -> None:
    edge = EdgeLimits(header_seconds=0.15, body_seconds=0.15)
    later = chat(is_stream=False)
    cuts = {1: [0], 2: [0, len(later) - 9], 3: [0, len(later) - 9, len(later) - 4]}[num_packets]
    fleet = FakeFleet(says([100] * 10, delay=0.04))
    async with running(text, fleet, edge=edge) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(chat(is_stream=True))
        for begin, end in zip(cuts, [*cuts[1:], len(later)], strict=True):
            await asyncio.sleep(0.02)
            writer.write(later[begin:end])
        async with asyncio.timeout(30):
            await reader.readuntil(b"\r\n0\r\n\r\n")
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_a_late_body_behind_a_long_answer_is_still_too_late(text: TextModel) -> None:
    edge = EdgeLimits(header_seconds=0.15, body_seconds=0.15)
    fleet = FakeFleet(says([100] * 10, delay=0.04))
    async with running(text, fleet, edge=edge) as gateway:
        received = await answers(gateway.port, chat(is_stream=True) + LATER["slow body"])
    assert b'"request_timeout"' in received.partition(b"\r\n0\r\n\r\n")[2]
