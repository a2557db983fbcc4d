"""Speculation faults: broken drafters and controllers lose no request and no token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.speculation import DraftBatch, Drafts
from gatewayd_hooks.strategy import Kind
from tests.engine.core.fake_drafters import VOCAB, Broken, Guess, chain, guess_with, seat
from tests.engine.core.prompts import PROMPTS, answers

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def uniform_probs(drafts: Drafts) -> torch.Tensor:
    return torch.full((*drafts.tokens.shape, VOCAB), 1 / VOCAB)


NONSENSE: dict[str, Callable[[DraftBatch], Any]] = {
    "raises": lambda batch: 1 / 0,
    "nothing": lambda batch: None,
    "too many": lambda batch: chain(batch, counts=lambda d: d.counts + 1),
    "fewer than none": lambda batch: chain(batch, counts=lambda d: d.counts - 99),
    "more than it guessed": lambda batch: chain(batch, tokens=lambda d: d.tokens[:, :0]),
    "rows missing": lambda batch: chain(batch, tokens=lambda d: d.tokens[1:]),
    "no tokens of the model": lambda batch: chain(batch, token=VOCAB),
    "negative tokens": lambda batch: chain(batch, token=-1),
    "no integers": lambda batch: chain(batch, tokens=lambda d: d.tokens * 1.0),
    "a parent behind its child": lambda batch: chain(
        batch, parents=lambda d: np.full(d.tokens.shape, 3, np.int32)
    ),
    "no such parent": lambda batch: chain(
        batch, parents=lambda d: np.full(d.tokens.shape, -2, np.int32)
    ),
    "parents of another shape": lambda batch: chain(batch, parents=lambda d: d.counts),
    "probabilities of another shape": lambda batch: chain(
        batch, probs=lambda d: uniform_probs(d)[..., :9]
    ),
    "probabilities that are more than one": lambda batch: chain(
        batch, probs=lambda d: uniform_probs(d) * 2
    ),
    "probabilities that are no numbers": lambda batch: chain(
        batch, probs=lambda d: uniform_probs(d) * torch.nan
    ),
    "a tree that was drawn": lambda batch: chain(
        batch, parents=lambda d: np.full(d.tokens.shape, -1, np.int32), probs=uniform_probs
    ),
}


def speculating(make_engine: Make, **fields: Any) -> Any:
    return make_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 4}),
        **fields,
    )


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("after", [0, 3])
def test_a_drafter_that_talks_nonsense_costs_no_token(
    make_engine: Make, undisturbed: list[list[int]], what: str, after: int
) -> None:
    engine = speculating(make_engine)
    guess_with(engine, Broken(NONSENSE[what], after))
    # Probabilities are looked at where they are used: for requests that sample without a seed.
    (sampled,) = engine.submit(PROMPTS[0], max_tokens=12, temperature=1.0, ignore_eos=True)
    assert answers(engine) == undisturbed
    assert len(engine.answers[sampled].tokens) == 12
    assert engine.core.stats.faults == 1


@pytest.mark.parametrize("what", ["raises", "too many", "no tokens of the model"])
def test_a_drafter_that_never_learns_is_quarantined(
    make_engine: Make, undisturbed: list[list[int]], what: str
) -> None:
    engine = speculating(make_engine)
    strategies = engine.core.strategies
    bind = strategies.bind_configured

    def broken_again(kind: Kind) -> None:
        bind(kind)
        seat(strategies, kind, Broken(NONSENSE[what], 0))

    strategies.bind_configured = broken_again
    guess_with(engine, Broken(NONSENSE[what], 0))
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 3
    assert Kind.DRAFTER not in strategies.bound
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 3


def test_a_drafter_may_not_write_to_the_tokens(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    def scribble(batch: DraftBatch) -> Drafts:
        batch.tokens[:] = 0
        return chain(batch)

    engine = guess_with(speculating(make_engine), Broken(scribble, 0))
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 1


@pytest.mark.parametrize("method", ["admit", "observe", "learn"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_drafter_that_raises_elsewhere_costs_no_token(
    make_engine: Make, undisturbed: list[list[int]], method: str, after: int
) -> None:
    left = after

    def raising(*arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("no")

    kind = type("Elsewhere", (Guess,), {method: lambda self, *arguments: raising(*arguments)})
    drafter = kind([], 0.0, "chain")
    engine = guess_with(speculating(make_engine), drafter)
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 1


DECISIONS: dict[str, Callable[[Any], Any]] = {
    "raises": lambda view: 1 / 0,
    "nothing": lambda view: None,
    "rows missing": lambda view: np.zeros(0, np.int64),
    "no integers": lambda view: np.ones(len(view.rows)),
    "fewer than none": lambda view: np.full(len(view.rows), -1),
    "more than a row can use": lambda view: view.limits + 1,
    "more than there are": lambda view: np.minimum(view.limits, view.budget),
}


@pytest.mark.parametrize("what", DECISIONS)
def test_a_controller_that_decides_nonsense_costs_no_token(
    make_engine: Make, undisturbed: list[list[int]], what: str
) -> None:
    engine = speculating(make_engine, max_batch_tokens=16)
    engine.core.strategies.bound[Kind.SPEC_CONTROLLER].decide = DECISIONS[what]
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 1


def test_a_controller_that_cannot_learn_costs_no_token(
    make_engine: Make, undisturbed: list[list[int]]
) -> None:
    engine = speculating(make_engine)
    engine.core.strategies.bound[Kind.SPEC_CONTROLLER].report = lambda report: 1 / 0
    assert answers(engine) == undisturbed
    assert engine.core.stats.faults == 1


class Scribbler(Guess):
    """Writes to what it is shown, and answers as if that had been allowed."""

    def propose(self, batch: DraftBatch) -> Drafts:
        batch.limits[:] = 40
        return chain(batch)


def test_a_drafter_cannot_raise_its_own_limits(make_engine: Make) -> None:
    prompt = list(range(40, 90))
    plain = make_engine().generate(prompt, max_tokens=6, ignore_eos=True)
    engine = speculating(make_engine, max_model_len=56, prefix_cache=None)
    guess_with(engine, Scribbler([], 0.0, "chain"))
    assert engine.generate(prompt, max_tokens=6, ignore_eos=True) == plain
    assert engine.core.stats.faults == 1


def test_a_controller_cannot_raise_limits(make_engine: Make) -> None:
    def decide(view: Any) -> Any:
        view.limits[:] = 40
        return view.limits

    prompt = list(range(40, 90))
    plain = make_engine().generate(prompt, max_tokens=6, ignore_eos=True)
    engine = speculating(make_engine, max_model_len=56, prefix_cache=None)
    engine.core.strategies.bound[Kind.SPEC_CONTROLLER].decide = decide
    assert engine.generate(prompt, max_tokens=6, ignore_eos=True) == plain
    assert engine.core.stats.faults == 1
