"""Gateway on a real port, over a fake fleet."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import MappingProxyType

import httpx
import openai
import uvicorn

from gatewayd.catalogue.residency_metrics import ResidencyCollector
from gatewayd.catalogue.route import ModelRoute
from gatewayd.config.tables import Config
from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.daemon.resources import PersistentResources
from gatewayd.daemon.upstreams import UpstreamParts, compose_upstreams
from gatewayd.http.app import build_app
from gatewayd.http.server.edge_limits import EdgeLimits
from gatewayd.http.server.listener import server_config
from gatewayd.http.services import RequestLimits, Services
from gatewayd.hub.local_models import LocalModels
from gatewayd.metrics.reloads import ReloadCollector
from gatewayd.metrics.store import StoreCollector
from gatewayd.metrics.tenants import LedgerCollector
from gatewayd.plugins.parsers import ModelParsers
from gatewayd.plugins.request_observers import Observers
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.recent import RecentLatencyRecords
from gatewayd_engine.process.messages import StrategyRow
from gatewayd_hooks.detection import Detector
from gatewayd_hooks.events import RequestAdmitted, RequestFinished
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.protocols import ProtocolStrategy
from tests.gatewayd.catalogue.sleeping_fleets import Now, residency_of
from tests.gatewayd.fake_fleet import FakeFleet
from tests.gatewayd.one_model import another_target, one_model

CHAT = {"model": "nano", "messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"model": "nano", "prompt": "hi"}


class FakeControl:
    """What is known of strategies."""

    swaps = Counter({"scheduler": 1})

    def costs(self) -> list[tuple[str, StrategyRow]]:
        return [("0", StrategyRow("scheduler", "fcfs", "active", 0, 9, 0.5, 0.1))]


@dataclass
class Gateway:
    """A running gateway and what happened in it."""

    url: str
    port: int
    fleet: FakeFleet
    http: httpx.AsyncClient
    openai: openai.AsyncOpenAI
    admitted: list[RequestAdmitted]
    finished: list[RequestFinished]
    upstreams: list[UpstreamParts] = field(default_factory=list)

    async def until_finished(self, count: int = 1) -> list[RequestFinished]:
        await until(lambda: len(self.finished) >= count)
        return self.finished

    async def until_shown(self, line: str) -> None:
        """Wait until the page of metrics has a line."""
        async with asyncio.timeout(30):
            while line not in (await self.http.get("/metrics")).text:
                await asyncio.sleep(0.005)


async def until(condition: Callable[[], object], seconds: float = 30.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(
    text: TextModel,
    fleet: FakeFleet,
    *,
    edge: EdgeLimits | None = None,
    limits: RequestLimits | None = None,
    api_key: str | None = None,
    allowed_origins: tuple[str, ...] = (),
    only_local_hosts: bool = False,
    detector: Detector | None = None,
    parsers: ModelParsers | None = None,
    protocols: Sequence[tuple[str, ProtocolStrategy]] = (),
    durable: PersistentResources | None = None,
    local_models: LocalModels | None = None,
    upstreams: Mapping[str, UpstreamEntry] | None = None,
    others: Mapping[str, FakeFleet] = MappingProxyType({}),
    routes: Sequence[ModelRoute] = (),
    recent: RecentLatencyRecords | None = None,
    further: Mapping[tuple[str, ...], FakeFleet] | None = None,
    prepare: Callable[[Services], object] = lambda services: None,
) -> AsyncIterator[Gateway]:
    """Serve until the block ends; ``others`` and ``further`` are more models, by their names.

    ``prepare`` gets the services before anything is served.
    """
    admitted: list[RequestAdmitted] = []
    finished: list[RequestFinished] = []
    control = FakeControl()
    services = one_model(
        fleet,
        text,
        names=("nano", "gpt-test"),
        version="9.9",
        control=control,
        api_key=api_key,
        allowed_origins=allowed_origins,
        only_local_hosts=only_local_hosts,
        limits=limits or RequestLimits(),
        detector=lambda: detector,
        parsers=parsers or ModelParsers(),
        durable=durable,
        local_models=local_models or LocalModels(),
        protocols=protocols,
        others=others,
        routes=routes,
        recent=recent,
        observers=Observers(admitted=admitted.append, finished=finished.append),
    )
    for names, other in (further or {}).items():
        services.catalogue.add(another_target(services, other, text, names))
    prepare(services)
    metrics = services.metrics
    relayed = compose_upstreams(
        Config(upstreams=dict(upstreams or {})),
        PluginHost(Catalog.installed()),
        metrics,
        ExitStack(),
    )
    for target in [target for one in relayed for target in one.targets]:
        services.catalogue.add(target)
    if durable is not None:
        metrics.registry.register(StoreCollector(durable.room, durable.tenancy))
        metrics.registry.register(LedgerCollector(durable.tenancy.ledger))
        metrics.registry.register(ReloadCollector(Counter(applied=0, refused=0)))
        residency, _, models = residency_of({"nano": 1}, 10, clock=Now())
        residency.load(models["nano"])
        metrics.registry.register(ResidencyCollector(residency))
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    config = server_config(build_app(services), metrics.answered, edge or EdgeLimits(), loop="none")
    server = uvicorn.Server(config)
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    if durable is not None:
        await durable.start()
    await server.startup(sockets=[sock])  # without its loop, which would poll until the end
    url = f"http://127.0.0.1:{port}"
    try:
        async with (
            httpx.AsyncClient(base_url=url, timeout=60) as http,
            openai.AsyncOpenAI(
                base_url=f"{url}/v1", api_key=api_key or "none", max_retries=0, timeout=60
            ) as client,
        ):
            yield Gateway(url, port, fleet, http, client, admitted, finished, relayed)
    finally:
        for upstream in relayed:
            await upstream.fleet.stop()
        if durable is not None:
            await durable.stop()
        await stop(server, sock)


async def stop(server: uvicorn.Server, sock: socket.socket) -> None:
    """As its own ``shutdown``, which sleeps even where nothing is left to wait for."""
    state = server.server_state
    for listener in server.servers:
        listener.close()
    sock.close()
    for connection in list(state.connections):
        connection.shutdown()
    try:
        await until(lambda: not state.connections and not state.tasks, 1.0)
    except TimeoutError:
        for task in state.tasks:
            task.cancel()
