"""Client disconnect: stops its request in any phase."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable

import pytest

from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, hangs, hangs_after, says
from tests.gatewayd.gateway import CHAT, Gateway, running, until


def request_bytes(
    *, is_stream: bool, path: str = "/v1/chat/completions", padding: int = 0
) -> bytes:
    body = json.dumps({**CHAT, "stream": is_stream, "n": 2}).encode() + b" " * padding
    head = (
        f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def leave(
    gateway: Gateway,
    sent: bytes,
    read: int,
    how: str,
    *,
    head_first: bool = False,
    is_there: Callable[[], object] | None = None,
    is_gone: Callable[[], object] | None = None,
) -> None:
    """Connect, send, read or wait until the request is there, and go.

    A client that shuts only its own end is seen before it closes the connection.
    """
    sock = socket.create_connection(("127.0.0.1", gateway.port))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    if head_first:
        head, end, sent = sent.partition(b"\r\n\r\n")
        await loop.sock_sendall(sock, head + end)
        await asyncio.sleep(0.05)
    await loop.sock_sendall(sock, sent)
    if read:
        assert await loop.sock_recv(sock, read)
    elif is_there is not None:
        await until(is_there)
    else:
        await asyncio.sleep(0.05)
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half-close":
        sock.shutdown(socket.SHUT_WR)
        if is_gone is not None:
            await until(is_gone)
    sock.close()


def there_and_gone(
    fleet: FakeFleet, *, is_generating: bool
) -> tuple[Callable[[], bool], Callable[[], bool]]:
    """Whether the request has come, or its tokens have been said, and whether it is left."""

    def is_there() -> bool:
        return bool(fleet.jobs) and (fleet.jobs[0].cached is not None or not is_generating)

    def is_gone() -> bool:
        return bool(fleet.jobs) and fleet.jobs[0].gone.is_set()

    return is_there, is_gone


@pytest.mark.parametrize("how", ["reset", "close", "half-close"])
@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("phase", ["queued", "generating"])
async def test_leaving_cancels_the_request_and_accounts_once(
    text: TextModel, how: str, is_stream: bool, phase: str
) -> None:
    fleet = FakeFleet(hangs if phase == "queued" else hangs_after([100, 101]))
    async with running(text, fleet) as gateway:
        read = 1000 if is_stream and phase == "generating" else 0
        is_there, is_gone = there_and_gone(fleet, is_generating=phase == "generating")
        await leave(
            gateway,
            request_bytes(is_stream=is_stream),
            read,
            how,
            is_there=is_there,
            is_gone=is_gone,
        )
        await until(is_gone)
        finished = await gateway.until_finished()
        status = 200 if read else 499
        await gateway.until_shown(
            'gatewayd_http_requests_total{endpoint="/v1/chat/completions",method="POST",'
            f'status="{status}"}} 1.0'
        )
    assert len(gateway.admitted) == len(finished) == 1
    assert finished[0].outcome == "abort"
    assert finished[0].completion_tokens == (0 if phase == "queued" else 4)


@pytest.mark.parametrize("how", ["reset", "close", "half-close"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_leaving_after_a_large_body_is_seen_too(
    text: TextModel, how: str, is_stream: bool
) -> None:
    fleet = FakeFleet(hangs_after([100, 101]))
    async with running(text, fleet) as gateway:
        sent = request_bytes(is_stream=is_stream, padding=100 * 1024)
        is_there, is_gone = there_and_gone(fleet, is_generating=True)
        await leave(
            gateway,
            sent,
            1000 if is_stream else 0,
            how,
            head_first=True,
            is_there=is_there,
            is_gone=is_gone,
        )
        await until(is_gone)
        finished = await gateway.until_finished()
    assert [event.outcome for event in finished] == ["abort"]


@pytest.mark.parametrize("how", ["reset", "close"])
@pytest.mark.parametrize("part", [0, 10, 60, -1, -30])
async def test_leaving_before_the_request_is_whole_starts_nothing(
    text: TextModel, how: str, part: int
) -> None:
    async with running(text, FakeFleet()) as gateway:
        whole = request_bytes(is_stream=True)
        await leave(gateway, whole[:part], 0, how)
        assert (await gateway.http.get("/livez")).status_code == 200
    assert gateway.fleet.jobs == []
    assert not gateway.admitted
    assert not gateway.finished


async def test_leaving_while_text_flows_stops_a_long_stream(text: TextModel) -> None:
    fleet = FakeFleet(says([100] * 100_000, delay=0.001))
    async with running(text, fleet) as gateway:
        for _ in range(5):
            await leave(gateway, request_bytes(is_stream=True), 2000, "reset")
        finished = await gateway.until_finished(5)
        assert all(job.gone.is_set() for job in fleet.jobs)
        for job in fleet.jobs:
            assert job.task is not None
            job.task.cancel()
    assert [event.outcome for event in finished] == ["abort"] * 5


async def test_a_client_that_stays_is_not_cancelled(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100] * 5, delay=0.02))) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json=CHAT)
        finished = await gateway.until_finished()
    assert response.status_code == 200
    assert finished[0].outcome == "stop"


async def test_a_kept_connection_serves_many_requests(text: TextModel) -> None:
    async with running(text, FakeFleet(says([100, 101]))) as gateway:
        for is_stream in (False, True) * 20:
            body = {**CHAT, "stream": is_stream}
            assert (await gateway.http.post("/v1/chat/completions", json=body)).status_code == 200
        finished = await gateway.until_finished(40)
    assert {event.outcome for event in finished} == {"stop"}
    assert len({event.request_id for event in finished}) == 40
