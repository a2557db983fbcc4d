"""The engines of all models and the upstreams, started and stopped together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd.catalogue.model_residency import ModelResidency
from gatewayd.daemon.models import ModelParts
from gatewayd.daemon.upstreams import UpstreamParts
from gatewayd.engines.fleet import EngineFleet

if TYPE_CHECKING:
    from gatewayd.upstreams.fleet import UpstreamFleet

_POLL_SECONDS = 0.2

_log = logging.getLogger("gatewayd.daemon")


class Fleets:
    """The fleets of all models and upstreams.

    Args:
        models: parts of each model, at least one; more may be added while they run.
        residency: loads and unloads them.
        upstreams: parts of each upstream.
        ending: parts of models that are served no more and finish their requests.
    """

    def __init__(
        self,
        models: Sequence[ModelParts],
        residency: ModelResidency,
        upstreams: Sequence[UpstreamParts] = (),
        ending: Sequence[ModelParts] = (),
    ) -> None:
        self._models = models
        self._residency = residency
        self._upstreams = upstreams
        self._ending = ending
        self._failing: dict[EngineFleet, asyncio.Task[str]] = {}

    @property
    def _all(self) -> Sequence[EngineFleet | UpstreamFleet]:
        engines = [model.fleet for model in (*self._models, *self._ending)]
        return [*engines, *[upstream.fleet for upstream in self._upstreams]]

    def start(self) -> None:
        """Start the engines of models that are loaded with the daemon, as far as memory goes."""
        for model in self._models:
            model.fleet.start(is_asleep=True)
            self.watch(model)
        # Pinned ones first: the others are loaded into what they leave.
        for model in sorted(self._models, key=lambda one: not one.managed.is_pinned):
            if not model.preloads:
                continue
            if self._residency.has_room(model.managed):
                self._residency.load(model.managed)
            else:
                _log.warning(
                    "the model %s is loaded at its first request: [catalogue] memory has no room"
                    " for it beside the others",
                    model.name,
                )

    async def wait_ready(self) -> None:
        """Wait until each model that is loaded with the daemon serves or has failed."""
        first = [model for model in self._models if not model.fleet.is_asleep]
        ready = [asyncio.create_task(model.fleet.wait_ready()) for model in first]
        try:
            for model, task in zip(first, ready, strict=True):
                ends = (task, self._failing[model.fleet])
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if not model.fleet.is_ready and len(self._models) > 1:
                    _log.error("model %s is not served: %s", model.name, model.fleet.failure)
        finally:
            for task in ready:
                task.cancel()

    async def wait_failed(self) -> str:
        """Wait until no model has an engine that could serve; forever with upstreams.

        Returns:
            The reason of the first model's failure.
        """
        if self._upstreams:
            await asyncio.get_running_loop().create_future()
        # Models come and go, so that there is no fixed set of tasks to wait for.
        while not all([one.fleet.is_over for one in self._models]):  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)
        first = self._models[0].fleet
        return await self._failing[first]

    def watch(self, model: ModelParts) -> None:
        """Fail the requests of a model when all of its engines have failed."""
        failing = asyncio.create_task(model.fleet.wait_failed(), name=f"engines of {model.name}")
        self._failing[model.fleet] = failing

    def unwatch(self, model: ModelParts) -> None:
        """Forget the engines of a model that has ended."""
        if (failing := self._failing.pop(model.fleet, None)) is not None:
            failing.cancel()

    @property
    def num_unfinished(self) -> int:
        """Sequences at engines, and pending ones, and requests to upstreams."""
        return sum(fleet.num_unfinished for fleet in self._all)

    def drain(self) -> None:
        """Refuse further requests; accepted ones continue, and held ones are released."""
        for fleet in self._all:
            fleet.drain()

    def release_held(self) -> None:
        """Release requests that an operator holds."""
        for model in self._models:
            model.fleet.release_held()

    def fail_remaining(self) -> None:
        """Fail every remaining request, because the daemon stops."""
        for fleet in self._all:
            fleet.fail_remaining()

    async def stop(self, save_seconds: float) -> None:
        """Stop all engines.

        Args:
            save_seconds: time for engines to persist their prefix caches.
        """
        await asyncio.gather(
            *[model.fleet.stop(save_seconds) for model in self._models],
            *[upstream.fleet.stop() for upstream in self._upstreams],
        )

    def stop_saving(self) -> None:
        """Stop the persisting of prefix caches by engines that are ending."""
        for model in self._models:
            model.fleet.stop_saving()
