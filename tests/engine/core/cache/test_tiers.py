"""KV tiers: a hit equals recomputation bit for bit, whatever the tiers do."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.cache import tier_lookup
from gatewayd_engine.kv import host_transfers
from gatewayd_engine.model.fused.data import StepOutputs
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.cpu import Runner
from gatewayd_engine.state.step_batch import StepBatch
from gatewayd_tier_disk.store import Store
from gatewayd_tier_disk.strategy import Disk
from tests.engine.core.spoilt_outputs import spoil
from tests.engine.core.tiered_engines import PROMPT, disk, evict_all, first_step, host
from tests.random_cases import few_of

Make = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("small_model", "patient")
CACHES = [StrategyChoice("hash"), StrategyChoice("radix")]


CHAINS: dict[str, Callable[[Path], list[StrategyChoice]]] = {
    "host": lambda path: [host()],
    "disk": lambda path: [disk(path)],
    "small host, disk": lambda path: [host("40KiB"), disk(path)],
}


def kv_of(engine: Any, sequence_id: int, tokens: int) -> np.ndarray[Any, Any]:
    """The KV of a sequence's first tokens, bit for bit."""
    sequence = engine.core._queue.find(sequence_id)
    pool = engine.core._placement._block_tables._pool
    pool.transfers.wait()
    data = pool.data[sequence.pages].movedim(3, 1).flatten(0, 1)[:tokens]
    return np.array(data.numpy().view(np.uint8))


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_hit_equals_computing_bit_for_bit(
    make_engine: Make,
    folder: Path,
    tmp_path: Path,
    inline_bytes: int,
    cache: StrategyChoice,
    chain: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # However busy the machine is: who waits no more computes in pieces of other shapes.
    monkeypatch.setattr(tier_lookup, "_MOST_WAIT", 60.0)
    tiers = CHAINS[chain](tmp_path)
    engine = make_engine(folder, kv_pages=40, page_size=8, prefix_cache=cache, kv_tiers=tiers)
    one = first_step(engine, PROMPT)
    computed = kv_of(engine, one, len(PROMPT) - 1)
    tokens = engine.run()[one].tokens
    evict_all(engine)
    before = engine.core.stats
    again = first_step(engine, PROMPT)
    assert np.array_equal(kv_of(engine, again, len(PROMPT) - 1), computed)
    assert engine.run()[again].tokens == tokens
    after = engine.core.stats
    # 12 full pages of 8 come back; the rest, and what is generated, is computed.
    assert engine.answers[again].admitted.cached_tokens == 96
    assert after.computed_tokens - before.computed_tokens == 4 + 7
    assert after.prefix_hits - before.prefix_hits == 96
    assert sum(after.tier_hits.values()) == 96
    assert after.faults == 0
    if "," in chain:
        assert set(after.tier_hits) == {"host", "disk"}


@pytest.mark.parametrize("chain", ["disk", "small host, disk"])
def test_a_hit_is_whole_though_its_pages_are_written_in_between(
    make_engine: Make, folder: Path, tmp_path: Path, chain: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=CHAINS[chain](tmp_path))
    one = first_step(engine, PROMPT)
    computed = kv_of(engine, one, len(PROMPT) - 1)
    engine.run()
    may_write = threading.Event()
    append, get = Store.append, Disk.get

    def waiting(self: Store, *args: Any) -> None:
        assert may_write.wait(60)
        append(self, *args)

    def written(self: Disk, keys: Any) -> Any:
        may_write.set()
        self.flush()
        return get(self, keys)

    monkeypatch.setattr(Store, "append", waiting)
    monkeypatch.setattr(Disk, "get", written)
    evict_all(engine)
    again = first_step(engine, PROMPT)
    assert engine.answers[again].admitted.cached_tokens == 96
    assert np.array_equal(kv_of(engine, again, len(PROMPT) - 1), computed)


@pytest.mark.usefixtures("depth")
def test_a_page_goes_to_a_tier_once_and_is_shared_when_it_is_back(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host()])
    for _ in range(3):
        evict_all(engine)
        i = first_step(engine, PROMPT)
        engine.run()
        assert len(engine.core.strategies.tiers._tiers[0].strategy) <= 13
    # It is in the prefix cache again: the next one needs no tier.
    hits = engine.core.stats.tier_hits["host"]
    i = first_step(engine, PROMPT)
    assert engine.answers[i].admitted.cached_tokens == len(PROMPT) - 1
    assert engine.core.stats.tier_hits["host"] == hits == 2 * 96


@pytest.mark.parametrize(
    "other",
    [{"salt": b"another"}, {"prompt": [9, *PROMPT[1:]]}, {"prompt_logprobs": 0}],
    ids=lambda other: next(iter(other)),
)
def test_what_may_not_be_shared_is_not_found(
    make_engine: Make, folder: Path, other: dict[str, Any]
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host()])
    engine.generate(PROMPT, max_tokens=4)
    evict_all(engine)
    i = first_step(engine, **{"prompt": PROMPT, **other})
    assert engine.answers[i].admitted.cached_tokens == 0
    assert engine.core.stats.tier_hits == {}


