"""Fixtures: a server with known answers and delays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web


@dataclass
class FakeServer:
    """Sends ``max_tokens`` events of one letter, ``gap`` apart, after ``first`` seconds."""

    url: str = ""
    first: float = 0.0
    gap: float = 0.0
    gate: asyncio.Semaphore | None = None
    with_usage: bool = True
    tokens_per_event: int = 1
    fail_every: int = 0
    break_after: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0

    async def models(self, request: web.Request) -> web.Response:
        self.keys.append(request.headers.get("Authorization"))
        return web.json_response({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    async def tokenize(self, request: web.Request) -> web.Response:
        text = (await request.json())["prompt"]
        return web.json_response({"tokens": [ord(letter) % 1000 for letter in text]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if self.fail_every and len(self.bodies) % self.fail_every == 0:
            error = {"message": "busy", "type": "server_error", "param": None, "code": "overloaded"}
            return web.json_response({"error": error}, status=503)
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if self.gate is None:
                return await self._stream(request, body)
            async with self.gate:
                return await self._stream(request, body)
        finally:
            self.in_flight -= 1

    async def _stream(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        is_chat = "messages" in body

        async def event(payload: dict[str, Any] | str) -> None:
            text = payload if isinstance(payload, str) else json.dumps(payload)
            await response.write(f"data: {text}\n\n".encode())

        if is_chat:  # a role comes before any token and must not count as output
            await event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(self.first)
        for sent in range(0, body["max_tokens"], self.tokens_per_event):
            if sent:
                await asyncio.sleep(self.gap)
            if sent == self.break_after:
                await event({"error": {"message": "engine died", "code": "engine_restarted"}})
                return response
            text = "x" * self.tokens_per_event
            output: dict[str, Any] = {"delta": {"content": text}} if is_chat else {"text": text}
            await event({"choices": [{"index": 0, **output}]})
        if self.with_usage:
            usage = {
                "prompt_tokens": 7,
                "completion_tokens": body["max_tokens"],
                "prompt_tokens_details": {"cached_tokens": 2},
            }
            await event({"choices": [], "usage": usage})
        await event("[DONE]")
        return response


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    fake = FakeServer()
    app = web.Application()
    app.router.add_get("/v1/models", fake.models)
    app.router.add_post("/tokenize", fake.tokenize)
    app.router.add_post("/v1/completions", fake.complete)
    app.router.add_post("/v1/chat/completions", fake.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    fake.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield fake
    await runner.cleanup()
