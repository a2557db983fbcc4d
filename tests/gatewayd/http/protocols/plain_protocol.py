"""Plain test protocol: words in, words out, everything recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from gatewayd_hooks.parsing import Text
from gatewayd_hooks.protocols import (
    ChatAnswer,
    Gateway,
    HttpRequest,
    HttpResponse,
    RequestRefusal,
    Route,
)


class Plain:
    """``POST /plain/say``, in words; and routes that misbehave.

    Attributes:
        begun: names of what hangs, in order.
        ended: names of what ended, in order.
        pulled: pieces that ``/plain/many`` was asked for.
    """

    def __init__(self, *more: str) -> None:
        self.more = more
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.pulled = 0
        self.requests: list[HttpRequest] = []

    def open(self, resources: Any) -> None:
        """Nothing to initialize."""

    def close(self) -> None:
        """Nothing to release."""

    def routes(self, gateway: Gateway) -> Sequence[Route]:
        self.gateway = gateway
        handlers = [self.say, self.whole, self.hang, self.crash, self.crash_late, self.many]
        found = [Route("POST", f"/plain/{h.__name__}", h, "for tests") for h in handlers]
        found.append(Route("GET", "/plain/{name}/shown", self.show, "for tests"))
        return found + [Route("POST", path, self.say, "for tests") for path in self.more]

    def error(self, refusal: RequestRefusal, request_id: str) -> HttpResponse:
        words = f"sorry: {refusal.message} ({request_id})"
        return HttpResponse(words.encode(), refusal.status, "text/plain", {"x-plain": "error"})

    def late_error(self, refusal: RequestRefusal, request_id: str) -> bytes:
        return f"[{refusal.code}: {refusal.message}]".encode()

    async def show(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.params["name"].encode(), content_type="text/plain")

    async def _chat(self, request: HttpRequest, **more: Any) -> ChatAnswer:
        self.requests.append(request)
        message = {"role": "user", "content": request.body.decode()}
        body = {"model": "nano", "messages": [message], "max_tokens": 2000, **more}
        return await self.gateway.chat(body, request)

    async def say(self, request: HttpRequest) -> HttpResponse:
        answer = await self._chat(request, stream=True, verbosity="low")

        async def pieces() -> AsyncIterator[bytes]:
            try:
                async for delta in answer:
                    yield "".join(p.text for p in delta.parts if isinstance(p, Text)).encode()
            finally:
                self.ended.append("say")

        return HttpResponse(
            pieces(), content_type="text/plain", ignored=["mood"], keepalive=b"<alive>"
        )

    async def whole(self, request: HttpRequest) -> HttpResponse:
        answer = await self._chat(request)
        text = ""
        async for delta in answer:
            text += "".join(part.text for part in delta.parts if isinstance(part, Text))
        timing, usage = answer.timing, answer.usage
        answer.close()
        assert timing == answer.timing or timing.total <= answer.timing.total
        assert usage == answer.usage
        return HttpResponse(text.encode(), headers={"x-usage": ",".join(map(str, usage))})

    async def hang(self, request: HttpRequest) -> HttpResponse:
        self.begun.append("hang")
        try:
            await asyncio.sleep(60)
        finally:
            self.ended.append("hang")
        raise AssertionError("it was not interrupted")

    async def crash(self, request: HttpRequest) -> HttpResponse:
        raise ZeroDivisionError("boom")

    async def crash_late(self, request: HttpRequest) -> HttpResponse:
        answer = await self._chat(request, stream=True)

        async def pieces() -> AsyncIterator[bytes]:
            async for _ in answer:
                yield b"something"
                raise ZeroDivisionError("boom")

        return HttpResponse(pieces(), content_type="text/plain")

    async def many(self, request: HttpRequest) -> HttpResponse:
        async def pieces() -> AsyncIterator[bytes]:
            try:
                for _ in range(10_000):
                    self.pulled += 1
                    yield b"x" * 10_000
            finally:
                self.ended.append("many")

        return HttpResponse(pieces(), content_type="text/plain")
