"""Loads models at their first request, and unloads others so that all fit into the memory.

A model with running requests is never unloaded: an idle one is, chosen by the residency strategy.
If none is idle for ``patience`` seconds, the chosen one gets no further requests (they wait), and
is unloaded when it has finished its own. A model stays for at least ``minimum`` seconds, so that
two models that are both in demand do not replace each other at every request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.memory_budget import NOTHING, Footprint, MemoryBudget
from gatewayd.plugins.residency import FencedResidency

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_PREFERRED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ResidencyLimits:
    """Limits of loading and unloading.

    Attributes:
        budget: memory of all loaded models together.
        minimum: seconds for which a loaded model stays at least.
        patience: seconds that a model waits for another to be idle.
    """

    budget: MemoryBudget
    minimum: float
    patience: float


class ModelResidency:
    """Decides which models are loaded; its methods are called from the event loop only.

    Args:
        limits: of loading and unloading.
        strategy: chooses what is unloaded.
        clock: seconds; monotonic.

    Attributes:
        models: in the order of the configuration.
        limits: as given.
    """

    def __init__(
        self,
        limits: ResidencyLimits,
        strategy: FencedResidency,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.models: list[ManagedModel] = []
        self.limits = limits
        self._strategy = strategy
        self._clock = clock
        self._wanted: dict[ManagedModel, float] = {}  # in order of demand, with its time
        self._changed = asyncio.Event()
        self._evictions: set[asyncio.Task[None]] = set()
        self._preferred_at = 0.0

    def add(self, model: ManagedModel) -> None:
        """Take a model under control.

        Raises:
            BudgetExceeded: it can never be loaded.
        """
        pinned = _sum(one.footprint for one in self.models if one.is_pinned)
        self.limits.budget.check(model.name, model.footprint, pinned)
        self.models.append(model)

    def remove(self, model: ManagedModel) -> None:
        """Leave a model alone from now on."""
        self.models.remove(model)
        self._wanted.pop(model, None)

    def demand(self, model: ManagedModel) -> None:
        """Load a model as soon as there is memory for it; idempotent."""
        if model not in self._wanted:
            self._wanted[model] = self._clock()
            self._changed.set()

    def load(self, model: ManagedModel) -> None:
        """Load a model for which there is memory."""
        _log.info("loading the model %s", model.name)
        model.wake(self._clock())

    def has_room(self, model: ManagedModel) -> bool:
        """Whether a model fits beside those that hold memory now."""
        return self.limits.budget.holds(self.used + model.footprint)

    @property
    def used(self) -> Footprint:
        """Memory that loaded, loading and ending models hold."""
        return _sum(model.held for model in self.models)

    async def run(self) -> None:
        """Load and unload until cancelled."""
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), _TICK_SECONDS)
                self._changed.clear()
                self.advance()
        finally:
            for task in self._evictions:
                task.cancel()

    def advance(self) -> None:
        """Start the loads and unloads that are possible now."""
        now = self._clock()
        for model in self.models:
            model.observe(now)
        for model, since in list(self._wanted.items()):
            if model.is_evicting:
                continue  # it is loaded again once its memory is free
            if not model.fleet.is_asleep:
                del self._wanted[model]
            elif self.has_room(model):
                del self._wanted[model]
                self.load(model)
            else:
                self._make_room(model, now, waited=now - since)
                # Later models must not take the memory that is freed for this one.
                break
        if now - self._preferred_at >= _PREFERRED_SECONDS and not self._wanted:
            self._preferred_at = now
            self._load_preferred()
        self._forecast(now)

    def _make_room(self, wanted: ManagedModel, now: float, *, waited: float) -> None:
        if self._evictions:
            return
        may_go = [
            model
            for model in self.models
            if model.fleet.is_resident
            and not model.is_pinned
            and model.loaded_seconds(now) >= self.limits.minimum
        ]
        idle = [model for model in may_go if not model.fleet.is_busy]
        if not idle and waited < self.limits.patience:
            return
        if candidates := idle or may_go:
            views = [model.view(now) for model in candidates]
            name = self._strategy.evict(wanted.name, views, time.time())
            chosen = next(model for model in candidates if model.name == name)
            _log.info("unloading the model %s for %s", chosen.name, wanted.name)
            task = asyncio.create_task(self._evict(chosen), name=f"unload {chosen.name}")
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)

    async def _evict(self, model: ManagedModel) -> None:
        model.is_evicting = True
        try:
            if await model.fleet.sleep():
                model.unloads += 1
        finally:
            model.is_evicting = False
            self._changed.set()

    def _load_preferred(self) -> None:
        by_name = {model.name: model for model in self.models}
        for name in self._strategy.preferred(time.time()):
            model = by_name.get(name)
            if model is not None and model.fleet.is_asleep and self.has_room(model):
                self.load(model)

    def _forecast(self, now: float) -> None:
        """Set how long refused requests should wait until they try again."""
        ahead = 0.0
        for model in self.models:
            loads = not model.fleet.is_asleep and not model.fleet.is_resident
            model.fleet.backlog.load_seconds = model.remaining_seconds(now) if loads else 0.0
        for model in self._wanted:
            ahead += model.remaining_seconds(now)
            model.fleet.backlog.load_seconds = ahead


def _sum(footprints: Iterator[Footprint]) -> Footprint:
    return sum(footprints, start=NOTHING)
