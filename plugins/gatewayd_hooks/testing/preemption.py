"""Conformance tests of preemption strategies, for any policy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gatewayd_hooks.preemption import PreemptionMode, PreemptionStrategy
from gatewayd_hooks.scheduling import QueueView
from gatewayd_hooks.testing.fakes import engine_resources
from gatewayd_hooks.testing.samples.campaign import campaign

_SLOTS = 32


@st.composite
def _views(draw: st.DrawFn) -> QueueView:
    """Draw a queue with running sequences, in any order of admission."""
    slots = list(range(_SLOTS))
    running = draw(st.lists(st.sampled_from(slots), min_size=1, max_size=12, unique=True))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    num_tokens = random.integers(1, 1000, _SLOTS).astype(np.int32)
    return QueueView(
        running=np.array(running, np.int32),
        num_tokens=num_tokens,
        num_computed=random.integers(0, num_tokens).astype(np.int32),
        priority=random.integers(0, 3, _SLOTS).astype(np.int8),
        tenant=random.integers(0, 4, _SLOTS).astype(np.int32),
        # Few distinct values: arrivals may be equal.
        arrival=random.integers(0, 8, _SLOTS).astype(np.float64),
        token_budget=128,
        max_running=12,
        free_pages=0,
        page_size=16,
        uncached=lambda slot: 1,
    )


class PreemptionConformance:
    """Subclass it and build your strategy in ``make``."""

    def make(self) -> PreemptionStrategy:
        """Build the strategy; the tests open and close it."""
        raise NotImplementedError("return your strategy, built and not opened")

    @contextmanager
    def opened(self) -> Iterator[PreemptionStrategy]:
        """Yield an opened strategy."""
        strategy = self.make()
        try:
            strategy.open(engine_resources())
            yield strategy
        finally:
            strategy.close()

    def test_closing_it_unopened_is_harmless(self) -> None:
        self.make().close()

    @campaign
    @given(view=_views(), data=st.data())
    def test_the_victim_is_one_of_the_candidates(
        self, view: QueueView, data: st.DataObject
    ) -> None:
        mask = data.draw(st.lists(st.booleans(), min_size=12, max_size=12))
        chosen = np.array(mask[: len(view.running)])
        candidates = view.running[chosen] if chosen.any() else view.running
        with self.opened() as strategy:
            victim = strategy.victim(view, candidates)
        assert victim.slot in candidates.tolist()
        assert isinstance(victim.mode, PreemptionMode)

    @campaign
    @given(view=_views())
    def test_repeated_choices_end_with_an_empty_batch(self, view: QueueView) -> None:
        """Each victim leaves the batch, as in an engine that needs many pages at once."""
        with self.opened() as strategy:
            for left in range(len(view.running), 0, -1):
                victim = strategy.victim(view, view.running)
                view.running = view.running[view.running != victim.slot]
                assert len(view.running) == left - 1

    @campaign
    @given(view=_views())
    def test_the_view_is_not_modified(self, view: QueueView) -> None:
        columns = [
            column
            for field in fields(view)
            if isinstance(column := getattr(view, field.name), np.ndarray)
        ]
        for column in columns:
            column.flags.writeable = False
        with self.opened() as strategy:
            strategy.victim(view, view.running)
