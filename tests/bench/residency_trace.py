"""Benchmark: residency strategies on simulated traces of requests, against the offline optimum.

Eight models in memory for fewer; requests, drawn by Zipf's law, come one after the other. The
residency of models, their accounts and the strategies are the daemon's; loads take virtual time.

- *equal*: eight models of one size, memory for three.
- *mixed*: 2 to 24 GiB and 3 to 40 s of loading, in random order of popularity, in 32 GiB.
- *shifting*: the same, and every 250 requests the models change their popularity.

The optimum is exact: it knows all requests, loads a model when it is requested, and unloads those
that make the sum of all load times, or the number of loads, the least.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Any

import numpy as np

from gatewayd.catalogue.managed_model import ManagedModel
from gatewayd.catalogue.memory_budget import CatalogueBudget, Footprint
from gatewayd.catalogue.model_residency import ModelResidency, ResidencyLimits
from gatewayd.config.tables import CatalogueTable
from gatewayd.plugins.residency import FencedResidency
from gatewayd_hooks.host.catalog import Catalog
from gatewayd_hooks.host.loading import PluginHost
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.strategy import Kind
from tests.bench import report
from tests.gatewayd.catalogue.sleeping_fleets import Now, SlowFleet

STRATEGIES = ("lru", "cost")
EXPONENTS = (0.7, 1.0, 1.3)
SEEDS = range(5)
REQUESTS = 2000
PAUSE_SECONDS, SERVICE_SECONDS = 5.0, 1.0
"""Mean time between an answer and the next request, and time of an answer."""
_SHIFT_EVERY = 250
_TICK_SECONDS = 0.25
_STEP_SECONDS = 1e-6


@dataclass(frozen=True, slots=True)
class Model:
    """A model of the catalogue: its memory and the time of its load."""

    size: int
    load_seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Models in memory for fewer.

    Attributes:
        models: a trace has their numbers.
        memory: of all loaded models together.
        is_shifting: whether popularity changes.
    """

    models: Sequence[Model]
    memory: int
    is_shifting: bool = False


