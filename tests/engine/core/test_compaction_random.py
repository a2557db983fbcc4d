"""Pages of sequences whose prompts become shorter, against what each must hold; in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.fronts import NO_PAGE
from gatewayd_engine.kv.biases import bias_pages
from gatewayd_hooks.kv_compression import Compaction
from gatewayd_hooks.preemption import PreemptionMode
from gatewayd_hooks.strategy import Kind
from gatewayd_kvc_matching.strategy import Matching
from tests.engine.core import conftest
from tests.engine.core.small import small
from tests.engine.core.swapping import swap
from tests.engine.core.test_swapped import preempt

PAGES, SIZE = 44, 8
MATCHING = StrategyChoice("matching", {"at_least": 64, "recent": 5, "queries": 16, "ratio": 4})
FEW = StrategyChoice("heavy", {"at_least": 16, "warm_steps": 1, "every": 5})
SHARED = [7 + i % 90 for i in range(70)]
BROKEN: dict[str, tuple[str, Callable[..., Any]]] = {
    "plan raises": ("plan", lambda self, *args: 1 / 0),
    "plan repeats": ("plan", lambda self, rows, *rest: 2 * [Compaction(rows[0], 64, 16)]),
    "compact raises": ("compact", lambda self, *args: 1 / 0),
}


class Shortened(RuleBasedStateMachine):
    """Requests come, go, give way and begin anew while prompts become shorter, or cease to."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = conftest.build(
            small(),
            kv_compression=MATCHING,
            kv_codec=StrategyChoice("int8"),
            kv_pages=PAGES,
            page_size=SIZE,
            max_running=6,
            max_batch_tokens=128,
            fault_limit=1000,
        )
        self.core = self.engine.core
        self.live: list[int] = []

    @rule(
        shared=st.sampled_from([0, 40, 70]),
        own=st.integers(1, 90),
        n=st.sampled_from([1, 1, 1, 3]),
        most=st.integers(1, 30),
    )
    def submit(self, shared: int, own: int, n: int, most: int) -> None:
        prompt = SHARED[:shared] + [11 + (shared + own * i) % 97 for i in range(own)]
        self.live += self.engine.submit(prompt, n=n, max_tokens=most, ignore_eos=True)

    @precondition(lambda self: self.core.has_work)
    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.engine.step()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.live))
        self.live.remove(one)
        self.core.abort([one])

    @precondition(lambda self: self.core._queue.running)
    @rule(data=st.data(), mode=st.sampled_from(list(PreemptionMode)))
    def give_way(self, data: st.DataObject, mode: PreemptionMode) -> None:
        slot = data.draw(st.sampled_from(sorted(self.core._queue.running)))
        preempt(self.engine, self.core._queue[slot].id, mode)

    @rule(choice=st.sampled_from([None, MATCHING, MATCHING, FEW]))
    def swap(self, choice: StrategyChoice | None) -> None:
        swap(self.engine, Kind.KV_COMPRESSION, *([] if choice is None else [choice]))

    @rule(name=st.sampled_from(list(BROKEN)))
    def fail_for_a_while(self, name: str) -> None:
        method, broken = BROKEN[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Matching, method, broken)
            for _ in range(2):
                if self.core.has_work:
                    self.engine.step()

    @invariant()
    def each_holds_what_it_must(self) -> None:
        self.core.check()
        held: Counter[int] = Counter()
        computed = self.core._queue.view.num_computed
        pool = self.core._placement.shortening._pool
        for one in self.core._queue:
            held.update(one.inherited)
            if one.row < 0:
                assert not one.pages
                assert one.front is None
                continue
            first = 0
            if (front := one.front) is not None:
                num_few, first = front.kept // SIZE, front.covered // SIZE
                end = num_few + bias_pages(pool, front.kept)
                assert list(front.bias) == one.pages[num_few:end]
                assert set(one.pages[end:first]) == {NO_PAGE}
                own = one.pages[:end] + one.pages[first:]
                few = one.pages[:num_few] + one.pages[first:]
                assert all(self.core._pages.num_holders(page) == 1 for page in own[:end])
            else:
                own = few = one.pages
            assert NO_PAGE not in own
            assert len(set(own)) == len(own)
            assert len(one.pages) * SIZE >= computed[one.slot]
            table = self.core._rows.block_table[one.row, : len(few)]
            assert table.tolist() == few
            held.update(own)
        holders = self.core._pages.holders()
        assert {page: int(holders[page]) for page in np.flatnonzero(holders).tolist()} == held

    @invariant()
    def whoever_gets_a_page_reads_numbers(self) -> None:
        pool = self.core._placement.shortening._pool
        biases = [page for one in self.core._queue if one.front for page in one.front.bias]
        others = np.setdiff1d(np.arange(PAGES), biases)
        assert pool.codec is not None
        assert bool(pool.codec.decode(pool.data[others]).isfinite().all())

    def teardown(self) -> None:
        done = self.engine.run()
        ended = [done[i].finished for i in self.live]
        assert all(one is not None and one.error is None for one in ended)
        self.core.check()
        stats = self.core.stats
        assert (stats.held_pages, stats.free_pages + stats.cached_pages) == (0, PAGES)
        assert self.core._placement.outside.kept_pages == 0
        self.core.strategies.close()


TestShortened = Shortened.TestCase
TestShortened.settings = settings(max_examples=12, stateful_step_count=30, deadline=None)
