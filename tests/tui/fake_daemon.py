"""Fake admin socket: streams what tests give it and records calls."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import msgspec
import uvicorn

from gatewayd.wire.snapshot import Snapshot
from tests.tui.samples import ended, explanation, snapshot


class FakeDaemon:
    """See above.

    Attributes:
        path: of the socket.
        snapshot: that is streamed, once; then the next when a test gives another.
        raw: is streamed instead, if it is not None.
        of_models: are streamed to those who name the model; nothing is for one that is missing.
        calls: method, route and body of each but the stream.
        raw_paths: of the calls, as they came.
        answers: status and body by method and route; else 200 and ``{}``.
        prefixed: the same, by how routes begin.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.reset()

    def reset(self) -> None:
        """As it was in the beginning."""
        self.snapshot: Snapshot = snapshot()
        self.raw: bytes | None = None
        self.of_models: dict[str, Snapshot] = {}
        self.calls: list[tuple[str, str, Any]] = []
        self.answers: dict[tuple[str, str], tuple[int, Any]] = {
            ("GET", f"/admin/requests?order={order}&limit=50"): (200, {"requests": ended(order)})
            for order in ("newest", "slowest")
        }
        for row in ended("newest"):
            answer = 200, explanation(row["id"])
            self.answers["GET", f"/admin/requests/{row['id']}"] = answer
        for number in range(5):
            error = {"error": {"message": "no such request has ended"}}
            self.answers["GET", f"/admin/requests/run-{number:04}"] = 404, error
            self.answers["GET", f"/admin/requests/wait-{number:04}"] = 404, error
        self.prefixed: dict[tuple[str, str], tuple[int, Any]] = {}
        self.raw_paths: list[str] = []
        self.intervals: list[str] = []
        self.cut = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        query = scope["query_string"].decode()
        path = scope["raw_path"].decode()
        if path == "/admin/stream":
            await self._stream(query, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        route = f"{unquote(path)}?{query}" if query else unquote(path)
        self.raw_paths.append(path)
        self.calls.append((scope["method"], route, msgspec.json.decode(body) if body else None))
        status, answer = self._answer(scope["method"], route)
        head = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": msgspec.json.encode(answer)})

    def _answer(self, method: str, route: str) -> tuple[int, Any]:
        for (asked, begin), answer in self.prefixed.items():
            if method == asked and route.startswith(begin):
                return answer
        return self.answers.get((method, route), (200, {}))

    async def _stream(self, query: str, send: Any) -> None:
        self.intervals.append(query)
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        sent: object = None
        model = dict(parse_qsl(query)).get("model")
        while not self.cut:
            shown = self.snapshot if model is None else self.of_models.get(model)
            now = self.raw or shown
            if now is not sent and now is not None:
                sent = now
                line = b"data: " + (self.raw or msgspec.json.encode(shown)) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
            await asyncio.sleep(0.005)
        await send({"type": "http.response.body", "body": b""})


@contextlib.contextmanager
def serving(path: Path) -> Iterator[FakeDaemon]:
    """A fake daemon on a real unix socket, in a thread of its own."""
    fake = FakeDaemon(str(path))
    server = uvicorn.Server(
        uvicorn.Config(
            fake,
            uds=str(path),
            lifespan="off",
            log_config=None,
            ws="none",
            timeout_graceful_shutdown=0,
        )
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    try:
        yield fake
    finally:
        fake.cut = True
        server.should_exit = True
        thread.join(30)
