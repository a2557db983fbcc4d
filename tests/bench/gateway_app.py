"""The two servers that ``gateway_cost`` compares, both on uvicorn with the same settings.

``gatewayd``: the whole HTTP side, on a fleet that makes a token for every sequence at each turn
of the event loop, as if a frame came from an engine that takes no time. ``bare``: an ASGI app
that writes as many chunks of the same size and does nothing else.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import uvicorn

from gatewayd.engines.seam import EngineRequest, ReplicaState, ReplicaStatus, TokenSink
from gatewayd.http.app import build_app
from gatewayd.http.asgi import App, Receive, Scope, Send
from gatewayd.http.services import Services
from gatewayd.metrics import Metrics
from gatewayd.text.model import TextModel
from gatewayd_engine.embedded import folder
from gatewayd_engine.messages import ModelInfo

FIRST_TOKEN, NUM_TOKENS = 300, 3000
MODEL = ModelInfo("Fake", 1, "float32", "cpu", 4096, 2048, [0], 4096, 16, 256, 2048)

# A chunk as ours are; only its size matters.
CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,'
    b'"model":"nano","choices":[{"index":0,"text":" return","logprobs":null,'
    b'"finish_reason":null}],"usage":null}\n\n'
)
ANSWER = (
    b'{"id":"cmpl-0123456789abcdef","object":"text_completion","created":1700000000,'
    b'"model":"nano","choices":[{"index":0,"text":" return","logprobs":null,'
    b'"finish_reason":"length"}],"usage":{"prompt_tokens":16,"completion_tokens":1,'
    b'"total_tokens":17,"prompt_tokens_details":{"cached_tokens":0}}}'
)


@dataclass(slots=True)
class Running:
    """One choice, its tokens so far and how many it gets."""

    sink: TokenSink
    limit: int
    made: int = 0


class FreeHandle:
    """A submitted request of the fake fleet."""

    def __init__(self, fleet: FreeFleet, mine: Sequence[Running]) -> None:
        self._fleet = fleet
        self._mine = mine

    def cancel(self, choice: int | None = None) -> None:
        """Stop one choice, or all."""
        for index, running in enumerate(self._mine):
            if choice in (None, index):
                self._fleet.forget(running)


class FreeFleet:
    """Implements ``seam.Fleet`` without engines."""

    model: ModelInfo | None = MODEL
    is_ready = True

    def __init__(self) -> None:
        self._running: list[Running] = []
        self._is_ticking = False

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> FreeHandle:
        """Run a request from the next turn on."""
        mine = [Running(sink, request.params.max_tokens) for sink in sinks]
        for running in mine:
            running.sink.admitted(0, 0.0)
        self._running += mine
        if not self._is_ticking:
            self._is_ticking = True
            asyncio.get_running_loop().call_soon(self._tick)
        return FreeHandle(self, mine)

    def forget(self, running: Running) -> None:
        """Stop a choice; may be repeated."""
        if running in self._running:
            self._running.remove(running)

    def _tick(self) -> None:
        for running in tuple(self._running):
            token = FIRST_TOKEN + running.made * 7 % NUM_TOKENS
            running.made += 1
            running.sink.tokens((token,), None)
            if running.made >= running.limit:
                self.forget(running)
                running.sink.finished("length", None)
        self._is_ticking = bool(self._running)
        if self._is_ticking:
            # After the writers that these tokens woke: one chunk for each token.
            asyncio.get_running_loop().call_soon(self._tick)

    def status(self) -> Sequence[ReplicaStatus]:
        """One replica that is always ready."""
        return [ReplicaStatus(0, ReplicaState.READY, None, 0.0, 0, "", MODEL)]


class _Asked(msgspec.Struct):
    max_tokens: int
    stream: bool = False


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, write chunks."""
    if scope["type"] != "http":
        return
    body = b""
    while (message := await receive())["type"] == "http.request":
        body += message["body"]
        if not message["more_body"]:
            break
    asked = msgspec.json.decode(body, type=_Asked) if body else _Asked(0)
    kind = b"text/event-stream" if asked.stream else b"application/json"
    headers = [(b"content-type", kind)]
    if not asked.stream:
        headers.append((b"content-length", str(len(ANSWER)).encode()))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for _ in range(asked.max_tokens):
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await asyncio.sleep(0)  # others get their turn after each chunk, as from frames
    await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def gateway() -> App:
    """The daemon's app on the fake fleet."""
    fleet = FreeFleet()
    metrics = Metrics(fleet, "nano", version="bench", max_model_len=MODEL.max_model_len)
    return build_app(
        Services(
            fleet=fleet,
            text=TextModel.from_folder(folder()),
            models=("nano",),
            metrics=metrics,
            version="bench",
        )
    )


def main() -> None:
    """Serve one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["gatewayd", "bare"])
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    uvicorn.run(
        bare if args.which == "bare" else gateway(),
        port=args.port,
        log_level="warning",
        access_log=False,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        server_header=False,
        date_header=False,
    )


if __name__ == "__main__":
    main()