@pytest.mark.usefixtures("depth")
def test_pages_of_a_failed_request_never_go_to_a_tier(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder, kv_pages=40, page_size=8, kv_tiers=[host()], max_batch_tokens=32)
    runner = engine.core._runner

    def poison(_: StepBatch, out: StepOutputs) -> None:
        for each in (out.hidden, out.logits, out.best):
            each.fill_(np.nan)

    spoil(monkeypatch, runner, poison)
    (bad,) = engine.submit(PROMPT, max_tokens=4)
    engine.run()
    monkeypatch.undo()
    assert engine.answers[bad].finished.error[0] == "numerical_error"
    evict_all(engine)
    assert len(engine.core.strategies.tiers._tiers[0].strategy) == 0


def test_a_restarted_engine_finds_its_disk(make_engine: Make, folder: Path, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"kv_pages": 40, "page_size": 8, "kv_tiers": [disk(tmp_path)]}
    engine = make_engine(folder, **fields)
    one = first_step(engine, PROMPT)
    computed = kv_of(engine, one, 96)
    tokens = engine.run()[one].tokens
    evict_all(engine)
    engine.core.strategies.close()
    for differs in ({}, {"page_size": 4}, {"dtype": "bfloat16"}, {"max_model_len": 512}):
        again = make_engine(folder, **{**fields, **differs})
        i = first_step(again, PROMPT)
        if not differs:
            assert again.core.stats.tier_hits == {"disk": 96}
            assert np.array_equal(kv_of(again, i, 96), computed)
            assert again.run()[i].tokens == tokens
        assert again.core.stats.tier_hits.get("disk", 0) == (0 if differs else 96), differs
        again.core.strategies.close()
    # The same folder and another model, of the same shape.
    text = (folder / "config.json").read_text()
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    (other / "config.json").write_text(text.replace("1e-06", "1e-05"))
    again = make_engine(other, **fields)
    first_step(again, PROMPT)
    assert again.core.stats.tier_hits == {}


def test_a_second_engine_on_a_folder_is_refused(
    make_engine: Make, folder: Path, tmp_path: Path
) -> None:
    make_engine(folder, kv_tiers=[disk(tmp_path)])
    with pytest.raises(ValueError, match="in use by another process"):
        make_engine(folder, kv_tiers=[disk(tmp_path)])


def test_with_no_tier_nothing_is_kept_for_one(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder, kv_pages=40)
    i = first_step(engine, PROMPT)
    assert engine.core._pages.on_evict is None
    assert engine.core._queue.find(i).tier_keys == []
    assert not engine.core._placement.offload.measures_costs


@pytest.mark.parametrize("seed", few_of([0, 6, 1, 2, 3, 4, 5], 2))
def test_random_requests_with_every_tier_and_every_preemption(
    make_engine: Make,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    rng, overlaps = random.Random(seed), seed > 5
    monkeypatch.setattr(Runner, "overlaps", overlaps)
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", rng.choice([0, 1 << 20]))
    size = rng.choice([4, 16])
    page = 3 * 2 * 2 * 16 * 4 * size
    engine = make_engine(
        folder,
        page_size=size,
        kv_pages=rng.choice([320, 400]) // size,
        max_batch_tokens=rng.choice([8, 40, 200]),
        max_running=rng.choice([3, 12]),
        prefix_cache=CACHES[seed % 2],
        eviction=StrategyChoice(rng.choice(["lru", "lfu", "cost"])),
        preemption=StrategyChoice(rng.choice(["swap", "recompute"])),
        kv_tiers=[[host(str(30 * page)), disk(tmp_path)], [disk(tmp_path)]][rng.random() < 0.3],
        drafter=None if overlaps else rng.choice([None, StrategyChoice("ngram")]),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    alone = make_engine(folder, prefix_cache=None, kv_pages=200)
    beginnings = [[rng.randrange(2, 320) for _ in range(60)] for _ in range(6)]
    asked: dict[int, tuple[list[int], dict[str, Any], int]] = {}
    aborted: set[int] = set()
    for _ in range(400):
        if rng.random() < 0.25 and len(asked) < 70:
            shared = rng.choice(beginnings)[: rng.randrange(61)]
            prompt = shared + [rng.randrange(2, 320) for _ in range(rng.randrange(1, 20))]
            fields: dict[str, Any] = {"max_tokens": rng.randrange(1, 20), "ignore_eos": True}
            if rng.random() < 0.3:
                fields |= {"temperature": 1.0, "seed": rng.randrange(2**63)}
            n = rng.choice([1, 1, 2])
            for choice, i in enumerate(engine.submit(prompt, n=n, **fields)):
                asked[i] = prompt, fields, choice
        if rng.random() < 0.05 and asked:
            gone = rng.sample(sorted(asked), 1)
            aborted |= {i for i in gone if engine.answers[i].finished is None}
            engine.core.abort(gone)
        if rng.random() < 0.03 and not engine.core._queue.running:
            evict_all(engine)
        if engine.core.has_work:
            engine.step()
        engine.core.check()
    answers = engine.run()
    engine.core.check()
    assert engine.core.stats.faults == 0
    assert sum(engine.core.stats.tier_hits.values()) > 0
    # Nothing is remembered of those that have gone, and nothing in use.
    tiered = engine.core._placement.offload._tiered
    assert (tiered._located, tiered._waits) == ({}, {})
    for tier in engine.core.strategies.tiers._tiers:
        assert getattr(tier.strategy, "_pins", {}) == {}
    for i, (prompt, fields, choice) in asked.items():
        if i not in aborted:
            ids = alone.submit(prompt, n=choice + 1, **fields)
            assert answers[i].tokens == alone.run()[ids[choice]].tokens, i
