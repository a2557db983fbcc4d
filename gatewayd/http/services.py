"""Dependencies of the HTTP routes: the targets of requests, and what all of them share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Protocol

from starlette.routing import Route

from gatewayd.catalogue.catalogue import Catalogue, not_served
from gatewayd.catalogue.target import ModelTarget, Target, UpstreamTarget
from gatewayd.engines.api import Fleet
from gatewayd.errors import (
    EngineUnavailable,
    InvalidRequest,
    NotAdmitted,
    QueueFull,
    StrategyUnavailable,
)
from gatewayd.fairness.fair_queue import QueueStats, current_tenant
from gatewayd.http.asgi import App
from gatewayd.http.openai.structured_output import OutputConstraint
from gatewayd.hub.local_models import LocalModels
from gatewayd.metrics.registry import GatewayMetrics
from gatewayd.pipeline.generation import Pipeline
from gatewayd.plugins.parsers import ModelParsers
from gatewayd.plugins.request_observers import Observers
from gatewayd.tenants.principal import current_principal
from gatewayd.tenants.tenancy import Tenancy
from gatewayd.text.text_model import TextModel
from gatewayd.text.tokenizer import Tokenizer
from gatewayd.tracing import request_trace
from gatewayd.tracing.causes import GRAMMAR, WAITED_ENGINE
from gatewayd.tracing.request_trace import TimedSpan
from gatewayd_engine.process.messages import ModelInfo
from gatewayd_hooks.guiding import GuideSpec
from gatewayd_hooks.protocols import ProtocolStrategy

_POLL_SECONDS = 0.05
_FAULT_SECONDS = 5.0
"""Time limit for finding the part of a refused grammar that is invalid."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Limits of a request before it reaches an engine.

    Attributes:
        body_bytes: maximum body size of a request.
        bodies_bytes: maximum body size of all requests in memory together.
        num_choices: maximum choices of all prompts of a request together.
        thread_bytes: size above which bodies are parsed in a thread.
        ping_seconds: idle time after which a stream gets a keep-alive comment.
        load_seconds: maximum wait of a request for the first loading of the model.
        wake_seconds: the same, for a model that is loaded by its first request.
    """

    body_bytes: int = 8 * 1024 * 1024
    bodies_bytes: int = 512 * 1024 * 1024
    num_choices: int = 128
    thread_bytes: int = 32 * 1024
    ping_seconds: float = 15.0
    load_seconds: float = 60.0
    wake_seconds: float = 600.0


class StoredResources(Protocol):
    """Interface to persistent resources: tenants, files, batches and responses."""

    @property
    def tenancy(self) -> Tenancy:
        """Tenants, API keys and their grants."""

    @property
    def queues(self) -> Mapping[str, QueueStats]:
        """Statistics of its queues by name."""

    @property
    def refusals(self) -> Mapping[str, int]:
        """Number of objects refused by tenant quotas, by kind."""

    def routes(self, services: Services) -> list[Route]:
        """Return the routes of persistent resources."""

    def set_app(self, app: App) -> None:
        """Set the app for the daemon's internal requests, which need no key."""


