"""What the HTTP side is given: the engines, the text side, names, limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from starlette.routing import Route

from gatewayd.engines.api import Fleet
from gatewayd.engines.grammar_checks.checks import GuideChecks
from gatewayd.errors import (
    EngineUnavailable,
    InvalidRequest,
    ModelNotFound,
    NotAdmitted,
    QueueFull,
    StrategyUnavailable,
)
from gatewayd.fairness.fair_queue import QueueStats, current_tenant
from gatewayd.http.asgi import App
from gatewayd.http.openai.structured_output import Wish
from gatewayd.metrics.registry import Metrics
from gatewayd.pipeline.generation import Generation, Pipeline
from gatewayd.pipeline.live_requests import LiveRequests
from gatewayd.plugins.parsers import ModelParsers
from gatewayd.plugins.request_observers import Observers
from gatewayd.tenants.principal import current_principal
from gatewayd.tenants.tenancy import Tenancy
from gatewayd.text.text_model import TextModel
from gatewayd.tracing.causes import GRAMMAR, WAITED_ENGINE
from gatewayd.tracing.request_trace import TimedSpan
from gatewayd_engine.process.messages import ModelInfo
from gatewayd_hooks.detection import Detector
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.protocols import ProtocolStrategy

_FAULT_SECONDS = 5.0
"""That a refusal is looked into, to say which part it is about."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What a request may cost before it reaches an engine.

    Attributes:
        body_bytes: of a request.
        bodies_bytes: of all requests that are here together.
        num_choices: choices of all prompts of a request together.
        thread_bytes: larger bodies are parsed in a thread.
        ping_seconds: silence after which a stream gets a comment.
        load_seconds: that a request waits while the model is loaded for the first time.
    """

    body_bytes: int = 8 * 1024 * 1024
    bodies_bytes: int = 512 * 1024 * 1024
    num_choices: int = 128
    thread_bytes: int = 32 * 1024
    ping_seconds: float = 15.0
    load_seconds: float = 60.0


class StoredResources(Protocol):
    """What outlives the process, as far as the HTTP side serves it."""

    @property
    def tenancy(self) -> Tenancy:
        """Who may come in, and what they may use."""

    @property
    def queues(self) -> Mapping[str, QueueStats]:
        """How the queues for it stand."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """How many objects were too many of a tenant's, by their kind."""

    def routes(self, services: Services) -> list[Route]:
        """Every route of what is kept."""

    def set_app(self, app: App) -> None:
        """Take what answers requests that the daemon itself makes: no key is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything the routes need.

    Attributes:
        fleet: the engines.
        text: tokenizer and chat template of the served model.
        models: names that requests may use; the first is the model's own.
        metrics: what ``/metrics`` shows.
        version: of the daemon.
        api_key: asked of every request but health checks; None for an open server.
        allowed_origins: of pages in browsers that may call; ``*`` for all.
        only_local_hosts: refuse host headers that a name on the internet can be behind.
        limits: of a request.
        observers: who is told about requests.
        live: the requests that are at the engines.
        parsers: read the model's answers.
        protocols: other APIs that are served, by the names of their plugins.
        durable: what outlives the process; None where nothing does.
        guides: checks grammars; None leaves that to the engines.
        detector: gives what finds the mark that answers carry now; None where they carry none.
        clock: seconds; monotonic.
        created: Unix time that model objects carry.
    """

    fleet: Fleet
    text: TextModel
    models: tuple[str, ...]
    metrics: Metrics
    version: str
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    only_local_hosts: bool = False
    limits: RequestLimits = RequestLimits()
    observers: Observers = field(default_factory=Observers)
    live: LiveRequests[Generation] = field(default_factory=LiveRequests)
    parsers: ModelParsers = field(default_factory=ModelParsers)
    protocols: Sequence[tuple[str, ProtocolStrategy]] = ()
    durable: StoredResources | None = None
    detector: Callable[[], Detector | None] = lambda: None
    guides: GuideChecks | None = None
    clock: Callable[[], float] = time.monotonic
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def pipeline(self) -> Pipeline:
        """Where requests are started."""
        return Pipeline(
            fleet=self.fleet,
            metrics=self.metrics,
            observers=self.observers,
            live=self.live,
            clock=self.clock,
        )

    async def loaded_model(self) -> ModelInfo:
        """What the engines serve; while they load it for the first time the request waits.

        Raises:
            QueueFull: too many wait already.
            EngineUnavailable: no engine will serve, or loading takes too long to wait for.
        """
        if self.fleet.model is None:
            try:
                with TimedSpan(WAITED_ENGINE), contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.limits.load_seconds):
                        await self.fleet.wait_model()
            except QueueFull as error:
                self.metrics.rejected(by_tokens=error.by_tokens)
                raise
        model = self.fleet.model
        if model is None:
            raise EngineUnavailable("the model is not loaded yet; try again", retry_after=5)
        return model

    async def check_guide(self, wish: Wish | None) -> GuideSpec | None:
        """See that what an answer is to follow can be compiled.

        Raises:
            InvalidRequest: it cannot.
            StrategyUnavailable: nobody can say.
            NotAdmitted: it cannot be looked at now.
        """
        if wish is None or self.guides is None:
            return None if wish is None else wish.spec
        check = partial(self.guides.check, tenant=current_principal().tenant, turn=current_tenant())
        with TimedSpan(GRAMMAR, self.guides.strategy):
            try:
                return await check(wish.spec, wish.param)
            except InvalidRequest as refused:
                if wish.parts is not None and refused.code == "invalid_grammar":
                    await _find_fault(check, wish.parts())
                raise

    def check_model(self, name: str | None) -> str:
        """The name to answer with; the first one where a request may leave it out.

        Raises:
            ModelNotFound: it is not served.
            PermissionDenied: it is not for the key of the request that this task works on.
        """
        if name is None:
            name = self.models[0]
        elif name not in self.models:
            raise not_served(name, self.models)
        current_principal().check_use(name)
        return name


def not_served(name: str, served: Sequence[str]) -> ModelNotFound:
    """The refusal of a model's name."""
    return ModelNotFound(
        f"the model {name[:256]!r} does not exist; served: {', '.join(served)}", param="model"
    )


async def _find_fault(
    check: Callable[[GuideSpec, str], Awaitable[object]], parts: Sequence[tuple[GuideSpec, str]]
) -> None:
    """Look at the parts of what was refused one by one.

    Raises:
        InvalidRequest: this one cannot be kept.
    """
    with contextlib.suppress(TimeoutError, StrategyUnavailable, NotAdmitted):
        async with asyncio.timeout(_FAULT_SECONDS):
            for spec, param in parts:
                await check(spec, param)
