"""Fixtures: an echoing chat server that answers in pieces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web


@dataclass
class EchoServer:
    """Says ``you said: <last message>`` one character at a time."""

    url: str = ""
    gap: float = 0.0
    context: int = 10_000
    key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)

    def refusal(self, request: web.Request) -> web.Response | None:
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            error = {"message": "no key", "code": "invalid_api_key"}
            return web.json_response({"error": error}, status=401)
        return None

    async def models(self, request: web.Request) -> web.Response:
        listed = {"data": [{"id": "echo"}, {"id": "other"}]}
        return self.refusal(request) or web.json_response(listed)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        if refusal := self.refusal(request):
            return refusal
        size = sum(len(message["content"]) for message in body["messages"])
        if size > self.context:
            error = {"message": f"{size} > {self.context}", "code": "context_length_exceeded"}
            return web.json_response({"error": error}, status=400)
        response = web.StreamResponse()
        await response.prepare(request)
        answer = f"you said: {body['messages'][-1]['content']}"[: body.get("max_tokens")]
        chunks: list[dict[str, Any]] = [{"delta": {"content": letter}} for letter in answer]
        chunks.append({"delta": {}, "finish_reason": "stop"})
        for chunk in chunks:
            await response.write(f"data: {json.dumps({'choices': [chunk]})}\n\n".encode())
            await asyncio.sleep(self.gap)
        usage = {"prompt_tokens": size, "completion_tokens": len(answer)}
        await response.write(f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[EchoServer]:
    echo = EchoServer()
    app = web.Application()
    app.router.add_get("/v1/models", echo.models)
    app.router.add_post("/v1/chat/completions", echo.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    echo.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield echo
    await runner.cleanup()
