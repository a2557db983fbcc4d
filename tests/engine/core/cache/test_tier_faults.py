"""KV tier faults: broken, damaged, slow or swapped tiers, same answers without delay."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.cache import tier_lookup
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.strategy import Kind
from tests.engine.core.hot_swaps import swap
from tests.engine.core.tiered_engines import (
    PROMPT,
    disk,
    evict_all,
    first_step,
    flush,
    held_reads,
    host,
)

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("patient")


def broken_find(tier: Any) -> None:
    tier.find = lambda keys: len(keys) + 1


def broken_get(tier: Any) -> None:
    tier.get = lambda keys: [np.zeros(3, np.uint8) for _ in keys]


def raising(name: str) -> Callable[[Any], None]:
    def broken(tier: Any) -> None:
        def fail(*args: Any) -> Any:
            raise OSError("the tier is broken")

        setattr(tier, name, fail)

    broken.__name__ = f"raising_{name}"
    return broken


def gives_up_nonsense(tier: Any) -> None:
    tier.put = lambda key, page: [(key, page[:1])]


def loses_what_it_promised(tier: Any) -> None:
    tier.get = lambda keys: []


BROKEN = [
    broken_find,
    broken_get,
    gives_up_nonsense,
    loses_what_it_promised,
    *(raising(name) for name in ("find", "put", "get", "release")),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_tier_costs_its_pages_and_nothing_else(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Any], None]
) -> None:
    wanted = make_engine(folder).generate(PROMPT, max_tokens=8, ignore_eos=True)
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host()])
    chain = engine.core.strategies.tiers
    make = chain._make

    def made(choice: StrategyChoice) -> Any:
        tier = make(choice)
        broken(tier.strategy)
        return tier

    chain._make = made
    engine.generate(PROMPT, max_tokens=8)
    evict_all(engine)
    broken(chain._tiers[0].watched)
    broken(chain._tiers[0].strategy)
    for _ in range(6):
        assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
        evict_all(engine)
        engine.core.check()
    if broken is not loses_what_it_promised:
        # Thrice, and it comes back no more.
        assert engine.core.stats.faults == 3
        assert not chain._tiers
        assert [row.state for row in engine.core.strategies.report() if row.kind == "kv_tier"] == [
            "quarantined"
        ]


def test_a_tier_that_failed_once_comes_back(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host()])
    chain = engine.core.strategies.tiers
    engine.generate(PROMPT, max_tokens=4)
    raising("put")(chain._tiers[0].watched)
    evict_all(engine)
    assert chain.names == []
    engine.generate(PROMPT, max_tokens=4)
    assert chain.names == ["host"]
    evict_all(engine)
    i = first_step(engine, PROMPT)
    assert engine.answers[i].admitted.cached_tokens == 96


def test_tiers_are_swapped_while_requests_run(
    make_engine: Make, folder: Path, tmp_path: Path
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8)
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)

    swap(engine, Kind.KV_TIER, host())
    evict_all(engine)  # those from before have no names, as nobody has used them since
    assert engine.core.stats.tier_hits == {}
    assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
    evict_all(engine)
    swap(engine, Kind.KV_TIER, host(), disk(tmp_path))
    i = first_step(engine, PROMPT)
    assert engine.core.stats.tier_hits == {"host": 96}
    assert engine.run()[i].tokens == wanted
    swap(engine, Kind.KV_TIER, disk(tmp_path))
    evict_all(engine)
    first_step(engine, PROMPT)
    engine.run()
    assert engine.core.stats.tier_hits == {"host": 96, "disk": 96}
    swap(engine, Kind.KV_TIER)
    evict_all(engine)
    assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
    assert engine.core._pages.on_evict is None
    assert engine.core.stats.tier_hits == {"host": 96, "disk": 96}, "a count never falls"


def test_a_tier_that_comes_late_gets_what_was_cached_before_and_is_used(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8)
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    swap(engine, Kind.KV_TIER, host())
    assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
    evict_all(engine)
    assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
    assert engine.core.stats.tier_hits == {"host": 96}


@pytest.mark.parametrize("memory", ["64MiB", "40KiB"])
def test_what_a_prefix_cache_knew_that_is_swapped_out_goes_to_the_tiers(
    make_engine: Make, folder: Path, memory: str
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host(memory)])
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    swap(engine, Kind.PREFIX_CACHE, StrategyChoice("radix"))
    engine.core.check()
    assert engine.core.stats.cached_pages == 0
    assert engine.generate(PROMPT, max_tokens=8, ignore_eos=True) == wanted
    found = engine.core.stats.tier_hits["host"]
    assert found == 96 if memory == "64MiB" else 0 < found < 96, "the first pages are kept"


# Waiting for a disk


def test_others_go_on_while_pages_are_read(
    make_engine: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, kv_pages=80, page_size=8, kv_tiers=[disk(tmp_path)])
    one = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    evict_all(engine)
    flush(engine)
    may_read = held_reads(monkeypatch)
    (waits,) = engine.submit(PROMPT, max_tokens=8, ignore_eos=True)
    (other,) = engine.submit([3, 4, 5], max_tokens=60, ignore_eos=True)
    engine.step()
    assert engine.answers[waits].admitted is None
    assert len(engine.answers[other].tokens) == 1
    may_read.set()
    answers = engine.run()
    assert answers[waits].tokens == one
    assert answers[waits].admitted.cached_tokens == 96


def test_a_disk_that_is_slower_than_computing_is_not_waited_for(
    make_engine: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, kv_pages=80, page_size=8, kv_tiers=[disk(tmp_path)])
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    evict_all(engine)
    tier = engine.core.strategies.tiers._tiers[0]
    tier.strategy.flush()
    tier.strategy._page_seconds = 100.0
    (i,) = engine.submit(PROMPT, max_tokens=8, ignore_eos=True)
    engine.step()
    assert engine.answers[i].admitted.cached_tokens == 0
    assert engine.run()[i].tokens == wanted


def test_a_disk_that_hangs_is_not_waited_for_for_ever(
    make_engine: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, kv_pages=80, page_size=8, kv_tiers=[disk(tmp_path)])
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    evict_all(engine)
    flush(engine)
    may_read = held_reads(monkeypatch)
    monkeypatch.setattr(tier_lookup, "_MOST_WAIT", 0.5)
    began = time.perf_counter()
    i = first_step(engine, PROMPT)
    assert 0.4 < time.perf_counter() - began < 30
    assert engine.run()[i].tokens == wanted
    may_read.set()
    assert engine.core.stats.faults == 0


def test_a_damaged_page_and_those_behind_it_are_computed(
    make_engine: Make, folder: Path, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"kv_pages": 40, "page_size": 8, "kv_tiers": [disk(tmp_path)]}
    engine = make_engine(folder, **fields)
    wanted = engine.generate(PROMPT, max_tokens=8, ignore_eos=True)
    evict_all(engine)
    tier = engine.core.strategies.tiers._tiers[0].strategy
    tier.flush()
    (path,) = tmp_path.glob("engine-0/*.kv")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    i = first_step(engine, PROMPT)
    assert 0 < engine.answers[i].admitted.cached_tokens < 96
    assert engine.run()[i].tokens == wanted
