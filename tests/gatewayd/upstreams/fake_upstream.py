"""Upstream on a real port whose answers, and faults, a test scripts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from gatewayd.config.upstreams import UpstreamEntry

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
WORDS = ("Hello", " there", ".")
USAGE = {
    "prompt_tokens": 11,
    "completion_tokens": 3,
    "prompt_tokens_details": {"cached_tokens": 4},
}


@dataclass
class FakeUpstream:
    """A running upstream.

    Attributes:
        answers: one for each request, the last one for all further ones.
        bodies: of the requests so far.
        headers: of the same.
        charged: tokens of the answers that it sent to their end, prompt and completion.
        num_gone: requests whose client left before the end.
        is_healthy: whether probes succeed.
    """

    url: str
    answers: list[Answer]
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    charged: tuple[int, int] = (0, 0)
    num_gone: int = 0
    num_probes: int = 0
    is_healthy: bool = True

    def entry(self, **fields: Any) -> UpstreamEntry:
        if "urls" not in fields:
            fields["url"] = self.url
        usual = {"models": {"far": "theirs"}, "first_token_seconds": 0.6}
        return UpstreamEntry(**{**usual, "between_tokens_seconds": 0.4, **fields})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        answer = self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)
        try:
            response = await answer(request)
        except asyncio.CancelledError:
            self.num_gone += 1
            raise
        if answer is says:
            prompt, completion = self.charged
            self.charged = (
                prompt + USAGE["prompt_tokens"],  # type: ignore[operator]
                completion + USAGE["completion_tokens"],  # type: ignore[operator]
            )
        return response

    async def probe(self, request: web.Request) -> web.Response:
        self.num_probes += 1
        return web.json_response({"data": []}, status=200 if self.is_healthy else 503)


@asynccontextmanager
async def fake_upstream(*answers: Answer) -> AsyncIterator[FakeUpstream]:
    app = web.Application(client_max_size=64 << 20)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    found = FakeUpstream("", list(answers))
    app.router.add_post("/v1/chat/completions", found.handle)
    app.router.add_post("/v1/completions", found.handle)
    app.router.add_post("/v1/messages", found.handle)
    app.router.add_post("/v1/embeddings", found.handle)
    app.router.add_get("/v1/models", found.probe)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield found
    finally:
        await runner.cleanup()


def chunk(text: str | None = None, reason: str | None = None, **fields: Any) -> bytes:
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return event({"id": "x", "choices": [choice], **fields})


def event(value: object) -> bytes:
    return b"data: %b\n\n" % json.dumps(value).encode()


async def stream(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


async def says(request: web.Request) -> web.StreamResponse:
    """A whole answer of three tokens."""
    response = await stream(request)
    for word in WORDS:
        await response.write(chunk(word))
    await response.write(chunk(reason="stop"))
    await response.write(event({"choices": [], "usage": USAGE}))
    await response.write(b"data: [DONE]\n\n")
    return response


def refuses(status: int, body: object = None, **headers: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        error = {"error": {"message": "a reason"}} if body is None else body
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        if isinstance(error, bytes):
            return web.Response(status=status, body=error, headers=names)
        return web.json_response(error, status=status, headers=names)

    return answer


def sends(*pieces: bytes, ends: str = "well") -> Answer:
    """Pieces of a stream, which then ends ``well``, is ``cut`` or ``hangs``."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = await stream(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(0.05)  # otherwise the gateway has begun no answer yet
        if ends == "hangs":
            await asyncio.sleep(60)
        if ends == "cut":
            cut(request)
            await asyncio.sleep(60)
        return response

    return answer


def cut(request: web.Request) -> None:
    assert request.transport is not None
    request.transport.abort()


async def hangs(request: web.Request) -> web.StreamResponse:
    """Not even headers."""
    await asyncio.sleep(60)
    raise AssertionError


async def leaves(request: web.Request) -> web.StreamResponse:
    """The connection is cut before an answer."""
    cut(request)
    await asyncio.sleep(60)
    raise AssertionError


async def trickles(request: web.Request) -> web.StreamResponse:
    """Comments and empty events, and no token."""
    response = await stream(request)
    while True:
        await response.write(b": still here\n\n" + chunk(""))
        await asyncio.sleep(0.05)
