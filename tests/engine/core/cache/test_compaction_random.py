"""Prompt compaction: page contents against a model, in random order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.kv.compacted_prefix import NO_PAGE
from gatewayd_engine.kv.key_biases import bias_pages
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.kv_compression import Compaction
from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.strategy import Kind
from gatewayd_kvc_matching.strategy import Matching
from tests.engine.core.cache.test_compaction_faults import odd_biases
from tests.engine.core.hot_swaps import swap
from tests.engine.core.scheduling.test_swap_preemption import preempt
from tests.random_cases import few_of

__all__ = ["odd_biases"]

Make = Callable[..., Any]
PAGES, SIZE = 44, 8
MATCHING = StrategyChoice("matching", {"at_least": 64, "recent": 5, "queries": 16, "ratio": 4})
FEW = StrategyChoice("heavy", {"at_least": 16, "warm_steps": 1, "every": 5})
SHARED = [7 + i % 90 for i in range(70)]
BROKEN: list[tuple[str, Callable[..., Any]]] = [
    ("plan", lambda self, *args: 1 / 0),
    ("plan", lambda self, rows, *rest: 2 * [Compaction(rows[0], 64, 16)]),
    ("compact", lambda self, *args: 1 / 0),
]


class Shortened:
    """Requests come, go, give way and begin anew while prompts become shorter, or cease to."""

    def __init__(self, engine: Any, seed: int) -> None:
        self.engine, self.core = engine, engine.core
        self.rng = random.Random(seed)
        self.live: list[int] = []

    def act(self) -> None:
        """Do one of all that can be done."""
        acts = [self.submit, self.step, self.abort, self.give_way, self.swap, self.fail_for_a_while]
        self.rng.choices(acts, [6, 10, 2, 4, 1, 2])[0]()

    def submit(self) -> None:
        rng = self.rng
        prompt = SHARED[: rng.choice([0, 40, 70])]
        prompt = prompt + [rng.randrange(5, 300) for _ in range(rng.choice([3, 30, 66, 95]))]
        self.live += self.engine.submit(
            prompt, n=rng.choice([1, 1, 1, 1, 3]), max_tokens=rng.randint(1, 40), ignore_eos=True
        )

    def step(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            if self.core.has_work:
                self.engine.step()

    def abort(self) -> None:
        if self.live:
            one = self.live.pop(self.rng.randrange(len(self.live)))
            self.core.abort([one])

    def give_way(self) -> None:
        if self.core._queue.running:
            slot = self.rng.choice(list(self.core._queue.running))
            mode = self.rng.choice(list(PreemptionMode))
            preempt(self.engine, self.core._queue[slot].id, mode)

    def swap(self) -> None:
        for choice in (self.rng.choice([None, FEW]), MATCHING):
            swap(self.engine, Kind.KV_COMPRESSION, *([] if choice is None else [choice]))
            self.step()

    def fail_for_a_while(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Matching, *self.rng.choice(BROKEN))
            self.submit()
            self.step()

    def check(self) -> None:
        """Compare pages with what each sequence must hold, and what is in those of nobody."""
        self.core.check()
        pool = self.core._placement.shortening._pool
        held: Counter[int] = Counter()
        biases: list[int] = []
        for one in self.core._queue:
            held.update(one.inherited)
            if one.row < 0:
                assert not one.pages
                assert one.front is None
                continue
            own = few = one.pages
            if (front := one.front) is not None:
                num_few, first = front.kept // SIZE, front.covered // SIZE
                end = num_few + bias_pages(pool, front.kept)
                assert list(front.bias) == one.pages[num_few:end]
                assert set(one.pages[end:first]) == {NO_PAGE}
                own = one.pages[:end] + one.pages[first:]
                few = one.pages[:num_few] + one.pages[first:]
                assert all(self.core._pages.num_holders(page) == 1 for page in own[:end])
                biases += front.bias
            assert NO_PAGE not in own
            assert len(set(own)) == len(own)
            assert len(one.pages) * SIZE >= self.core._queue.view.num_computed[one.slot]
            assert self.core._rows.block_table[one.row, : len(few)].tolist() == few
            held.update(own)
        holders = self.core._pages.holders()
        assert {page: int(holders[page]) for page in np.flatnonzero(holders).tolist()} == held
        # Whoever gets another page reads beyond its own tokens there.
        others = np.setdiff1d(np.arange(PAGES), biases)
        assert bool(pool.codec.decode(pool.data[others]).isfinite().all())


@pytest.mark.usefixtures("small_model", "odd_biases")
@pytest.mark.parametrize("seed", few_of(range(2)))
def test_each_holds_what_it_must_whatever_happens(make_engine: Make, seed: int) -> None:
    engine = make_engine(
        kv_compression=MATCHING,
        kv_codec=StrategyChoice("int8"),
        prefix_cache=StrategyChoice(["hash", "radix"][seed % 2]),
        kv_pages=PAGES,
        page_size=SIZE,
        max_running=6,
        max_batch_tokens=128,
        fault_limit=1000,
    )
    crowd = Shortened(engine, seed)
    for _ in range(100):
        crowd.act()
        crowd.check()
    done = engine.run()
    assert {done[i].finished.error for i in crowd.live} == {None}
    crowd.check()
    stats = engine.core.stats
    assert (stats.held_pages, stats.free_pages + stats.cached_pages) == (0, PAGES)
    assert engine.core._placement.offload.swapped_pages == 0
    assert stats.compactions > 8
    assert stats.swaps > 3
    assert stats.faults > 0
