"""One upstream as a fleet: requests are relayed instead of computed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import cast

import aiohttp

from gatewayd.config.upstreams import UpstreamEntry
from gatewayd.engines.api import EngineRequest, RelaySink, ReplicaStatus, TokenSink
from gatewayd.errors import GatewayError, InvalidRequest, ServerStopping
from gatewayd.fairness.queue_capacity import QueueCapacity
from gatewayd.upstreams.client import UpstreamBroken, UpstreamExchange, new_session
from gatewayd.upstreams.endpoints import Endpoint, Endpoints, probe_delay
from gatewayd.upstreams.limits import UpstreamLimits
from gatewayd.upstreams.relay import RelayedRequest, RelayTerms
from gatewayd_engine.process.messages import ModelInfo
from gatewayd_hooks.upstreams import EmbedsInputs, UpstreamRefusal, UpstreamStrategy

_log = logging.getLogger(__name__)


class UpstreamFleet:
    """Implements ``gatewayd.engines.api.Fleet``, and is started and stopped as engines are.

    Attributes:
        name: of the upstream.
        endpoints: its endpoints.
        model: always None: its model is not known here.

    Args:
        name: of the upstream.
        entry: its configuration.
        strategy: its opened translator.
    """

    def __init__(self, name: str, entry: UpstreamEntry, strategy: UpstreamStrategy) -> None:
        self.name = name
        self._entry = entry
        self._strategy = strategy
        self.model: ModelInfo | None = None
        self.endpoints = Endpoints(name, entry.endpoints, self._ejected)
        self._limits = UpstreamLimits(
            name,
            concurrency=entry.concurrency,
            max_waiting=entry.max_waiting,
            requests_per_minute=entry.requests_per_minute,
        )
        self._terms = RelayTerms(
            name=name,
            strategy=strategy,
            exchange=self._exchange,
            first_token_seconds=entry.first_token_seconds,
            between_tokens_seconds=entry.between_tokens_seconds,
            api_key=entry.secret,
        )
        self._session: aiohttp.ClientSession | None = None
        self._running: set[RelayedRequest] = set()
        self._probes: set[asyncio.Task[None]] = set()
        self._is_draining = False

    # Fleet.

    def submit(self, request: EngineRequest, sinks: Sequence[TokenSink]) -> RelayedRequest:
        """See ``Fleet``.

        Raises:
            ServerStopping: the daemon stops.
            UpstreamUnavailable: all endpoints are ejected.
            UpstreamBusy: too many requests wait, or its budget is used up.
        """
        relay = request.relay
        if relay is None:
            raise TypeError("only requests with a relay can be sent to an upstream")
        if self._is_draining:
            raise ServerStopping("the server is shutting down", retry_after=5)
        self.endpoints.pick()
        found = RelayedRequest(
            self._terms,
            request,
            relay,
            # Choices of a request with a relay have the methods.
            cast(Sequence[RelaySink], sinks),
            self._limits.slot(),
            self._running.discard,
        )
        self._running.add(found)
        return found

    def status(self) -> Sequence[ReplicaStatus]:
        """See ``Fleet``: there are no engines."""
        return ()

    async def refresh_stats(self) -> None:
        """See ``Fleet``."""

    async def wait_model(self) -> None:
        """See ``Fleet``: there is nothing to load."""

    @property
    def load_seconds(self) -> float:
        """See ``Fleet``: there is nothing to load."""
        return 0.0

    @property
    def room(self) -> QueueCapacity:
        """See ``Fleet``."""
        return self._limits.capacity

    @property
    def num_pending(self) -> int:
        """See ``Fleet``: requests that wait for a slot."""
        return self._limits.num_waiting

    @property
    def is_ready(self) -> bool:
        """See ``Fleet``."""
        return self.endpoints.is_ready and not self._is_draining

    @property
    def condition(self) -> str:
        """See ``Fleet``."""
        return "ready" if self.is_ready else "not_ready"

    def check_embeds(self, model: str) -> None:
        """Check that its strategy relays embeddings.

        Args:
            model: one of its models.

        Raises:
            InvalidRequest: it does not.
        """
        if not isinstance(self._strategy, EmbedsInputs):
            raise InvalidRequest(
                f"the model {model} is served by the upstream {self.name} with the strategy "
                f"{self._entry.strategy}, which has no embeddings: name another model",
                param="model",
                code="model_not_local",
            )

    # For the daemon.

    @property
    def num_unfinished(self) -> int:
        """Requests in flight, with waiting ones."""
        return len(self._running)

    def drain(self) -> None:
        """Refuse further requests."""
        self._is_draining = True

    def fail_remaining(self) -> None:
        """Fail every remaining request, because the daemon stops."""
        error = ServerStopping("the server is shutting down", retry_after=5)
        for one in tuple(self._running):
            one.fail(error)

    async def stop(self) -> None:
        """Close all connections."""
        self.drain()
        for probe in self._probes:
            probe.cancel()
        # Before the session, which would leave their connections open.
        await asyncio.gather(*self._probes, return_exceptions=True)
        await asyncio.gather(*[one.stop() for one in tuple(self._running)])
        if self._session is not None:
            await self._session.close()
        self._strategy.close()

    def _exchange(self, only: Endpoint | None = None) -> UpstreamExchange:
        if self._session is None or self._session.closed:
            self._session = new_session(self._entry.connect_seconds)
        return UpstreamExchange(self._session, self.endpoints, self.name, only=only)

    # Endpoints.

    def _ejected(self, endpoint: Endpoint) -> None:
        _log.warning(
            "endpoint %d of the upstream %s is ejected: %s",
            endpoint.index,
            self.name,
            endpoint.reason,
        )
        probe = asyncio.get_running_loop().create_task(self._probe(endpoint), name="probe")
        self._probes.add(probe)
        probe.add_done_callback(self._probes.discard)

    async def _probe(self, endpoint: Endpoint) -> None:
        """Probe an ejected endpoint until it answers."""
        while endpoint.is_ejected:
            await asyncio.sleep(probe_delay(endpoint))
            exchange = self._exchange(endpoint)
            try:
                async with asyncio.timeout(self._entry.first_token_seconds):
                    await self._strategy.probe(exchange)
            except (UpstreamBroken, UpstreamRefusal, OSError, TimeoutError, GatewayError):
                continue
            except Exception:  # noqa: BLE001 - a plugin may raise anything
                _log.exception("strategy of the upstream %s failed in a probe", self.name)
                continue
            finally:
                with contextlib.suppress(OSError):
                    await exchange.close(drains=True)
            self.endpoints.succeeded(endpoint)
            _log.info("endpoint %d of the upstream %s serves again", endpoint.index, self.name)
