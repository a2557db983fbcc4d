"""What the HTTP path costs, beside a bare raw-ASGI app under uvicorn in the same run.

``pytest -m bench -s tests/gatewayd/http/test_cost.py`` prints requests/s and chunks/s of both.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
import uvicorn
import uvloop

from gatewayd.engines.seam import EngineRequest, ReplicaStatus, TokenSink
from gatewayd.http.app import build_app
from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.edge import server_config
from gatewayd.http.services import Services
from gatewayd.metrics import Metrics
from gatewayd.text.model import TextModel
from tests.gatewayd.fake_fleet import model_info

NUM_TOKENS = 128
TOKEN = 1000
"""A word of the vocabulary; low ids are bare bytes."""
CLIENTS = 16
SECONDS = 4.0
CHUNK = b'data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1,"model":"nano","choices":[{"index":0,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}]}\n\n'  # noqa: E501 - a sample
WHOLE = b'{"id":"x","object":"chat.completion","choices":[{"index":0,"message":{"content":"x"}}]}'


class Job:
    def __init__(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> None:
        self.sinks = sinks
        self.left = request.params.max_tokens
        self.is_cancelled = False

    def cancel(self, choice: int | None = None) -> None:
        self.is_cancelled = True


class FreeFleet:
    """An engine whose steps cost nothing: every sequence gets a token as fast as the loop turns."""

    model = model_info()
    is_ready = True

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def status(self) -> Sequence[ReplicaStatus]:
        return []

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> Job:
        if not self.jobs:
            asyncio.get_running_loop().call_soon(self.step)
        job = Job(request, sinks)
        self.jobs.append(job)
        return job

    def step(self) -> None:
        for job in self.jobs:
            job.left -= 1
            for sink in () if job.is_cancelled else job.sinks:
                sink.tokens((TOKEN,), None)
                if job.left == 0:
                    sink.finished("length", None)
        self.jobs = [job for job in self.jobs if job.left and not job.is_cancelled]
        if self.jobs:
            asyncio.get_running_loop().call_soon(self.step)


async def bare_app(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    headers = [(b"content-type", b"application/json")]
    if b'"stream": true' not in body:
        headers.append((b"content-length", str(len(WHOLE)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": WHOLE})
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(NUM_TOKENS):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def serve_bare(sock: socket.socket, folder: Path) -> None:
    options: dict[str, Any] = {"access_log": False, "log_config": None, "proxy_headers": False}
    uvicorn.Server(uvicorn.Config(bare_app, lifespan="off", ws="none", **options)).run([sock])


def serve_ours(sock: socket.socket, folder: Path) -> None:
    fleet = FreeFleet()
    services = Services(
        fleet=fleet,
        text=TextModel.from_folder(folder),
        models=("nano",),
        metrics=Metrics(fleet, "nano", version="1", max_model_len=2048),
        version="1",
    )
    uvicorn.Server(server_config(build_app(services))).run([sock])


class Rates(NamedTuple):
    requests: float
    chunks: float


class Client(asyncio.Protocol):
    """Sends the same request again and again, cheaply: the server is what is measured."""

    def __init__(self, request: bytes, end: float) -> None:
        self.request = request
        self.end = end
        self.answers = self.chunks = 0
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.chunks += data.count(b"data: ")
        # The end of a chunked body, or a small body in the same segment as its headers or after.
        if data.endswith((b"0\r\n\r\n", b"}")):
            self.answers += 1
            if time.perf_counter() < self.end:
                self.transport.write(self.request)
            else:
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.done.set_result(None)


async def load(port: int, *, is_stream: bool) -> Rates:
    body = {
        "model": "nano",
        "messages": [{"role": "user", "content": "What does os.path.join do?"}],
        "max_tokens": NUM_TOKENS if is_stream else 1,
        "stream": is_stream,
    }
    content = json.dumps(body).encode()
    request = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (len(content), content)
    )
    began = time.perf_counter()
    clients = [Client(request, began + SECONDS) for _ in range(CLIENTS)]
    loop = asyncio.get_running_loop()
    waiting = iter(clients)
    for _ in clients:
        await loop.create_connection(lambda: next(waiting), "127.0.0.1", port)
    await asyncio.gather(*(client.done for client in clients))
    seconds = time.perf_counter() - began
    return Rates(
        sum(client.answers for client in clients) / seconds,
        sum(client.chunks for client in clients) / seconds,
    )


def measure(serve: Callable[[socket.socket, Path], None], folder: Path) -> tuple[Rates, Rates]:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        process = multiprocessing.get_context("fork").Process(target=serve, args=(sock, folder))
        process.start()
        try:
            time.sleep(2)
            return (
                uvloop.run(load(port, is_stream=False)),
                uvloop.run(load(port, is_stream=True)),
            )
        finally:
            process.terminate()
            process.join()


@pytest.mark.bench
def test_the_http_path_beside_a_bare_app(nano: Path) -> None:
    bare_whole, bare_stream = measure(serve_bare, nano)
    whole, stream = measure(serve_ours, nano)
    print(f"\nrequests/s: {whole.requests:.0f} of {bare_whole.requests:.0f} bare")
    print(f"chunks/s: {stream.chunks:.0f} of {bare_stream.chunks:.0f} bare")
    assert stream.chunks > bare_stream.chunks / 2
    # A whole request of one token also pays for its template, its tokens and its checks: about
    # what the bare app's whole turn costs, each. The floor guards against losing more.
    assert whole.requests > bare_whole.requests / 10
