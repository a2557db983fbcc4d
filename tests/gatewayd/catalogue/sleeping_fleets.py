"""Fleets without engines, for residency: they load after a while, and are busy when told to be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.memory_budget import CatalogueBudget, Footprint
from gatewayd.catalogue.model_residency import ModelResidency, ResidencyLimits
from gatewayd.engines.api import ReplicaStatus
from gatewayd.engines.backlog import Backlog, QueueLimits
from gatewayd.errors import GatewayError
from gatewayd.plugins.residency import FencedResidency
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.targets.residency import ResidencyStrategy
from gatewayd_residency_lru.config import LruResidencyConfig
from gatewayd_residency_lru.strategy import LeastRecentlyUsed


class SlowFleet:
    """Implements ``SleepingFleet``: ``tick`` ends a load, ``finish`` its requests."""

    def __init__(self) -> None:
        self.backlog = Backlog(QueueLimits(10, 1000))
        self.is_asleep, self.is_resident, self.is_over = True, False, False
        self.is_unloaded = False
        self.refusals: list[str] = []
        self.num_running = self.num_held = self.num_submitted = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()

    @property
    def is_busy(self) -> bool:
        return self.num_running + self.num_held > 0

    def status(self) -> Sequence[ReplicaStatus]:
        return ()

    def submit(self) -> None:
        """A request: it runs if the model is loaded, else it waits."""
        self.num_submitted += 1
        if self.is_resident and not self.is_asleep:
            self.num_running += 1
            self._is_idle.clear()
        else:
            self.num_held += 1

    def finish(self) -> None:
        """All running requests end."""
        self.num_running = 0
        self._is_idle.set()

    def tick(self) -> None:
        """The load ends; what waits runs."""
        if not self.is_asleep and not self.is_resident:
            self.is_resident = True
            self.num_running, self.num_held = self.num_held, 0
            if self.num_running:
                self._is_idle.clear()

    @property
    def num_unfinished(self) -> int:
        return self.num_running + self.num_held

    async def refresh_stats(self) -> None:
        """Nothing changes."""

    def refuse(self, error: GatewayError) -> None:
        """What waits fails."""
        self.refusals.append(str(error))
        self.num_held = 0

    async def sleep(self) -> bool:
        assert self.is_resident
        self.is_asleep = True
        await self._is_idle.wait()
        assert not self.num_running, "a model with running requests was unloaded"
        self.is_resident = False
        return True

    def wake(self) -> None:
        assert self.is_asleep
        assert not self.is_resident
        self.is_asleep = False


class Now:
    """A clock that is set."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def residency_of(
    sizes: dict[str, int],
    memory: int,
    *,
    clock: Now,
    pinned: Sequence[str] = (),
    minimum: float = 0.0,
    patience: float = 2.0,
    strategy: ResidencyStrategy | None = None,
) -> tuple[ModelResidency, dict[str, SlowFleet], dict[str, ManagedModel]]:
    """Models of these sizes in bytes under a budget, all asleep."""
    times = PluginTimes(1.0)
    chosen = strategy or LeastRecentlyUsed(LruResidencyConfig())
    residency = ModelResidency(
        ResidencyLimits(CatalogueBudget(memory), minimum, patience),
        FencedResidency(chosen, "lru", times, Watchdog(times, 5.0)),
        clock,
    )
    fleets = {name: SlowFleet() for name in sizes}
    models = {
        name: ManagedModel(name, fleets[name], Footprint(size), is_pinned=name in pinned)
        for name, size in sizes.items()
    }
    for model in models.values():
        residency.add(model)
    return residency, fleets, models