@dataclass(frozen=True, kw_only=True)
class Services:
    """Dependencies of the routes, for requests to one target; ``serving`` selects another.

    Attributes:
        target: the model that serves the request; at first the catalogue's default.
        catalogue: all targets.
        metrics: served at ``/metrics``.
        version: of the daemon.
        api_key: required of every request except health checks; None for no authentication.
        allowed_origins: CORS origins that may send requests; ``*`` for all.
        only_local_hosts: refuse host headers with names that may be public, against DNS rebinding.
        limits: of a request.
        observers: plugins notified of requests.
        protocols: plugins that serve other APIs, by name.
        durable: persistent resources; None without a store.
        local_models: models of this machine.
        clock: seconds; monotonic.
        created: Unix time ``created`` of model objects.
    """

    target: Target
    catalogue: Catalogue
    metrics: GatewayMetrics
    version: str
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()
    only_local_hosts: bool = False
    limits: RequestLimits = RequestLimits()
    observers: Observers = field(default_factory=Observers)
    protocols: Sequence[tuple[str, ProtocolStrategy]] = ()
    durable: StoredResources | None = None
    local_models: LocalModels = field(default_factory=LocalModels)
    clock: Callable[[], float] = time.monotonic
    created: int = field(default_factory=lambda: int(time.time()))
    _views: dict[Target, Services] = field(default_factory=dict)

    def serving(self, name: str | None) -> Services:
        """Return the services of the model that a request names.

        Without a name they are those of the first model that the request's key may use.

        Raises:
            ModelNotFound: it is not served.
            PermissionDenied: the key of the current request may not use it.
        """
        principal, catalogue = current_principal(), self.catalogue
        if name is None:
            names = catalogue.names
            name = next(iter(principal.visible(names)), names[0])
        elif name not in catalogue:
            # A key for some models does not learn of the others.
            raise not_served(name, principal.visible(catalogue.names))
        principal.check_use(name)
        return self.of(self.catalogue.find(name))

    def of(self, target: Target) -> Services:
        """Return the services of a target."""
        if target is self.target:
            return self
        view = self._views.get(target)
        if view is None:
            # Those of models that were removed.
            for gone in self._views.keys() - set(self.catalogue.targets):
                del self._views[gone]
            view = self._views[target] = replace(self, target=target)
        return view

    @property
    def name(self) -> str:
        """Name of the model in answers to requests without one: the first that the key may use."""
        names = self.target.names
        return next(iter(current_principal().visible(names)), names[0])

    @property
    def fleet(self) -> Fleet:
        """Engines of the model."""
        return self.target.fleet

    @property
    def local(self) -> ModelTarget:
        """The target, if it is a local model.

        Raises:
            InvalidRequest: it is a model of an upstream.
        """
        target = self.target
        if isinstance(target, UpstreamTarget):
            raise InvalidRequest(
                f"the model {target.name} is served by the upstream {target.upstream}; this "
                "endpoint needs a local model",
                param="model",
                code="model_not_local",
            )
        if not isinstance(target, ModelTarget):
            raise TypeError(f"{type(target).__name__} is no model")
        return target

    @property
    def text(self) -> TextModel:
        """Tokenizer and chat template of a local model; raises as ``local`` does."""
        return self.local.text

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Tokenizer of the model; None for an upstream's."""
        target = self.target
        return target.text.tokenizer if isinstance(target, ModelTarget) else None

    @property
    def parsers(self) -> ModelParsers:
        """Reasoning and tool-call parsers of a local model's output; raises as ``local`` does."""
        return self.local.parsers

    @cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline that starts requests to the model."""
        return Pipeline(
            fleet=self.target.fleet,
            metrics=self.target.metrics,
            observers=self.observers,
            live=self.target.live,
            clock=self.clock,
        )

    async def loaded_model(self) -> ModelInfo:
        """Return the engines' model; waits while it is loaded for the first time.

        Raises:
            InvalidRequest: it is a model of an upstream.
            QueueFull: too many requests are already waiting.
            EngineUnavailable: no engine is available, or loading takes too long.
        """
        fleet, limits = self.local.fleet, self.limits
        if fleet.model is None:
            if (asks := request_trace.current()) is not None:
                asks.model = self.target.name  # for the record of a refusal
            is_asleep = fleet.condition == "asleep"
            seconds = limits.wake_seconds if is_asleep else limits.load_seconds
            try:
                # After the timeout there is no model, which is refused below.
                with TimedSpan(WAITED_ENGINE), contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await fleet.wait_model()
            except QueueFull as error:
                self.target.metrics.rejected(by_tokens=error.by_tokens)
                raise
        model = fleet.model
        if model is None:
            wait = max(5.0, self.target.fleet.load_seconds)
            raise EngineUnavailable("the model is not loaded yet; try again", retry_after=wait)
        return model

    async def wait_loaded(self) -> None:
        """Wait while a local model is loaded for the first time; raises as ``loaded_model``."""
        if isinstance(self.target, ModelTarget):
            await self.loaded_model()

    async def resident(self) -> None:
        """Wait until the engines of a model that sleeps are loaded, again or for the first time.

        Raises:
            QueueFull: too many requests are already waiting.
            EngineUnavailable: no engine is available, or loading takes too long.
        """
        fleet = self.target.fleet
        try:
            async with asyncio.timeout(self.limits.wake_seconds):
                await fleet.wait_model()
                while not fleet.is_ready or fleet.condition == "asleep":
                    await asyncio.sleep(_POLL_SECONDS)
                    await fleet.wait_model()
        except TimeoutError:
            wait = max(5.0, fleet.load_seconds)
            raise EngineUnavailable(
                "the model is not loaded yet; try again", retry_after=wait
            ) from None

    async def check_guide(self, constraint: OutputConstraint | None) -> GuideSpec | None:
        """Check that the grammar of a structured output can be compiled.

        Raises:
            InvalidRequest: it cannot be compiled.
            StrategyUnavailable: no guide plugin can check it.
            NotAdmitted: it cannot be checked now.
        """
        guides = self.local.guides
        if constraint is None or guides is None:
            return None if constraint is None else constraint.spec
        # The cache of results is by tenant; the queue is by address where there are no keys.
        check = partial(guides.check, tenant=current_principal().tenant, turn=current_tenant())
        with TimedSpan(GRAMMAR, guides.strategy):
            try:
                return await check(constraint.spec, constraint.param)
            except InvalidRequest as refused:
                # A combined grammar: find the part at fault, so that the error names its field.
                if constraint.parts is not None and refused.code == "invalid_grammar":
                    await _find_fault(check, constraint.parts())
                raise


async def _find_fault(
    check: Callable[[GuideSpec, str], Awaitable[object]], parts: Sequence[tuple[GuideSpec, str]]
) -> None:
    """Check the parts of a refused grammar one by one.

    Raises:
        InvalidRequest: the first part that cannot be compiled.
    """
    # The refusal of the whole is raised in any case; a part only makes it more precise.
    with contextlib.suppress(TimeoutError, StrategyUnavailable, NotAdmitted):
        async with asyncio.timeout(_FAULT_SECONDS):
            for spec, param in parts:
                await check(spec, param)
