"""Hostile tenants: each an attack that a server's own clients can mount.

``python -m tests.security.hostile.neighbours NAME ...`` is a process of its own, which stands for
other machines: what is measured is what the server does for it. So in the long run it has what the
server leaves of the processor; in the short one, beside other tests, it would be left nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import string
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple

import httpx

MIB = 1 << 20
GET = b"GET / HTTP/1.1\r\nHost:a\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost:a\r\nConnection:upgrade\r\nUpgrade:h2c\r\n\r\n"


class Target(NamedTuple):
    """A server.

    Attributes:
        port: on this machine.
        keys: secrets by tenant.
        scale: how large the largest things are that neighbours send, from 0 to 1.
    """

    port: int
    keys: dict[str, str]
    scale: float = 1.0

    def http(self, tenant: str) -> httpx.AsyncClient:
        """A client with a tenant's key."""
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}",
            headers={"authorization": f"Bearer {self.keys[tenant]}"},
            timeout=60,
            limits=httpx.Limits(max_connections=None),
            verify=False,  # there is no TLS, and each client would read all certificates first
        )


Told = Counter[str]
Neighbour = Callable[[Target, Told], Coroutine[Any, Any, None]]
"""Goes on until it is cancelled; counts the statuses that it is told."""

NEIGHBOURS: dict[str, Neighbour] = {}
TOLD: dict[str, tuple[str, ...]] = {}
"""What each is told, one or the other, or it has attacked nobody."""


def neighbour(*told: str) -> Callable[[Neighbour], Neighbour]:
    """List one under its name, with what it is told where it does its worst, or is refused."""

    def listed(run: Neighbour) -> Neighbour:
        NEIGHBOURS[run.__name__] = run
        TOLD[run.__name__] = told
        return run

    return listed


async def connected(port: int, receive_bytes: int = 4096) -> socket.socket:
    """A connection that takes little before it pushes back."""
    link = socket.socket()
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    link.setblocking(False)
    await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
    return link


async def write_and_wait(port: int, data: bytes, seconds: float, told: Told) -> None:
    """Write what is taken within some seconds, read nothing, and leave."""
    link = await connected(port)
    told["connections"] += 1
    with link, contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.get_running_loop().sock_sendall(link, data)
            await asyncio.sleep(seconds)


async def several(count: int, one: Callable[[], Awaitable[None]]) -> None:
    """As many at once, again and again."""

    async def again() -> None:
        while True:
            try:
                await one()
            except (OSError, httpx.HTTPError):
                await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(again())


@neighbour("connections")
async def pipeliners(target: Target, told: Told) -> None:
    """Without a key: thousands of requests in one write, and no answer is read."""
    requests = GET * 9000
    await several(int(80 * target.scale), lambda: write_and_wait(target.port, requests, 5.0, told))


@neighbour("connections")
async def upgraders(target: Target, told: Told) -> None:
    """Without a key: offers of another protocol, hundreds in one write."""

    async def offer() -> None:
        await write_and_wait(target.port, UPGRADE * 900, 0.5, told)

    await several(int(10 * target.scale) or 1, offer)


@neighbour("connections")
async def openers(target: Target, told: Told) -> None:
    """Without a key: connections that come, say half a header, and go."""

    async def open_and_go() -> None:
        await write_and_wait(target.port, b"GET /livez HTTP/1.1\r\nHo", 0.02, told)

    await several(20, open_and_go)


@neighbour("401", "429")
async def guessers(target: Target, told: Told) -> None:
    """Wrong keys with large bodies."""
    body = b'{"prompt": "' + b"x" * int(MIB * target.scale) + b'"}'

    async def guess() -> None:
        async with target.http("flood") as http:
            answer = await http.post(
                "/v1/completions",
                content=body,
                headers={
                    "authorization": f"Bearer gw_{random.random()}",
                    "content-type": "application/json",
                },
            )
            told[str(answer.status_code)] += 1

    await several(2, guess)


@neighbour("bytes")
async def slow_readers(target: Target, told: Told) -> None:
    """Streams of which hardly a byte is read."""
    body = json.dumps(
        {"model": "nano", "prompt": "x", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    )
    request = (
        f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer "
        f"{target.keys['reader']}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()

    async def read_slowly() -> None:
        loop = asyncio.get_running_loop()
        with await connected(target.port) as link:
            await loop.sock_sendall(link, request)
            while data := await loop.sock_recv(link, 16):
                told["bytes"] += len(data)
                await asyncio.sleep(0.5)

    await several(8, read_slowly)


@neighbour("left", "429")
async def leavers(target: Target, told: Told) -> None:
    """Long new prompts whose client has gone within the first step."""

    async def ask_and_go() -> None:
        prompt = [random.randrange(300, 4000) for _ in range(1500)]
        body = {"model": "nano", "prompt": prompt, "max_tokens": 1, "stream": True}
        async with target.http("leaver") as http:
            try:
                async with asyncio.timeout(0.025):
                    answer = await http.post("/v1/completions", json=body)
                    told[str(answer.status_code)] += 1
            except TimeoutError:
                told["left"] += 1
        await asyncio.sleep(0.1)

    await several(1, ask_and_go)


@neighbour("200", "429")
async def tokenizer_flood(target: Target, told: Told) -> None:
    """As long a text to be counted as may be, a token for each letter, two dozen at once."""
    text = " ".join(str(random.random()) for _ in range(10_000))[: 128 << 10]

    async def count() -> None:
        async with target.http("flood") as http:
            answer = await http.post("/tokenize", json={"model": "nano", "prompt": text})
            told[str(answer.status_code)] += 1
        await asyncio.sleep(0.02)

    await several(24, count)


@neighbour("400", "429")
async def refused_bodies(target: Target, told: Told) -> None:
    """Large bodies that say nothing right."""
    body = json.dumps(
        {"model": "nano", "prompt": [[1] for _ in range(int(300_000 * target.scale))]}
    )

    async def send() -> None:
        async with target.http("refused") as http:
            answer = await http.post(
                "/v1/completions", content=body, headers={"content-type": "application/json"}
            )
            told[str(answer.status_code)] += 1
        await asyncio.sleep(0.02)

    await several(5, send)


@neighbour("400", "429")
async def grammar_bombs(target: Target, told: Told) -> None:
    """Grammars that take a checker longer than it may, each a new one."""

    async def bomb() -> None:
        letters = random.choices(string.ascii_lowercase, k=12)
        grammar = "a" * 60_000 + "".join(letters)
        body = {"model": "nano", "prompt": "x", "max_tokens": 1, "guided_grammar": grammar}
        async with target.http("bomber") as http:
            answer = await http.post("/v1/completions", json=body)
            told[str(answer.status_code)] += 1
        await asyncio.sleep(0.02)

    await several(4, bomb)


async def uploaded(http: httpx.AsyncClient, content: bytes, told: Told) -> str | None:
    """The id of a file that was taken."""
    answer = await http.post(
        "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", content)}
    )
    told[str(answer.status_code)] += 1
    return answer.json()["id"] if answer.status_code == 200 else None


