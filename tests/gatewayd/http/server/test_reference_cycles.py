"""Reference cycles: an ended request leaves none for the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gatewayd.http.server.edge import EdgeProtocol
from gatewayd.text.text_model import TextModel
from tests.gatewayd.fake_fleet import FakeFleet, Script, hangs, says
from tests.gatewayd.gateway import Gateway, running, until
from tests.gatewayd.store_fixtures import opened

TIMES = 4
ALL_OF_A_DISK = 1 << 60
_OF_ASYNCIO = {"_SelectorSocketTransport", "TransportSocket", "socket"}
"""Cycles of the loop of these tests; uvloop has none."""


def http(path: str, body: bytes = b"", content_type: str = "application/json") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body


def completion(prompt: Any, **fields: Any) -> bytes:
    body = {"model": "nano", "prompt": prompt, "max_tokens": 2, **fields}
    return http("/v1/completions", json.dumps(body).encode())


def form(num_bytes: int) -> bytes:
    content = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    content += b'{"a":1}\n' * (num_bytes // 8)
    content += (
        b'\r\n--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
    )
    return http("/v1/files", content, "multipart/form-data; boundary=b")


ANSWERED = {
    "health": (b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n", 200),
    "not found": (http("/nope"), 404),
    "completion": (completion("a"), 200),
    "stream": (completion("a", stream=True), 200),
    "wrong": (completion(-1), 400),
    "large and wrong": (completion([-1] * 60_000), 400),
    "too long": (completion("x " * 100_000), 400),
    "grammar": (completion("a", guided_grammar="root ::= " + "x" * 9000), 200),
    "response": (http("/v1/responses", b'{"model": "nano", "input": "a"}'), 200),
    "file": (form(200_000), 200),
    "file for which there is no room": (form(2 << 20), 507),
}
LEFT = {
    "health, unread": b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
    "half a header": b"GET /livez HTTP/1.1\r\nHo",
    "half a body": completion("a")[:-4],
    "half a form": form(2 << 20)[:-1000],
    "an answer": completion("a", max_tokens=500),
    "a stream": completion("a", stream=True, max_tokens=500),
}


@contextmanager
def garbage() -> Iterator[Counter[str]]:
    """What only the collector finds, by type, once the block has ended."""
    found: Counter[str] = Counter()
    gc.collect()
    # Only what the block makes is looked through, not all that other tests have left. Nothing is
    # unfrozen: that would be all that was imported, too.
    gc.freeze()
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(f"{type(one).__module__}.{type(one).__name__}" for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


class Ring:
    """Refers to itself."""

    def __init__(self) -> None:
        self.next = self


def test_a_cycle_is_found() -> None:
    with garbage() as found:
        Ring()
    assert found[f"{__name__}.Ring"] == 1


async def send(gateway: Gateway, data: bytes, *, reads: bool) -> bytes:
    """Write, and read the beginning of an answer, or reset the connection without."""
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(data)
    answer = await reader.read(64) if reads else b""
    await asyncio.sleep(0.01)
    if not reads:
        link = writer.get_extra_info("socket")
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()
    return answer


async def check(text: TextModel, store: Path, script: Script, data: bytes, status: int) -> None:
    floor = ALL_OF_A_DISK if status == 507 else 0
    with opened(store, store={"free_bytes": floor}) as durable:
        async with running(text, FakeFleet(script), durable=durable) as gateway:
            for _ in range(2):  # what is made once
                answer = await send(gateway, data, reads=bool(status))
                assert not status or b" %d " % status in answer
            await asyncio.sleep(0.05)
            with garbage() as found:
                for _ in range(TIMES):
                    await send(gateway, data, reads=bool(status))
                await until(
                    lambda: not any(isinstance(one, EdgeProtocol) for one in gc.get_objects())
                )
    ours = {
        name: count
        for name, count in found.items()
        if not name.startswith("builtins.") and name.rpartition(".")[2] not in _OF_ASYNCIO
    }
    assert not ours


@pytest.mark.parametrize("kind", ANSWERED)
async def test_an_answered_request_leaves_nothing(
    text: TextModel, tmp_path: Path, kind: str
) -> None:
    await check(text, tmp_path, says([300, 301]), *ANSWERED[kind])


@pytest.mark.parametrize("kind", LEFT)
async def test_a_client_that_leaves_leaves_nothing(
    text: TextModel, tmp_path: Path, kind: str
) -> None:
    await check(text, tmp_path, hangs, LEFT[kind], 0)
