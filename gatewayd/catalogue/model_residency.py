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
from typing import NamedTuple

from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.memory_budget import NOTHING, BudgetExceeded, CatalogueBudget, Footprint
from gatewayd.errors import EngineUnavailable
from gatewayd.plugins.residency import FencedResidency

_log = logging.getLogger(__name__)

_TICK_SECONDS = 0.25
_PREFERRED_SECONDS = 1.0
_MEASURE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class ResidencyLimits:
    """Limits of loading and unloading.

    Attributes:
        budget: memory of all loaded models together.
        minimum: seconds for which a loaded model stays at least.
        patience: seconds that a model waits for another to be idle.
    """

    budget: CatalogueBudget
    minimum: float
    patience: float


class Demand(NamedTuple):
    """A model that is to be loaded.

    Attributes:
        since: time of the first request for it.
        is_firm: whether it is loaded although no request waits for it.
    """

    since: float
    is_firm: bool


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
        self._wanted: dict[ManagedModel, Demand] = {}  # in order of demand
        self._changed = asyncio.Event()
        self._evictions: set[asyncio.Task[None]] = set()
        self._preferred_at = self._measured_at = 0.0

    def add(self, model: ManagedModel) -> None:
        """Take a model under control.

        Raises:
            BudgetExceeded: it can never be loaded.
        """
        pinned = _sum(one.footprint for one in self.models if one.is_pinned)
        self.limits.budget.check(model.name, model.footprint, pinned)
        self.models.append(model)

    def close(self) -> None:
        """Close the strategy."""
        self._strategy.close()

    def remove(self, model: ManagedModel) -> None:
        """Leave a model alone from now on."""
        self.models.remove(model)
        self._wanted.pop(model, None)

    def demand(self, model: ManagedModel, *, is_firm: bool = False) -> None:
        """Load a model as soon as there is memory for it; idempotent.

        Args:
            model: the model.
            is_firm: whether it is loaded although no request waits for it, as for an operator.
        """
        if model not in self._wanted:
            self._wanted[model] = Demand(self._clock(), is_firm)
        elif is_firm:
            self._wanted[model] = self._wanted[model]._replace(is_firm=True)
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
                try:
                    self.advance()
                    await self._measure()
                except Exception:  # noqa: BLE001 - no fault may end the loading of models
                    _log.exception("models could not be loaded or unloaded; trying again")
        finally:
            for task in self._evictions:
                task.cancel()

    def advance(self) -> None:
        """Start the loads and unloads that are possible now."""
        now = self._clock()
        for model in self.models:
            model.observe(now)
        for model, demand in list(self._wanted.items()):
            if model.is_evicting:
                continue  # it is loaded again once its memory is free
            fleet = model.fleet
            is_needed = fleet.is_asleep and not fleet.is_unloaded
            # The clients of the requests that asked for it may have gone.
            if not is_needed or not (demand.is_firm or fleet.is_busy):
                del self._wanted[model]
            elif self.has_room(model):
                del self._wanted[model]
                self.load(model)
            elif (error := self._never_fits(model)) is not None:
                del self._wanted[model]
                _log.error("%s", error)
                fleet.refuse(EngineUnavailable(str(error)))
            else:
                self._make_room(model, now, waited=now - demand.since)
                # Later models must not take the memory that is freed for this one.
                break
        if now - self._preferred_at >= _PREFERRED_SECONDS and not self._wanted:
            self._preferred_at = now
            self._load_preferred()
        self._forecast(now)

    def _never_fits(self, model: ManagedModel) -> BudgetExceeded | None:
        """Return why a model cannot be loaded whatever is unloaded, by what was measured."""
        pinned = _sum(one.footprint for one in self.models if one.is_pinned and one is not model)
        try:
            self.limits.budget.check(model.name, model.footprint, pinned)
        except BudgetExceeded as error:
            return error
        return None

    def _make_room(self, wanted: ManagedModel, now: float, *, waited: float) -> None:
        ending = [model for model in self.models if model.is_evicting]
        # One at a time; but one that still has requests may take long, while another is idle.
        if any(not model.fleet.is_busy for model in ending):
            return
        may_go = [
            model
            for model in self.models
            if model.fleet.is_resident
            and not model.is_evicting
            and not model.is_pinned
            and model.loaded_seconds(now) >= self.limits.minimum
        ]
        idle = [model for model in may_go if not model.fleet.is_busy]
        if not idle and (ending or waited < self.limits.patience):
            return
        if candidates := idle or may_go:
            views = [model.view(now) for model in candidates]
            name = self._strategy.evict(wanted.name, views, time.time())
            chosen = next(model for model in candidates if model.name == name)
            _log.info("unloading the model %s for %s", chosen.name, wanted.name)
            chosen.is_evicting = True
            task = asyncio.create_task(self._evict(chosen), name=f"unload {chosen.name}")
            self._evictions.add(task)
            task.add_done_callback(self._evictions.discard)

    async def _evict(self, model: ManagedModel) -> None:
        try:
            if await model.fleet.sleep():
                model.unloads += 1
        finally:
            model.is_evicting = False
            self._changed.set()

    async def _measure(self) -> None:
        """Ask the engines for their memory, a few times a minute and if there is a limit."""
        now, budget = self._clock(), self.limits.budget
        if budget.host is None or now - self._measured_at < _MEASURE_SECONDS:
            return
        self._measured_at = now
        loaded = [model.fleet for model in self.models if not model.fleet.is_asleep]
        await asyncio.gather(*[fleet.refresh_stats() for fleet in loaded])

    def _load_preferred(self) -> None:
        by_name = {model.name: model for model in self.models}
        for name in self._strategy.preferred(time.time()):
            model = by_name.get(name)
            if model is None or model.is_evicting or model.fleet.is_unloaded:
                continue
            if model.fleet.is_asleep and self.has_room(model):
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


def demand_of(residency: ModelResidency, model: ManagedModel) -> Callable[[bool], None]:
    """Return what a fleet calls when its engines are needed."""

    def demand(is_firm: bool) -> None:
        residency.demand(model, is_firm=is_firm)

    return demand


def _sum(footprints: Iterator[Footprint]) -> Footprint:
    return sum(footprints, start=NOTHING)
