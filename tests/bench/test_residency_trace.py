"""Residency traces: the optimum is that of an exhaustive search, and no strategy is better."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from gatewayd.config.tables import CatalogueTable
from tests.bench.residency_trace import (
    SCENARIOS,
    STRATEGIES,
    Model,
    Scenario,
    least_cost,
    optimum,
    simulate,
    zipf,
)

AT_ONCE = CatalogueTable(minimum_residency_seconds=0.0)


def exhaustive(
    trace: Sequence[int],
    sizes: Sequence[int],
    costs: Sequence[float],
    memory: int,
    loaded: frozenset[int] = frozenset(),
) -> float:
    """Try whatever may be unloaded at each load."""
    if not trace:
        return 0.0
    first, rest = trace[0], trace[1:]
    if first in loaded:
        return exhaustive(rest, sizes, costs, memory, loaded)
    kept: list[frozenset[int]] = [frozenset()]
    for one in loaded:
        kept += [some | {one} for some in kept]
    fitting = [some for some in kept if sum(sizes[k] for k in some) + sizes[first] <= memory]
    return costs[first] + min(
        exhaustive(rest, sizes, costs, memory, some | {first}) for some in fitting
    )


def test_the_optimum_is_that_of_an_exhaustive_search() -> None:
    draw = Random(3)
    for _ in range(60):
        n = draw.randrange(2, 5)
        sizes = [draw.randrange(1, 5) for _ in range(n)]
        costs = [float(draw.randrange(1, 20)) for _ in range(n)]
        memory = draw.randrange(max(sizes), max(sizes) + 5)
        trace = [draw.randrange(n) for _ in range(9)]
        assert least_cost(trace, sizes, costs, memory) == exhaustive(trace, sizes, costs, memory)


def farthest_next_use(trace: Sequence[int], places: int) -> int:
    """Loads by Belady's rule, for models of one size."""
    loaded: set[int] = set()
    loads = 0
    for now, model in enumerate(trace):
        if model in loaded:
            continue
        if len(loaded) == places:
            later = trace[now:]
            loaded.remove(
                max(loaded, key=lambda one: later.index(one) if one in later else len(trace))
            )
        loaded.add(model)
        loads += 1
    return loads


def test_of_models_of_one_size_the_optimum_is_belady_s() -> None:
    for seed in range(4):
        trace, _ = zipf(SCENARIOS["equal"], 0.7, seed, requests=300)
        assert optimum(SCENARIOS["equal"], trace).loads == farthest_next_use(trace, 3)


def least_recently_used(trace: Sequence[int], models: Sequence[Model], memory: int) -> int:
    """Loads if the least recently used models are unloaded until the next one fits."""
    loaded: list[int] = []
    loads = 0
    for model in trace:
        if model in loaded:
            loaded.remove(model)
        else:
            loads += 1
            while sum(models[k].size for k in [*loaded, model]) > memory:
                loaded.pop(0)
        loaded.append(model)
    return loads


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_lru_in_the_simulation_loads_what_a_list_in_order_of_use_loads(name: str) -> None:
    scenario = SCENARIOS[name]
    trace, pauses = zipf(scenario, 1.0, 1, requests=300)
    found = simulate(scenario, "lru", trace, pauses, AT_ONCE)
    assert found.loads == least_recently_used(trace, scenario.models, scenario.memory)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_no_strategy_is_better_than_the_optimum(name: str, strategy: str) -> None:
    scenario = SCENARIOS[name]
    trace, pauses = zipf(scenario, 1.0, 2, requests=300)
    found, best = simulate(scenario, strategy, trace, pauses), optimum(scenario, trace)
    assert found.loads >= best.loads
    assert found.load_seconds >= best.load_seconds
    # A request waits for its own load at least.
    assert found.wait_seconds >= found.load_seconds - 1e-6


def test_the_cost_of_loads_counts_where_it_is_to() -> None:
    trace, pauses = zipf(SCENARIOS["mixed"], 1.3, 1, requests=600)
    lru, cost = (simulate(SCENARIOS["mixed"], name, trace, pauses) for name in ("lru", "cost"))
    assert cost.load_seconds < lru.load_seconds


def test_a_request_waits_for_the_load_of_its_model_and_for_the_minimum_of_others() -> None:
    scenario = Scenario((Model(1, 4.0), Model(1, 6.0)), 1)
    found = simulate(scenario, "lru", [0, 0, 1, 1, 0], [1.0] * 5, AT_ONCE)
    assert (found.loads, found.load_seconds) == (3, 14.0)
    assert found.wait_seconds == pytest.approx(14.0, abs=0.001)
    # The first one is unloaded 7 s after its load, the second one as soon.
    patient = CatalogueTable(minimum_residency_seconds=7.0)
    found = simulate(scenario, "lru", [0, 1, 0], [1.0] * 3, patient)
    assert found.wait_seconds == pytest.approx(4 + (5 + 6) + (5 + 4), abs=0.6)
