"""Hidden state feedback: drafters see every settled state once, in order, when needed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.speculation import feedback
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.speculation import DraftBatch, Drafts, Features
from gatewayd_hooks.strategy import Kind
from tests.engine.core.fake_drafters import Guess, guess_with
from tests.engine.core.hot_swaps import swap
from tests.engine.core.prompts import PROMPTS

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


class Watching(Guess):
    """Guesses, and looks at what it is shown: whole at any time that it is to guess."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls = 0
        self.seen: dict[int, dict[int, int]] = defaultdict(dict)
        self.states: dict[tuple[int, ...], torch.Tensor] = {}
        self._hidden: dict[tuple[int, int], torch.Tensor] = {}

    def admit(self, row: int) -> None:
        self.seen[row].clear()

    def observe(self, features: Features) -> None:
        self.calls += 1
        rows = features.rows
        is_same = rows[1:] == rows[:-1]
        assert len(np.unique(rows)) == 1 + np.count_nonzero(~is_same)
        assert (np.diff(features.positions)[is_same] == 1).all()
        for i, row in enumerate(rows.tolist()):
            position = int(features.positions[i])
            if not position:
                self.seen[row].clear()  # preempted, and back
            assert position == len(self.seen[row]), "a gap"
            self.seen[row][position] = int(features.ids[i])
            self._hidden[row, position] = features.hidden[i]

    def propose(self, batch: DraftBatch) -> Drafts:
        for row, length in zip(batch.rows.tolist(), batch.lengths.tolist(), strict=True):
            own = batch.tokens[row, :length].tolist()
            assert list(self.seen[row].values()) == own[:-1]
            self.states[tuple(own[:-1])] = self._hidden[row, length - 2]
        return super().propose(batch)


def watched(make_engine: Make, drafts: int, shape: str, **fields: Any) -> tuple[Any, Watching]:
    known = [prompt + make_engine().generate(prompt, max_tokens=40) for prompt in PROMPTS[:4]]
    engine = make_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": drafts}),
        prefix_cache=None,
        **fields,
    )
    drafter = Watching(known, 0.7, shape)
    return guess_with(engine, drafter), drafter


def run(engine: Any) -> None:
    for prompt in PROMPTS[:4]:
        engine.submit(prompt, max_tokens=40, ignore_eos=True)
    engine.run()
    assert engine.core.strategies.num_faults == 0


@pytest.mark.parametrize("shape", ["chain", "tree"])
@pytest.mark.parametrize(
    "fields", [{}, {"kv_pages": 14, "max_batch_tokens": 16}], ids=["calm", "preempted"]
)
def test_all_of_a_row_is_seen_whenever_it_is_guessed_for(
    make_engine: Make, shape: str, fields: dict[str, Any]
) -> None:
    engine, drafter = watched(make_engine, 4, shape, **fields)
    run(engine)
    assert len(drafter.states) > 20
    assert bool(engine.core.stats.preemptions) == bool(fields)


def test_kept_drafts_show_the_states_of_a_run_without_drafts(make_engine: Make) -> None:
    engine, drafter = watched(make_engine, 4, "tree")
    run(engine)
    slow, plain = watched(make_engine, 1, "chain")
    plain._right = 0.0
    run(slow)
    common = drafter.states.keys() & plain.states.keys()
    assert len(common) > 20
    for tokens in common:
        torch.testing.assert_close(
            drafter.states[tokens], plain.states[tokens], rtol=1e-3, atol=1e-3
        )


def test_who_is_not_to_guess_is_shown_many_steps_at_once(make_engine: Make) -> None:
    engine, drafter = watched(make_engine, 0, "chain")
    (one,) = engine.submit(PROMPTS[0], max_tokens=100, ignore_eos=True)
    engine.run()
    assert len(engine.answers[one].tokens) == 100
    assert 3 <= drafter.calls <= 6
    # What an ended sequence still had to show is not shown to its successor's row.
    run(engine)


@pytest.mark.parametrize("max_batch_tokens", [1, 512])
def test_a_row_that_is_begun_again_is_shown_in_order(
    make_engine: Make, max_batch_tokens: int
) -> None:
    engine, drafter = watched(make_engine, 0, "chain", max_batch_tokens=max_batch_tokens)
    (one,) = engine.submit(PROMPTS[0], max_tokens=60, ignore_eos=True)
    while len(engine.answers[one].tokens) < 10:
        engine.step()
    slot = engine.core._queue.find(one).slot
    engine.core._placement.preemption.preempt(Victim(slot, PreemptionMode.RECOMPUTE))
    engine.run()
    assert engine.core.strategies.num_faults == 0
    assert len(drafter.seen[0]) > len(PROMPTS[0]) + 10


def test_what_waits_for_one_drafter_is_not_shown_to_the_next(make_engine: Make) -> None:
    engine = make_engine(  # for this one there are heads
        embedded.folder("nano"),
        drafter=StrategyChoice("medusa"),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )
    (one,) = engine.submit(PROMPTS[0], max_tokens=40, ignore_eos=True)
    while len(engine.answers[one].tokens) < 6:
        engine.step()
    swap(engine, Kind.DRAFTER, StrategyChoice("ngram"))
    engine.run()
    assert engine.core.strategies.num_faults == 0
    assert len(engine.answers[one].tokens) == 40


def test_large_states_do_not_wait(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feedback, "_MOST_BYTES", 2000)
    engine, drafter = watched(make_engine, 0, "chain")
    engine.generate(PROMPTS[0], max_tokens=9, ignore_eos=True)
    assert drafter.calls >= 4
