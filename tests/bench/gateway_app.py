"""Servers compared by ``gateway_cost``, all on uvicorn, uvloop and httptools.

``gatewayd``: the whole HTTP side as the daemon serves it, its edge included, on a fleet that makes
a token for every sequence at each turn of the event loop, as if a frame came from an engine that
takes no time. ``tenant``: the same for a tenant with a key, limits and a budget, whose usage goes
to a store; the key is written to standard output. ``bare``: an ASGI app that reads the body, parses
its JSON and sends answers of the same shape in as many pieces; it checks nothing, counts nothing
and knows no model.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import uvicorn
import uvloop

from gatewayd.config.tables import Config
from gatewayd.daemon.resources import PersistentResources
from gatewayd.engines.api import EngineRequest, ReplicaState, ReplicaStatus, TokenSink
from gatewayd.engines.prompt_usage import PromptUsage
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.http.app import build_app
from gatewayd.http.asgi import Receive, Scope, Send
from gatewayd.http.server.listener import server_config
from gatewayd.http.services import Services
from gatewayd.runtime import garbage_collector
from gatewayd.tenants.actions import action_of, body_of
from gatewayd.text.text_model import TextModel
from gatewayd_engine.model.embedded import folder
from gatewayd_engine.process import huge_pages
from gatewayd_engine.process.messages import ModelInfo
from tests.gatewayd.one_model import one_model

FIRST_TOKEN, NUM_TOKENS = 300, 3000
MODEL = ModelInfo("Fake", 1, "float32", "cpu", 4096, 2048, [0], 4096, 16, 256, 2048)

# Answers as ours are; only their sizes matter.
_SAME = b'"id":"chatcmpl-0123456789abcdef01234567","created":1700000000,"model":"nano"'
_EVENT = b'data: {"object":"chat.completion.chunk",' + _SAME + b',"choices":[{"index":0,"delta":'
ROLE = _EVENT + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
CHUNK = _EVENT + b'{"content":" return"},"logprobs":null,"finish_reason":null}]}\n\n'
END = _EVENT + b'{},"logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
DONE = b"data: [DONE]\n\n"
ANSWER = (
    b'{"object":"chat.completion",' + _SAME + b',"choices":[{"index":0,"message":'
    b'{"role":"assistant","content":" return","refusal":null},"logprobs":null,'
    b'"finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":16,'
    b'"completion_tokens":1,"total_tokens":17,"prompt_tokens_details":{"cached_tokens":0}}}'
)


@dataclass(slots=True, eq=False)  # a list of them is searched at each end
class Running:
    """One choice, its tokens so far and how many it gets."""

    sink: TokenSink
    limit: int
    made: int = 0


class FreeHandle:
    """A submitted request of the fake fleet."""

    replica = 0
    timelines = ()

    def __init__(self, fleet: FreeFleet, mine: Sequence[Running]) -> None:
        self._fleet = fleet
        self._mine = mine

    def on_usage_final(self, tell: Callable[[PromptUsage], None]) -> None:
        """It took nothing."""
        tell(self.usage)

    @property
    def usage(self) -> PromptUsage:
        """The same."""
        return PromptUsage(generated=(0,) * len(self._mine))

    def cancel(self, choice: int | None = None) -> None:
        """Stop one choice, or all."""
        for index, running in enumerate(self._mine):
            if choice in (None, index):
                self._fleet.forget(running)


class FreeFleet:
    """Implements ``api.Fleet`` without engines."""

    model: ModelInfo | None = MODEL
    is_ready = True
    condition = "ready"
    load_seconds = 0.0
    num_pending = 0
    room = QueueCapacity(2048, 2048, 4_000_000, 4_000_000, 0.0)

    def __init__(self) -> None:
        self._running: list[Running] = []
        self._is_ticking = False
        self._loop: asyncio.AbstractEventLoop | None = None

    async def wait_model(self) -> None:
        """It is there."""

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> FreeHandle:
        """Run a request from the next turn on."""
        mine = [Running(sink, request.params.max_tokens) for sink in sinks]
        for running in mine:
            running.sink.admitted(0, 0.0)
            running.sink.computed(len(request.prompt))
        self._running += mine
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        if not self._is_ticking:
            self._is_ticking = True
            self._loop.call_soon(self._tick)
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
        if self._loop is not None and self._is_ticking:
            # After the writers that these tokens woke: one chunk for each token.
            self._loop.call_soon(self._tick)

    def status(self) -> Sequence[ReplicaStatus]:
        """One replica that is always ready."""
        return [ReplicaStatus(0, ReplicaState.READY, None, 0.0, 0, "", MODEL)]

    async def refresh_stats(self) -> None:
        """There is nobody to ask."""


async def bare(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, send an answer."""
    body, more = b"", True
    while more:
        message = await receive()
        body += message["body"]
        more = message["more_body"]
    asked: dict[str, Any] = msgspec.json.decode(body) if body else {}
    if not asked.get("stream"):
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(ANSWER)),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": ANSWER})
        return
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ROLE + CHUNK, "more_body": True})
    for _ in range(asked["max_tokens"] - 2):
        await asyncio.sleep(0)  # others get their turn after each chunk, as from frames
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
    await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": CHUNK + END + DONE})


def services(durable: PersistentResources | None = None) -> Services:
    """What the daemon's app is given, with the fake fleet."""
    fleet = FreeFleet()
    text = TextModel.from_folder(folder())
    return one_model(
        fleet, text, version="bench", max_model_len=MODEL.max_model_len, durable=durable
    )


TERMS = {
    "requests_per_minute": 10_000_000,
    "tokens_per_minute": 10**9,
    "concurrency": 1000,
    "most_tokens": 10**12,
}
"""Limits and a budget that are counted and never reached."""


async def serve_tenant(port: int) -> None:
    """The gateway with a store in a folder that goes with the process, and one tenant."""
    with TemporaryDirectory() as folder:
        durable = PersistentResources(Config(store={"path": folder}))  # type: ignore[arg-type]
        try:
            ours = services(durable)
            app = build_app(ours)
            await durable.start()
            for path, body in (
                ("/admin/tenants", {"tenant": "bench", "terms": TERMS}),
                ("/admin/keys", {"tenant": "bench"}),
            ):
                action, params = action_of("POST", path)
                made = await durable.tenancy.act(action, params, body_of(action, body), "bench")
            print("key", made["secret"], flush=True)
            garbage_collector.freeze_heap()
            huge_pages.use_huge_pages()
            await uvicorn.Server(server_config(app, ours.metrics.answered, port=port)).serve()
            await durable.stop()
        finally:
            durable.close()


def config(which: str, **options: Any) -> uvicorn.Config:
    """How each of the others is served."""
    if which == "gatewayd":
        ours = services()
        return server_config(build_app(ours), ours.metrics.answered, loop="uvloop", **options)
    return uvicorn.Config(
        bare,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        access_log=False,
        log_config=None,
        **options,
    )


def main() -> None:
    """Serve one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("which", choices=["gatewayd", "tenant", "bare"])
    parser.add_argument("--port", type=int, required=True)
    args = parser.parse_args()
    if args.which == "tenant":
        uvloop.run(serve_tenant(args.port))
        return
    server = uvicorn.Server(config(args.which, port=args.port))
    garbage_collector.freeze_heap()
    huge_pages.use_huge_pages()
    server.run()


if __name__ == "__main__":
    main()
