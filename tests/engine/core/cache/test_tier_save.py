"""KV tier save: an engine's cache is written at its end and found by the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gatewayd_engine.kv.page_allocator import Pages
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_evict_retention.strategy import Retention
from tests.engine.core.tiered_engines import PROMPT, disk, evict_all, first_step, host

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("small_model", "patient")
FIELDS: dict[str, Any] = {"kv_pages": 40, "page_size": 8}


def hits_of_the_next(make_engine: Make, folder: Path, path: Path) -> dict[str, int]:
    """What another engine finds of ``PROMPT``, and that its answer is that of computing."""
    engine = make_engine(folder, **FIELDS, kv_tiers=[disk(path)])
    i = first_step(engine, PROMPT)
    plain = make_engine(folder, **FIELDS, prefix_cache=None)
    assert engine.run()[i].tokens == plain.generate(PROMPT, max_tokens=8, ignore_eos=True)
    engine.core.strategies.close()
    hits: dict[str, int] = engine.core.stats.tier_hits
    return hits


@pytest.mark.parametrize("eviction", ["lru", "lfu", "cost", "retention"])
@pytest.mark.parametrize("cache", ["hash", "radix"])
def test_what_the_pool_has_cached_is_found(
    make_engine: Make, folder: Path, tmp_path: Path, cache: str, eviction: str
) -> None:
    engine = make_engine(
        folder,
        **FIELDS,
        kv_tiers=[disk(tmp_path)],
        prefix_cache=StrategyChoice(cache),
        eviction=StrategyChoice(eviction),
    )
    engine.generate(PROMPT, max_tokens=8)
    engine.core.save(20)
    engine.core.strategies.close()
    assert hits_of_the_next(make_engine, folder, tmp_path) == {"disk": 96}


def test_what_a_nearer_tier_has_and_what_runs_is_found_too(
    make_engine: Make, folder: Path, tmp_path: Path
) -> None:
    engine = make_engine(folder, **FIELDS, kv_tiers=[host(), disk(tmp_path)])
    engine.generate(PROMPT, max_tokens=8)
    evict_all(engine)
    other = [*range(200, 260)]
    first_step(engine, other, n=1, max_tokens=50)
    engine.core.save(20)
    engine.core.check()
    assert not engine.core.has_work
    engine.core.strategies.close()
    assert hits_of_the_next(make_engine, folder, tmp_path) == {"disk": 96}
    engine = make_engine(folder, **FIELDS, kv_tiers=[disk(tmp_path)])
    first_step(engine, other)
    assert engine.core.stats.tier_hits == {"disk": 56}


@pytest.mark.parametrize("after", [0, 5])
def test_an_eviction_that_fails_then_costs_nothing(
    make_engine: Make,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    victim, calls = Retention.victim, iter(range(100))

    def failing(self: Retention) -> int:
        if next(calls) >= after:
            raise RuntimeError("no more")
        return victim(self)

    monkeypatch.setattr(Retention, "victim", failing)
    engine = make_engine(
        folder, **FIELDS, kv_tiers=[disk(tmp_path)], eviction=StrategyChoice("retention")
    )
    engine.generate(PROMPT, max_tokens=8)
    engine.core.save(20)
    engine.core.check()
    assert engine.core.stats.faults == 1
    engine.core.strategies.close()
    assert hits_of_the_next(make_engine, folder, tmp_path) == {"disk": 96}


def test_without_a_tier_that_outlives_it_nothing_is_done(make_engine: Make, folder: Path) -> None:
    for tiers in ([], [host()]):
        engine = make_engine(folder, **FIELDS, kv_tiers=tiers)
        engine.generate(PROMPT, max_tokens=8)
        cached = engine.core.stats.cached_pages
        engine.core.save(20)
        assert engine.core.stats.cached_pages == cached > 0


def test_a_tier_that_fails_as_its_pages_are_read_costs_no_other_tier(
    make_engine: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, **FIELDS, kv_tiers=[host(), disk(tmp_path)])
    engine.generate(PROMPT, max_tokens=8)
    evict_all(engine)
    (near, far) = engine.core.strategies.tiers._tiers
    leave, kept = near.strategy.leave, []

    def failing() -> Iterator[Any]:
        for at, page in enumerate(leave()):
            if at == 5:
                raise RuntimeError("no more")
            kept.append(page[0])
            yield page

    monkeypatch.setattr(near.strategy, "leave", failing)
    engine.core.save(20)
    rows = {row.name: row.faults for row in engine.core.strategies.report()}
    assert (rows["host"], rows["disk"]) == (1, 0)
    assert far.strategy.find(kept) == len(kept) == 5


def test_who_fails_then_costs_the_cache_and_not_the_end(
    make_engine: Make,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no more")

    engine = make_engine(folder, **FIELDS, kv_tiers=[host(), disk(tmp_path)])
    engine.generate(PROMPT, max_tokens=8)
    evict_all(engine)
    (near, far) = engine.core.strategies.tiers._tiers
    monkeypatch.setattr(near.strategy, "leave", broken)
    monkeypatch.setattr(far.strategy, "keep", broken)
    engine.core.save(20)
    assert engine.core.strategies.tiers.names == []
    engine = make_engine(folder, **FIELDS, kv_tiers=[disk(tmp_path)])
    engine.generate(PROMPT, max_tokens=8)
    with monkeypatch.context() as patch:
        patch.setattr(Pages, "allocate", broken)
        engine.core.save(20)
    assert "KV cache not saved to the KV tiers" in caplog.text
