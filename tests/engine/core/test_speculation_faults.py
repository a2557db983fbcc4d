"""Drafters and controllers that break their contract lose no request and change no token."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.config import StrategyChoice
from gatewayd_hooks.speculation import DraftBatch, Drafts
from gatewayd_hooks.strategy import Kind
from tests.engine.core.guessing import VOCAB, Guess, guess_with, seat
from tests.engine.core.prompts import PROMPTS, answers, runner_of

Make = Callable[..., Any]


def chain(batch: DraftBatch, token: int = 7, **changes: Any) -> Drafts:
    n, width = len(batch.rows), int(batch.limits.max())
    good = Drafts(np.full((n, width), token, np.int32), batch.limits.astype(np.int32))
    return good._replace(**{name: change(good) for name, change in changes.items()})


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


class Broken(Guess):
    """Guesses well, and then or always does something else.

    Args:
        propose: what it does.
        after: guesses before that.
    """

    def __init__(self, propose: Callable[[DraftBatch], Any], after: int) -> None:
        super().__init__([], 0.0, "chain")
        self._broken = propose
        self._after = after

    def propose(self, batch: DraftBatch) -> Drafts:
        self._after -= 1
        if self._after >= 0:
            return super().propose(batch)
        answer: Drafts = self._broken(batch)
        return answer


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


def test_a_step_that_fails_is_done_again_as_if_processors_had_heard_nothing(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step fails behind the verification, when penalties have counted its drafts."""
    wishes = {"max_tokens": 16, "ignore_eos": True, "frequency_penalty": 1.5}

    def run(engine: Any) -> list[list[int]]:
        ids = [engine.submit(prompt, **wishes)[0] for prompt in PROMPTS]
        done = engine.run()
        return [done[i].tokens for i in ids]

    plain = run(make_engine())
    engine = speculating(make_engine)
    known = [prompt + answer for prompt, answer in zip(PROMPTS, plain, strict=True)]
    guess_with(engine, Guess(known, 0.9, "chain"))
    runner = runner_of(engine)
    report, failures = runner._report_tokens, 0

    def failing(tokens: Any, first: Any, batch: Any, logits: Any, result: Any) -> None:
        nonlocal failures
        if len(batch) > 1 and failures < 6:
            failures += 1
            raise RuntimeError("out of memory")
        report(tokens, first, batch, logits, result)

    monkeypatch.setattr(runner, "_report_tokens", failing)
    assert run(engine) == plain
    assert failures == 6


@pytest.mark.parametrize("lasts", [False, True])
def test_a_nan_behind_a_draft_is_looked_at_again_without_it(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch, lasts: bool
) -> None:
    """If it was the draft's, nothing has happened; if it stays, the request fails alone."""
    engine = speculating(make_engine)
    known = [prompt + answer for prompt, answer in zip(PROMPTS, undisturbed, strict=True)]
    guess_with(engine, Guess(known, 1.0, "chain"))
    runner = runner_of(engine)
    project, verify = runner._decoder.logits, runner._verify

    def poisoned(batch: Any, lines: Any, hidden: Any, result: Any) -> None:
        def logits(of: torch.Tensor) -> torch.Tensor:
            scores: torch.Tensor = project(of)
            bad = np.flatnonzero(batch.sequences[lines] == ids[2])
            counts = batch.drafts.counts[lines]
            if len(bad) and counts[bad[0]]:
                if len(of) > 1:
                    scores[int((counts + 1)[: bad[0]].sum()) + 1, 5] = torch.nan
                elif lasts:
                    scores[0, 5] = torch.nan
            return scores

        monkeypatch.setattr(runner._decoder, "logits", logits)
        verify(batch, lines, hidden, result)
        monkeypatch.setattr(runner._decoder, "logits", project)

    monkeypatch.setattr(runner, "_verify", poisoned)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    done = engine.run()
    for k, i in enumerate(ids):
        if lasts and k == 2:
            assert done[i].finished.error[0] == "numerical_error"
        else:
            assert done[i].tokens == undisturbed[k]


@pytest.mark.parametrize("penalty", [0.0, 0.001])
def test_a_draft_that_the_model_has_no_numbers_for_costs_no_token(
    make_engine: Make, penalty: float
) -> None:
    """Nobody would have computed that token: neither it nor what it leaves in pages may matter."""

    def broken(**fields: Any) -> Any:
        engine = make_engine(prefix_cache=None, **fields)
        decoder = runner_of(engine)._decoder
        embedding = decoder._embedding.clone()
        embedding[4000] = torch.nan
        # Engines share their decoder.
        runner_of(engine)._decoder = own = copy.copy(decoder)
        own._embedding = embedding
        return engine

    wishes = {"max_tokens": 20, "ignore_eos": True, "frequency_penalty": penalty}
    plain = broken().generate(PROMPTS[0], **wishes)
    engine = broken(
        drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("fixed", {"drafts": 3})
    )
    guess_with(engine, Broken(lambda batch: chain(batch, 4000), 0))
    assert engine.generate(PROMPTS[0], **wishes) == plain
    assert engine.core.stats.draft_tokens > 20


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