def batch_line(number: int, **fields: Any) -> bytes:
    """A line of a batch's input."""
    body = {"model": "nano", "prompt": "x", "max_tokens": 2, **fields}
    line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
    return json.dumps(line).encode() + b"\n"


async def batch_of(http: httpx.AsyncClient, file: str, told: Told) -> str | None:
    """The id of a batch that was taken."""
    wish = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = await http.post("/v1/batches", json=wish)
    told[str(answer.status_code)] += 1
    return answer.json()["id"] if answer.status_code == 200 else None


@neighbour("200", "429")
async def line_ends(target: Target, told: Told) -> None:
    """Batches of a file that has one request and millions of empty lines."""
    async with target.http("ender") as http:
        file = await uploaded(http, batch_line(0) + b"\n" * int(48 * MIB * target.scale), told)
        if file is not None:
            for _ in range(6):
                await batch_of(http, file, told)
    await asyncio.Event().wait()


@neighbour("200", "429")
async def limited_batch(target: Target, told: Told) -> None:
    """A batch of a tenant that may send three requests a minute."""
    async with target.http("slow") as http:
        file = await uploaded(http, b"".join(map(batch_line, range(500))), told)
        if file is not None:
            await batch_of(http, file, told)
    await asyncio.Event().wait()


@neighbour("200", "507", "429")
async def store_fillers(target: Target, told: Told) -> None:
    """Files until nothing more is taken, and on."""
    content = batch_line(0) * int(MIB * target.scale // len(batch_line(0)))

    async def fill() -> None:
        async with target.http("filler") as http:
            await uploaded(http, content, told)
        await asyncio.sleep(0.05)

    await several(2, fill)


@neighbour("200", "429")
async def chains(target: Target, told: Told) -> None:
    """Kept responses behind one another, each with megabytes of input; then a hundred bytes."""
    async with target.http("chainer") as http:
        last: str | None = None
        text = "x " * int(3.5 * MIB * target.scale)
        for _ in range(14):
            body: dict[str, Any] = {
                "model": "nano",
                "input": [{"role": "user", "content": text}, {"role": "user", "content": "hi"}],
                "truncation": "auto",
                "max_output_tokens": 1,
            }
            if last is not None:
                body["previous_response_id"] = last
            answer = await http.post("/v1/responses", json=body)
            told[str(answer.status_code)] += 1
            if answer.status_code != 200:
                break
            last = answer.json()["id"]

        async def count() -> None:
            answer = await http.post(
                "/v1/responses/input_tokens",
                json={"model": "nano", "previous_response_id": last, "input": "x"},
            )
            told[str(answer.status_code)] += 1
            await asyncio.sleep(0.02)

        await several(4, count)


async def run(names: list[str], target: Target, seconds: float) -> dict[str, Told]:
    """Let them loose until SIGTERM, or for so long; what each was told."""
    told: dict[str, Told] = {name: Counter() for name in names}
    enough = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, enough.set)
    tasks = [asyncio.create_task(NEIGHBOURS[name](target, told[name])) for name in names]
    stop = asyncio.create_task(enough.wait())
    begun = asyncio.create_task(_begun(told))
    done, _ = await asyncio.wait(
        [*tasks, stop], timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    for task in (*tasks, stop, begun):
        task.cancel()
    await asyncio.gather(*tasks, stop, begun, return_exceptions=True)
    for task in done:
        task.result()  # none of them ends by itself
    return told


async def _begun(told: dict[str, Told]) -> None:
    """Write a line once all of them have attacked."""
    while not all(any(counts[one] for one in TOLD[name]) for name, counts in told.items()):
        await asyncio.sleep(0.01)
    print("begun", flush=True)


def main() -> None:
    """Be bad, then write down what was told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(NEIGHBOURS))
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--keys", required=True, help="JSON: secrets by tenant")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument(
        "--is-idle", action="store_true", help="with the scheduling policy SCHED_IDLE"
    )
    args = parser.parse_args()
    if args.is_idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(10)
    target = Target(args.port, json.loads(args.keys), args.scale)
    json.dump(asyncio.run(run(args.names, target, args.seconds)), sys.stdout)


if __name__ == "__main__":
    main()
