"""Rolled-back draft steps: nothing undone is reported."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model.embedding_table import FloatTable
from gatewayd_engine.model.fused.data import StepOutputs
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.sampling import verified_drafts
from gatewayd_engine.state.step_batch import StepBatch
from tests.engine.core.fake_drafters import Broken, Guess, chain, guess_with
from tests.engine.core.prompts import PROMPTS, runner_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def speculating(make_engine: Make, **fields: Any) -> Any:
    return make_engine(
        drafter=StrategyChoice("ngram"),
        spec_controller=StrategyChoice("fixed", {"drafts": 4}),
        **fields,
    )


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
    report, failures = verified_drafts._report, 0

    def failing(tokens: Any, first: Any, batch: Any, *rest: Any) -> None:
        nonlocal failures
        if len(batch) > 1 and failures < 6:
            failures += 1
            raise RuntimeError("out of memory")
        report(tokens, first, batch, *rest)

    monkeypatch.setattr(verified_drafts, "_report", failing)
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
    forward, is_again = runner._forward, False

    def poisoned(batch: StepBatch, *rest: Any) -> StepOutputs:
        nonlocal is_again
        out: StepOutputs = forward(batch, *rest)
        if batch.drafts is None:
            if is_again and lasts:
                out.logits[0, 5] = out.best[0] = torch.nan
            is_again = False
            return out
        lines = np.flatnonzero(batch.samples)
        bad = np.flatnonzero(batch.sequences[lines] == ids[2])
        counts = batch.drafts.counts[lines]
        if len(bad) and counts[bad[0]]:
            out.logits[int((counts + 1)[: bad[0]].sum()) + 1, 5] = torch.nan
            is_again = True
        return out

    monkeypatch.setattr(runner, "_forward", poisoned)
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
        embeddings = decoder.embed(torch.arange(decoder.spec.vocab_size))
        embeddings[4000] = torch.nan
        # Engines share their decoder.
        runner_of(engine)._decoder = own = copy.copy(decoder)
        own._embedding = FloatTable(embeddings, decoder.dtype)
        return engine

    wishes = {"max_tokens": 20, "ignore_eos": True, "frequency_penalty": penalty}
    plain = broken().generate(PROMPTS[0], **wishes)
    engine = broken(
        drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("fixed", {"drafts": 3})
    )
    guess_with(engine, Broken(lambda batch: chain(batch, 4000), 0))
    assert engine.generate(PROMPTS[0], **wishes) == plain
    assert engine.core.stats.draft_tokens > 20
