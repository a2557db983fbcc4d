"""Scripted completions server that records its requests.

A token is a character; special tokens lie beyond Unicode. Its chat template frames turns, and can
be told to leave old thoughts out of earlier turns, as real ones do.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

BEGIN, TURN, END = 0x110000, 0x110001, 0x110002
_SPECIAL = {"<BEGIN>": BEGIN, "<TURN>": TURN, "<END>": END}

Body = dict[str, Any]


class Refused(Exception):
    """Answered with an error object."""

    def __init__(self, status: int, message: str, param: str | None = None, **headers: str) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.headers = status, message, param, headers

    @property
    def body(self) -> str:
        error = {"message": self.message, "param": self.param, "code": "refused"}
        return json.dumps({"error": error})


def shown(ids: list[int]) -> str:
    """Ids as text, special tokens by name."""
    names = {number: name for name, number in _SPECIAL.items()}
    return "".join(names.get(number) or chr(number) for number in ids)


def encoded(text: str) -> list[int]:
    parts = re.split("(<BEGIN>|<TURN>|<END>)", text)
    return [n for part in parts for n in ([_SPECIAL[part]] if part in _SPECIAL else map(ord, part))]


class FakeServer:
    """One on a free port, in a thread.

    Attributes:
        reply: what is generated for a request, from its prompt as text; may raise ``Refused``.
        asked: bodies of completions, in order of arrival.
        forgets: whether the template leaves thoughts in brackets out of earlier turns, and
            shows that there were none in the last one.
        needs_user: whether the template refuses a conversation of a system message alone.
        step: awaited before each token.
    """

    def __init__(self) -> None:
        self.reply: Callable[[str, Body], str] = lambda prompt, body: "ok"
        self.asked: list[Body] = []
        self.forgets = self.needs_user = False
        self.step: Callable[[Body, int], Awaitable[None]] | None = None
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def prompts(self) -> list[str]:
        return [shown(body["prompt"]) for body in self.asked]

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    def stop(self) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._stop(self._runner), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @staticmethod
    async def _stop(runner: web.AppRunner) -> None:
        # A client that gave up may be about to be accepted, which asyncio cannot do any more once
        # it has stopped to listen.
        await asyncio.sleep(0.02)
        await runner.cleanup()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports are closed in the next turns of the loop

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_post("/detokenize", self._detokenize)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _models(self, request: web.Request) -> web.Response:
        self.headers.append(dict(request.headers))
        return web.json_response({"data": [{"id": "fake"}]})

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "prompt" in body:
            ids = [BEGIN] * body["add_special_tokens"] + [ord(char) for char in body["prompt"]]
            return web.json_response({"tokens": ids})
        messages = body["messages"]
        if self.needs_user and [m["role"] for m in messages] == ["system"]:
            return _refusal(Refused(400, "a user must speak first", "messages"))
        text = "<BEGIN>"
        for at, message in enumerate(messages):
            content = message["content"]
            if self.forgets and at < len(messages) - 1:
                content = re.sub(r"\[.*?\]", "", content)
            elif self.forgets and message["role"] == "assistant":
                content = f"[]{content}"
            text += f"<TURN>{message['role']}\n{content}<END>\n"
        text += "<TURN>assistant\n" * body["add_generation_prompt"]
        return web.json_response({"tokens": encoded(text)})

    async def _detokenize(self, request: web.Request) -> web.Response:
        return web.json_response({"prompt": shown((await request.json())["tokens"])})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        try:
            text = self.reply(shown(body["prompt"]), body)
        except Refused as refused:
            return _refusal(refused)
        ids, reason, stopped = self._cut(text, body)
        text, usage = text[: len(ids)] if stopped is None else text.split(stopped)[0], _usage(ids)
        last = {"finish_reason": reason, "stop_reason": stopped}
        if not body.get("stream"):
            for at in range(len(ids)):
                await self._pace(body, at)
            choice = {"index": 0, "text": text, "token_ids": ids, **last}
            return web.json_response({"choices": [choice], "usage": usage})
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for at, token in enumerate(ids):
            await self._pace(body, at)
            piece = {"index": 0, "text": text[at : at + 1], "token_ids": [token]}
            await _event(response, {"choices": [{**piece, "finish_reason": None}]})
        await _event(response, {"choices": [{"index": 0, "text": "", "token_ids": [], **last}]})
        await _event(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _pace(self, body: Body, at: int) -> None:
        if self.step is not None:
            await self.step(body, at)

    def _cut(self, text: str, body: Body) -> tuple[list[int], str, str | None]:
        """Ids that are told, with those of a stop string, as the daemon does."""
        for stop in body.get("stop", ()):
            at = text.find(stop)
            if 0 <= at <= body["max_tokens"]:
                return [ord(char) for char in text[: at + len(stop)]], "stop", stop
        ids = [ord(char) for char in text[: body["max_tokens"]]]
        return ids, "length" if len(text) > body["max_tokens"] else "stop", None


def _usage(ids: list[int]) -> Body:
    return {
        "prompt_tokens": 7,
        "completion_tokens": len(ids),
        "prompt_tokens_details": {"cached_tokens": 3},
    }


async def _event(response: web.StreamResponse, event: Body) -> None:
    await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")


def _refusal(refused: Refused) -> web.Response:
    return web.Response(
        status=refused.status,
        text=refused.body,
        headers={"content-type": "application/json", **refused.headers},
    )
