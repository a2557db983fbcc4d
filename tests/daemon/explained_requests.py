"""In-process gateway over a real engine, with requests timed around their ASGI call.

Two plugins make things slow when they are told to: a scheduler, while a file exists, and a guide,
by a word in the grammar.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gatewayd.config.load import load
from gatewayd.engines.fleet import EngineFleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.engines.replicas import launch
from gatewayd.engines.replicas.setup import Launch
from gatewayd.http.app import build_app
from gatewayd.http.asgi import App
from gatewayd.plugins.loaded import LoadedPlugins
from gatewayd.plugins.request_observers import Observers
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.latency_record import LatencyRecord
from gatewayd.tracing.recent import RecentLatencyRecords
from tests.gatewayd.one_model import one_model

PLUGIN = """
import os
import time
from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyConfig, StrategyInfo
from gatewayd_sched_fcfs.config import FcfsConfig


class Settings(StrategyConfig):
    pass


def scheduler(config):
    from gatewayd_sched_fcfs.strategy import Fcfs

    class Slow(Fcfs):
        def plan(self, view):
            if os.path.exists(FLAG):
                time.sleep(0.08)
            return super().plan(view)

    return Slow(FcfsConfig())


def guide(config):
    from gatewayd_guide_llguidance.strategy import Llguidance

    class Slow(Llguidance):
        def compile(self, spec):
            if "slow" in spec.text:
                time.sleep(0.6)
            return super().compile(spec)

    return Slow(LlguidanceConfig())


@hookimpl
def gatewayd_schedulers():
    return [StrategyInfo("slow", Settings, scheduler, "Sleeps while it is told to.")]


@hookimpl
def gatewayd_guides():
    return [StrategyInfo("slow", Settings, guide, "Sleeps when a grammar says so.")]
"""


@dataclass
class Asked:
    """A request that is over.

    Attributes:
        id: its ``x-request-id``.
        seconds: from before the call of the app to behind it.
        status: of its answer; None if there was none.
    """

    id: str
    seconds: float
    status: int | None


@dataclass
class Subject:
    """What is asked.

    Attributes:
        app: the gateway.
        recent: what it has kept of requests.
        flag: a file; while it exists the scheduler is slow.
        observe: called for each request that is sent to the engine.
    """

    app: App
    recent: RecentLatencyRecords
    flag: Path
    observe: Callable[[], None] = lambda: None
    count: int = 0

    async def ask(
        self,
        body: dict[str, Any],
        *,
        reads: Callable[[int], Awaitable[None]] | None = None,
        leaves_after: float | None = None,
    ) -> Asked:
        """One chat.

        Args:
            body: of the request, but for the model.
            reads: what the client does before it takes each message of the answer.
            leaves_after: seconds until its connection ends.
        """
        self.count += 1
        name, content = f"r{self.count}", json.dumps({"model": "nano", **body}).encode()
        messages = [{"type": "http.request", "body": content}]
        gone, sent, status = asyncio.Event(), 0, None

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal sent, status
            status = message.get("status", status)
            if reads is not None:
                await reads(sent)
            sent += 1

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/chat/completions",
            "query_string": b"",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", b"application/json"),
                (b"x-request-id", name.encode()),
            ],
            "client": ("127.0.0.1", 1),
        }
        if leaves_after is not None:
            asyncio.get_running_loop().call_later(leaves_after, gone.set)

        async def timed() -> float:
            began = time.monotonic()
            await self.app(scope, receive, send)
            return time.monotonic() - began

        # A task of its own, as a server would make it.
        seconds = await asyncio.create_task(timed())
        return Asked(name, seconds, status)

    def latency_record(self, asked: Asked) -> LatencyRecord:
        """What was kept of it."""
        found = self.recent.find(asked.id)
        assert found is not None, asked
        return found


def install(folder: Path) -> Path:
    """Write the plugins into a folder that this process and its children import from."""
    flag = folder / "slow-now"
    (folder / "explain_plugin.py").write_text(PLUGIN.replace("FLAG", repr(str(flag))))
    info = folder / "explain_plugin-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: explain-plugin\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[gatewayd]\nscheduler.slow = explain_plugin\nguide.slow = explain_plugin\n"
    )
    return flag


@asynccontextmanager
async def serving(folder: Path, **settings: object) -> AsyncIterator[Subject]:
    """Serve the embedded model; settings override those of the configuration, with dots."""
    flag = install(folder)
    sys.path.insert(0, str(folder))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *filter(None, [before])])
    flags = {
        "scheduler.strategy": "slow",
        "guide.strategy": "slow",
        "engine.threads": 1,
        "engine.max_running": 8,
        "engine.kv_pages": 64,
        "model.max_model_len": 960,
        "engine.max_batch_tokens": 512,
        "queue.max_waiting_requests": 100_000,
        **settings,
    }
    config = load(None, flags, environ={}).config
    text = TextModel.from_folder(launch.model_folder(config))
    template = text.template.source if text.template else ""
    plugged = LoadedPlugins.load(config, model="nano", chat_template=template)
    fleet = EngineFleet(
        Launch(
            executor=plugged.executor,
            command=tuple(launch.ENGINE_COMMAND),
            env=launch.environment(config),
            config=launch.engine_config(config),
            patience=launch.silence_limits(config),
        ),
        plugged.router,
        launch.queue_limits(config),
    )
    recent = RecentLatencyRecords(20_000)
    guides = GuideChecks(lambda: config.guide, str(launch.model_folder(config)), fleet)
    subject = Subject(lambda *_: asyncio.sleep(0), recent, flag)
    subject.app = build_app(
        one_model(
            fleet,
            text,
            recent=recent,
            guides=guides,
            parsers=plugged.parsers,
            observers=Observers(admitted=lambda _: subject.observe()),
        )
    )
    fleet.start()
    try:
        await asyncio.wait_for(fleet.wait_ready(), 120)
        yield subject
    finally:
        await guides.close()
        await fleet.stop()
        plugged.close()
        sys.path.remove(str(folder))
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
