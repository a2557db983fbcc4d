"""Guide compiler shared by tenants: own grammars, turns, a share of the cache."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections import Counter, OrderedDict
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gatewayd_engine.fairness.tenant_cache import TenantCache
from gatewayd_engine.process.config import GuideLimits, StrategyChoice
from gatewayd_engine.sampling.guides.compiler import CompiledGrammar, GrammarCompiler, Guide
from gatewayd_hooks.guiding import GuideSpec


class Slow:
    """A guide that notes what it compiles, and for how long."""

    def __init__(self) -> None:
        self.compiled: list[str] = []
        self.gate = threading.Event()
        self.gate.set()

    def compile(self, spec: GuideSpec) -> Any:
        self.compiled.append(spec.text)
        self.gate.wait(30)
        time.sleep(0.01)
        return SimpleNamespace(num_bytes=1)


class Bench:
    """A compiler, its guide, and whoever asks."""

    def __init__(self, **limits: Any) -> None:
        self.strategy = Slow()
        self.guide = Guide(StrategyChoice("slow"), self.strategy)
        self.compiler = GrammarCompiler(GuideLimits(**limits))

    def want(self, tenant: str, text: str) -> CompiledGrammar:
        return self.compiler.request(GuideSpec("regex", text), self.guide, None, tenant)

    def settle(self, *wanted: CompiledGrammar) -> None:
        deadline = time.monotonic() + 30
        while not all(one.is_settled for one in wanted) and time.monotonic() < deadline:
            self.compiler.review()
            time.sleep(0.001)
        assert all(one.is_settled for one in wanted)


def test_each_tenant_has_a_grammar_compiled_once() -> None:
    bench = Bench()
    for tenant in ("a", "b", "a", "b", "a"):
        bench.settle(bench.want(tenant, "x"))
    wanted = [bench.want(tenant, "y") for tenant in "abab"]  # on their way
    bench.settle(*wanted)
    assert Counter(bench.strategy.compiled) == {"x": 2, "y": 2}


def test_one_tenant_does_not_have_all_threads_nor_all_of_the_queue() -> None:
    bench = Bench()
    bench.settle(bench.want("quiet", "first"))
    bench.strategy.gate.clear()
    bombs = [bench.want("bomber", f"bomb {at}") for at in range(50)]
    mine = bench.want("quiet", "mine")
    deadline = time.monotonic() + 30
    while len(bench.strategy.compiled) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert sorted(bench.strategy.compiled) == ["bomb 0", "first", "mine"], "a thread was left"
    bench.strategy.gate.set()
    bench.settle(mine, *bombs)
    # A newcomer waits for one grammar at most, whatever waits.
    bombs = [bench.want("bomber", f"more {at}") for at in range(50)]
    bench.strategy.compiled.clear()
    bench.settle(bench.want("late", "new"))
    assert bench.strategy.compiled.index("new") <= 4


def test_what_nobody_waits_for_any_more_is_not_compiled() -> None:
    bench = Bench()
    bench.strategy.gate.clear()
    first = [bench.want("a", f"first {at}") for at in range(2)]
    for at in range(20):
        bench.want("a", f"left {at}")
    last = bench.want("a", "last")
    gc.collect()
    bench.strategy.gate.set()
    bench.settle(*first, last)
    assert sorted(bench.strategy.compiled) == ["first 0", "first 1", "last"]


def test_one_tenant_evicts_no_grammar_of_another_that_has_few() -> None:
    bench = Bench(cached=8)
    bench.settle(bench.want("quiet", "mine"))
    for at in range(30):
        bench.settle(bench.want("loud", f"{at}"))
    bench.strategy.compiled.clear()
    gc.collect()
    bench.settle(bench.want("quiet", "mine"))
    assert bench.strategy.compiled == []
    bench.settle(bench.want("loud", "0"))
    assert bench.strategy.compiled == ["0"], "the cache is not without end"


@given(st.integers(0, 2**32))
def test_a_shared_cache_is_the_model_that_looks_through_everything(seed: int) -> None:
    rng = random.Random(seed)
    most, most_weight = rng.randint(1, 8), rng.randint(1, 40)
    cache: TenantCache[int, tuple[int, int]] = TenantCache(most, most_weight, lambda one: one[1])
    model: OrderedDict[tuple[str, int], tuple[int, int]] = OrderedDict()  # the oldest first

    def share(tenant: str) -> float:
        mine = [value for (who, _), value in model.items() if who == tenant]
        return max(len(mine) / most, sum(weight for _, weight in mine) / most_weight)

    for step in range(80):
        tenant, key = rng.choice("abc"), rng.randint(0, 9)
        match rng.randint(0, 3):
            case 0:
                assert cache.get(tenant, key) == model.get((tenant, key))
                if (tenant, key) in model:
                    model.move_to_end((tenant, key))
            case 1:
                cache.remove(tenant, key)
                model.pop((tenant, key), None)
            case _:
                value = (step, rng.randint(1, 12))
                cache.put(tenant, key, value)
                model[tenant, key] = value
                model.move_to_end((tenant, key))
                while (
                    len(model) > most or sum(weight for _, weight in model.values()) > most_weight
                ):
                    loser = max((share(who), who) for who, _ in model)[1]
                    del model[next(one for one in model if one[0] == loser)]
        assert len(cache) == len(model)
        assert sorted(cache.values()) == sorted(model.values())