_MIXED = tuple(
    Model(*one) for one in ((2, 3), (3, 12), (4, 5), (6, 8), (8, 25), (12, 10), (16, 18), (24, 40))
)
SCENARIOS = {
    "equal": Scenario((Model(1, 10.0),) * 8, 3),
    "mixed": Scenario(_MIXED, 32),
    "shifting": Scenario(_MIXED, 32, is_shifting=True),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trace has cost.

    Attributes:
        loads: number of loads.
        load_seconds: sum of the times of all loads.
        wait_seconds: sum of the times for which requests waited.
    """

    loads: int
    load_seconds: float
    wait_seconds: float


class LoadingFleet(SlowFleet):
    """A fleet whose load is to end at a time of the virtual clock, ``due``."""

    def __init__(self, seconds: float, clock: Now) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self.due = 0.0

    def wake(self) -> None:
        """Start a load."""
        super().wake()
        self.due = self._clock() + self._seconds


class Simulation:
    """Residency of models by a strategy, driven by requests one after the other."""

    def __init__(
        self, scenario: Scenario, strategy: str, limits: CatalogueTable | None = None
    ) -> None:
        table, times = limits or CatalogueTable(), PluginTimes(1.0)
        chosen: Any = PluginHost(Catalog.installed()).strategy(Kind.RESIDENCY, strategy, {})
        self._clock, self._watchdog = Now(), Watchdog(times, 5.0)
        self._residency = ModelResidency(
            ResidencyLimits(
                CatalogueBudget(scenario.memory),
                table.minimum_residency_seconds,
                table.patience_seconds,
            ),
            FencedResidency(chosen, strategy, times, self._watchdog),
            self._clock,
        )
        self._fleets = [LoadingFleet(one.load_seconds, self._clock) for one in scenario.models]
        for at, model in enumerate(scenario.models):
            footprint = Footprint(model.size)
            managed = ManagedModel(f"m{at}", self._fleets[at], footprint, is_pinned=False)
            self._residency.add(managed)
        self._models, self._scenario = self._residency.models, scenario

    async def run(self, trace: Sequence[int], pauses: Sequence[float]) -> Outcome:
        """Serve all requests."""
        waits = [await self._serve(at, pause) for at, pause in zip(trace, pauses, strict=True)]
        loads = [model.loads for model in self._models]
        pairs = zip(loads, self._scenario.models, strict=True)
        seconds = sum(count * model.load_seconds for count, model in pairs)
        return Outcome(sum(loads), seconds, sum(waits))

    def _advance(self) -> None:
        # No two calls are at one time: request rates are of the time between them.
        self._clock.seconds += _STEP_SECONDS
        self._residency.advance()

    async def _serve(self, at: int, pause: float) -> float:
        """Serve a request after a pause; return how long it waited for its model."""
        fleet, model = self._fleets[at], self._models[at]
        self._clock.seconds += pause
        self._advance()
        began = self._clock()
        fleet.submit()
        if fleet.is_asleep:
            self._residency.demand(model)
        while not fleet.is_resident:
            self._advance()
            # The daemon goes on at once when a model is unloaded, to the next one if need be.
            while any(one.is_evicting for one in self._models):
                await asyncio.sleep(0)
                self._advance()
            if fleet.is_asleep:
                self._clock.seconds += _TICK_SECONDS
            else:
                self._clock.seconds = fleet.due
                fleet.tick()
        waited = self._clock() - began
        self._advance()  # it notes the time of the load
        pairs = zip(self._fleets, self._scenario.models, strict=True)
        if sum(model.size for one, model in pairs if one.is_resident) > self._scenario.memory:
            raise RuntimeError("the models take more than the memory")
        self._clock.seconds += SERVICE_SECONDS
        self._advance()
        fleet.finish()
        return waited


def simulate(
    scenario: Scenario,
    strategy: str,
    trace: Sequence[int],
    pauses: Sequence[float],
    limits: CatalogueTable | None = None,
) -> Outcome:
    """Run a strategy over a trace, with the daemon's default limits unless others are given."""

    async def run() -> Outcome:
        return await Simulation(scenario, strategy, limits).run(trace, pauses)

    return asyncio.run(run())


def least_cost(
    trace: Sequence[int], sizes: Sequence[int], costs: Sequence[float], memory: int
) -> float:
    """Return the least sum of the costs of all loads, by dynamic programming over loaded sets.

    Args:
        trace: numbers of the models, in order.
        sizes: of the models.
        costs: of a load of each.
        memory: of all loaded models together.
    """
    n = len(sizes)
    states = np.arange(1 << n)
    held = sum(((states >> at) & 1) * size for at, size in enumerate(sizes))
    total = np.full(1 << n, np.inf)
    total[0] = 0.0
    for at in trace:
        has = (states >> at) & 1 == 1
        # The least cost of having at least these models, which is that of unloading all others.
        least = np.where(has, np.inf, total)
        for bit in range(n):
            pairs = least.reshape(-1, 2, 1 << bit)
            np.minimum(pairs[:, 0], pairs[:, 1], out=pairs[:, 0])
        loaded = np.where(held <= memory, least[states & ~(1 << at)] + costs[at], np.inf)
        total = np.where(has, np.minimum(total, loaded), np.inf)
    return float(total.min())


def optimum(scenario: Scenario, trace: Sequence[int]) -> Outcome:
    """Return the fewest loads, and the least load time; the least wait is the latter."""
    sizes = [model.size for model in scenario.models]
    costs = [model.load_seconds for model in scenario.models]
    seconds = least_cost(trace, sizes, costs, scenario.memory)
    loads = least_cost(trace, sizes, [1.0] * len(sizes), scenario.memory)
    return Outcome(round(loads), seconds, seconds)


def zipf(
    scenario: Scenario, exponent: float, seed: int, requests: int = REQUESTS
) -> tuple[list[int], list[float]]:
    """Return the models that requests name, and the pauses before them."""
    draw = Random(seed)
    ranks = list(range(len(scenario.models)))
    weights = [1 / (rank + 1) ** exponent for rank in ranks]
    draw.shuffle(ranks)
    trace = []
    for number in range(requests):
        if scenario.is_shifting and number % _SHIFT_EVERY == 0:
            draw.shuffle(ranks)
        trace += draw.choices(ranks, weights)
    return trace, [draw.expovariate(1 / PAUSE_SECONDS) for _ in trace]


def compare(name: str, exponent: float) -> list[report.Finding]:
    """Compare the strategies with the optimum, by means over the seeds."""
    scenario, findings = SCENARIOS[name], []
    traces = [zipf(scenario, exponent, seed) for seed in SEEDS]
    best = [optimum(scenario, trace) for trace, _ in traces]
    figures: list[tuple[str, str, Callable[[Outcome], float]]] = [
        ("hit rate", "%", lambda one: 100 * (1 - one.loads / REQUESTS)),
        ("load time", "s a request", lambda one: one.load_seconds / REQUESTS),
        ("mean wait", "s", lambda one: one.wait_seconds / REQUESTS),
    ]
    for strategy in STRATEGIES:
        ours = [simulate(scenario, strategy, *trace) for trace in traces]
        what = f"{name}, exponent {exponent:g}, {strategy}"
        for figure, unit, of in figures:
            own, other = (mean(map(of, outcomes)) for outcomes in (ours, best))
            findings.append(report.Finding(f"{what}: {figure}", unit, own, other, "optimum"))
    return findings


def main() -> int:
    """Compare the strategies on all traces."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    where = report.machine()
    findings = [
        finding
        for name in SCENARIOS
        for exponent in EXPONENTS
        for finding in compare(name, exponent)
    ]
    title = "Residency of eight models in memory for fewer, simulated"
    return report.publish(title, where, findings, as_json=args.json, strict=args.strict)


if __name__ == "__main__":
    sys.exit(main())
