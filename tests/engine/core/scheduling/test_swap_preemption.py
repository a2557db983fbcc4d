"""Preemption by swapping: pages return unchanged, answers equal those alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gatewayd_engine.kv import host_transfers
from gatewayd_engine.kv.transfer_cost import CostLine
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.scheduling import QueueView
from tests.random_cases import few_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
SWAP = StrategyChoice("swap")
CACHES = [None, StrategyChoice("hash"), StrategyChoice("radix")]
NUM, NEW = 12, 60
PROMPTS = [[2 + i, *range(10, 28 + i % 5)] for i in range(NUM)]


def preempt(engine: Any, sequence_id: int, mode: PreemptionMode = PreemptionMode.SWAP) -> None:
    sequence = engine.core._queue.find(sequence_id)
    engine.core._placement.preemption.preempt(Victim(sequence.slot, mode))


def kv_of(engine: Any, sequence_id: int) -> tuple[int, NDArray[np.uint8]]:
    """Computed tokens of a sequence and their KV, bit for bit, shape ``[tokens, ...]``."""
    sequence = engine.core._queue.find(sequence_id)
    computed = int(engine.core._queue.view.num_computed[sequence.slot])
    pool = engine.core._placement._block_tables._pool
    pool.transfers.wait()
    data = pool.data[sequence.pages].movedim(3, 1).flatten(0, 1)[:computed]
    return computed, data.numpy().view(np.uint8).copy()


def write_over_all(engine: Any) -> None:
    """Others have had every page that nobody holds."""
    pages = engine.core._pages
    taken = [pages.allocate() for _ in range(pages.num_available)]
    engine.core._placement._block_tables._pool.data[taken] = 7.0
    pages.release(taken)


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("steps", [2, 9, 20])
def test_what_comes_back_is_what_went_bit_for_bit(
    make_engine: Make, folder: Path, inline_bytes: int, cache: StrategyChoice | None, steps: int
) -> None:
    engine = make_engine(folder, prefix_cache=cache, kv_pages=40, page_size=8, max_batch_tokens=40)
    prompt = list(range(5, 105))
    alone = make_engine(folder, prefix_cache=None).generate(prompt, max_tokens=40, ignore_eos=True)
    (one,) = engine.submit(prompt, max_tokens=40, ignore_eos=True)
    for _ in range(steps):
        engine.step()
    computed, before = kv_of(engine, one)
    preempt(engine, one)
    write_over_all(engine)
    engine.step()
    now, after = kv_of(engine, one)
    assert now > computed
    assert np.array_equal(after[:computed], before)
    assert engine.run()[one].tokens == alone
    assert engine.core.stats.swaps == 1
    assert engine.core.stats.computed_tokens == len(prompt) + 40 - 1


@pytest.mark.parametrize("cache", CACHES)
def test_a_storm_computes_nothing_twice(
    make_engine: Make, folder: Path, inline_bytes: int, cache: StrategyChoice | None
) -> None:
    def storm(**fields: Any) -> tuple[list[list[int]], Any]:
        engine = make_engine(folder, max_running=NUM, prefix_cache=cache, **fields)
        ids = [engine.submit(p, max_tokens=NEW, ignore_eos=True)[0] for p in PROMPTS]
        while engine.core.has_work:
            engine.step()
            engine.core.check()
        return [engine.answers[i].tokens for i in ids], engine.core

    calm, _ = storm(kv_pages=400)
    swapped, core = storm(kv_pages=22, preemption=SWAP)
    again, other = storm(kv_pages=22)
    assert swapped == again == calm
    least = sum(len(p) + NEW - 1 for p in PROMPTS)
    assert core.stats.preemptions > 0 < other.stats.preemptions
    if cache is None:
        assert other.stats.computed_tokens > 1.05 * least
        # A learned crossover may let the shortest compute again.
        assert core.stats.computed_tokens < other.stats.computed_tokens
    assert core.stats.swaps > 0
    assert core._placement.offload.swapped_pages == 0


class Slow(CostLine):
    """Copies that take ten seconds, and one more for each page."""

    def add(self, amount: float, seconds: float) -> None:
        super().add(amount, 10.0 + amount)


def test_the_engine_learns_from_its_copies_that_they_do_not_pay(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, kv_pages=22, max_running=NUM, preemption=SWAP, prefix_cache=None)
    outside = engine.core._placement.offload
    outside._copying = Slow()
    engine.core._placement._block_tables._pool.transfers.on_copied = outside._copying.add
    ids = [engine.submit(p, max_tokens=NEW, ignore_eos=True)[0] for p in PROMPTS]
    answers = engine.run()
    calm = make_engine(folder, kv_pages=400)
    assert [answers[i].tokens for i in ids] == [
        calm.generate(p, max_tokens=NEW, ignore_eos=True) for p in PROMPTS
    ]
    assert engine.core.stats.preemptions > 1
    # The first one told.
    assert engine.core.stats.swaps == 1
    assert outside.costs.token_seconds < 1 < outside.costs.page_seconds


def test_a_swapped_sequence_that_is_aborted_leaves_nothing(make_engine: Make, folder: Path) -> None:
    engine = make_engine(folder)
    ids = [engine.submit(PROMPTS[i], max_tokens=20, ignore_eos=True)[0] for i in range(2)]
    for _ in range(5):
        engine.step()
    preempt(engine, ids[0])
    assert engine.core._placement.offload.swapped_pages == 2
    engine.core.abort([ids[0]])
    assert engine.core._placement.offload.swapped_pages == 0
    engine.run()
    engine.core.check()
    assert engine.core.stats.held_pages == 0


def test_of_what_is_swapped_the_prefix_cache_gives_what_it_still_has(
    make_engine: Make, folder: Path
) -> None:
    engine = make_engine(folder, page_size=4)
    (one,) = engine.submit(PROMPTS[0], max_tokens=30, ignore_eos=True)
    for _ in range(10):
        engine.step()
    before = list(engine.core._queue.find(one).pages)
    computed = int(engine.core._queue.view.num_computed[engine.core._queue.find(one).slot])
    preempt(engine, one)
    tokens = engine.core.stats.computed_tokens
    engine.step()
    assert engine.core._queue.find(one).pages[: computed // 4] == before[: computed // 4]
    assert engine.core.stats.computed_tokens == tokens + 1


@pytest.mark.parametrize("seed", few_of(range(4)))
def test_random_requests_with_random_preemptions_and_drafts(
    make_engine: Make, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(host_transfers, "_INLINE_BYTES", rng.choice([0, 1 << 20]))

    def any_one(self: Any, view: QueueView, candidates: NDArray[np.int32]) -> Victim:
        return Victim(int(rng.choice(candidates.tolist())), rng.choice(list(PreemptionMode)))

    monkeypatch.setattr("gatewayd_preempt_swap.strategy.Swap.victim", any_one)
    size = rng.choice([4, 16])
    engine = make_engine(
        folder,
        page_size=size,
        kv_pages=320 // size,
        max_batch_tokens=rng.choice([8, 40, 200]),
        max_running=12,
        prefix_cache=CACHES[seed % 3],
        preemption=SWAP,
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    alone = make_engine(folder, prefix_cache=None, kv_pages=200)
    asked: dict[int, tuple[list[int], dict[str, Any], int]] = {}
    for _ in range(200):
        if rng.random() < 0.3 and len(asked) < 40:
            prompt = [rng.randrange(2, 9) for _ in range(rng.randrange(1, 60))]
            fields: dict[str, Any] = {"max_tokens": rng.randrange(1, 40), "ignore_eos": True}
            if rng.random() < 0.3:
                fields |= {"temperature": 1.0, "seed": rng.randrange(2**63)}
            n = rng.choice([1, 1, 2])
            for choice, i in enumerate(engine.submit(prompt, n=n, **fields)):
                asked[i] = prompt, fields, choice
        running = list(engine.core._queue.running)
        if running and rng.random() < 0.2:
            victim = Victim(rng.choice(running), rng.choice(list(PreemptionMode)))
            engine.core._placement.preemption.preempt(victim)
        if engine.core.has_work:
            engine.step()
        engine.core.check()
    answers = engine.run()
    assert engine.core._placement.offload.swapped_pages == 0
    assert engine.core.stats.swaps > 3
    for i, (prompt, fields, choice) in asked.items():
        ids = alone.submit(prompt, n=choice + 1, **fields)
        assert answers[i].tokens == alone.run()[ids[choice]].tokens, i
