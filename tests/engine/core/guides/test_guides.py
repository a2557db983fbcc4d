"""Guided decoding: tokens are those of a model that may say nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import LENGTH, STOP
from gatewayd_engine.runner.cpu import Runner
from gatewayd_hooks.guiding import GuideSpec
from tests.engine.core.fake_drafters import Always, Drawn, Guess, guess_with
from tests.engine.core.fake_guide import (
    LISTS,
    PROMPT,
    Listed,
    allowed,
    by_hand,
    choice_of,
    text_of,
    with_guide,
)
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]


@pytest.fixture(scope="module")
def wanted(oracle: Callable[[Any], Any]) -> list[list[list[int]]]:
    """The right tokens of two prompts for each of the lists."""
    model = oracle(embedded.folder("nano"))
    return [[by_hand(model, prompt, one) for prompt in PROMPTS[:2]] for one in LISTS]


def check(engine: Any, wanted: list[list[list[int]]], **fields: Any) -> None:
    """All of them at once, among others that say what they like."""
    ids = [
        [engine.submit(p, max_tokens=60, guide=choice_of(*one), **fields) for p in PROMPTS[:2]]
        for one in LISTS
    ]
    free = engine.submit(PROMPTS[3], max_tokens=30, ignore_eos=True)
    done = engine.run()
    for asked, right in zip(ids, wanted, strict=True):
        for sequences, tokens in zip(asked, right, strict=True):
            for sequence in sequences:
                assert text_of(done[sequence].tokens) == text_of(tokens)
                assert done[sequence].tokens == tokens
                assert done[sequence].finished.reason == STOP
    assert len(done[free[0]].tokens) == 30


def test_tokens_equal_transformers(make_engine: Make, wanted: list[list[list[int]]]) -> None:
    guide = Listed()
    engine = with_guide(make_engine(), guide)
    check(engine, wanted)
    # Once for each list, whoever asks.
    assert len(guide.compiled) == len(LISTS)
    check(engine, wanted)
    assert len(guide.compiled) == len(LISTS)


def test_with_several_answers(make_engine: Make, wanted: list[list[list[int]]]) -> None:
    check(with_guide(make_engine()), wanted, n=3)


@pytest.mark.usefixtures("overlapping")
def test_with_steps_that_overlap(make_engine: Make, wanted: list[list[list[int]]]) -> None:
    check(with_guide(make_engine()), wanted, n=2)


def test_with_too_few_pages(make_engine: Make, wanted: list[list[list[int]]]) -> None:
    engine = with_guide(make_engine(page_size=2, kv_pages=72, max_batch_tokens=32))
    check(engine, wanted, n=2)
    assert engine.core.stats.preemptions


@pytest.mark.parametrize("drafter", ["ngram", "draft_model", "lookahead", "medusa", "forced"])
def test_with_drafts(make_engine: Make, wanted: list[list[list[int]]], drafter: str) -> None:
    engine = with_guide(make_engine(drafter=StrategyChoice(drafter)))
    check(engine, wanted)
    assert engine.core.stats.accepted_tokens


@pytest.mark.parametrize("shape", ["chain", "tree", "drawn"])
def test_with_wild_drafts(make_engine: Make, wanted: list[list[list[int]]], shape: str) -> None:
    known = [
        [*prompt, *tokens]
        for right in wanted
        for prompt, tokens in zip(PROMPTS[:2], right, strict=True)
    ]
    engine = make_engine(drafter=StrategyChoice("ngram"), spec_controller=StrategyChoice("fixed"))
    kind = Drawn if shape == "drawn" else Guess
    guess_with(engine, kind(known, 0.7, shape))
    check(with_guide(engine), wanted)
    assert engine.core.stats.draft_tokens > engine.core.stats.accepted_tokens > 0


def test_what_is_forced_takes_one_step(
    make_engine: Make, wanted: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = with_guide(make_engine())
    text = '{"alpha": ["beta", "gamma"], "delta": {"epsilon": null}}'
    tokens = engine.generate(PROMPT, max_tokens=60, guide=choice_of(text, "no"))
    stats = engine.core.stats
    assert text_of(tokens) in (text, "no")
    long = with_guide(make_engine())
    tokens = long.generate(PROMPT, max_tokens=60, guide=choice_of(text))
    monkeypatch.setattr(Runner, "overlaps", True)
    slow = with_guide(make_engine())
    assert slow.generate(PROMPT, max_tokens=60, guide=choice_of(text)) == tokens
    assert stats.step < slow.core.stats.step
    assert not slow.core.stats.draft_tokens


def test_sampled_answers_are_the_same_whatever_is_guessed(make_engine: Make) -> None:
    def ask(engine: Any) -> list[list[int]]:
        ids = [
            engine.submit(
                prompt, n=2, max_tokens=40, temperature=1.5, seed=i, guide=choice_of(*LISTS[i % 4])
            )
            for i, prompt in enumerate(PROMPTS)
        ]
        done = engine.run()
        for i, asked in enumerate(ids):
            for sequence in asked:
                assert text_of(done[sequence].tokens) in LISTS[i % 4]
        return [done[one].tokens for asked in ids for one in asked]

    plain = with_guide(make_engine())
    plain.core._runner._processors.forced_by_guide = lambda row: ()
    tokens = ask(plain)
    assert not plain.core.stats.draft_tokens
    assert ask(with_guide(make_engine())) == tokens
    assert ask(with_guide(make_engine(drafter=StrategyChoice("ngram")))) == tokens
    wild = guess_with(make_engine(drafter=StrategyChoice("ngram")), Always([], 0.0, "chain"))
    assert ask(with_guide(wild)) == tokens
    tight = with_guide(make_engine(page_size=2, kv_pages=72, max_batch_tokens=32))
    assert ask(tight) == tokens
    assert tight.core.stats.preemptions


@pytest.mark.parametrize("drafter", [None, StrategyChoice("ngram")])
def test_a_grammar_that_has_ended_ends_the_answer(
    make_engine: Make, drafter: StrategyChoice | None
) -> None:
    engine = with_guide(
        make_engine(
            drafter=drafter,
            logits_processors=[
                *(StrategyChoice(name) for name in ("penalties", "bias", "min_tokens")),
                StrategyChoice("watermark", {"secret": "0123456789abcdef0123456789abcdef"}),
            ],
        )
    )
    asked: list[dict[str, Any]] = [
        {"ignore_eos": True},
        {"min_tokens": 40},
        {"min_tokens": 40, "ignore_eos": True, "stop_token_ids": [900]},
        {"frequency_penalty": 2.0, "repetition_penalty": 5.0, "presence_penalty": 2.0},
        {"logit_bias": [(0, -100.0), (2, -100.0), (500, 100.0)]},
        {"temperature": 1.5, "top_p": 0.5, "top_k": 3, "min_p": 0.2, "seed": 5},
        {"logprobs": 3},
    ]
    ids = [engine.submit(PROMPT, max_tokens=60, guide=choice_of(*LISTS[1]), **a)[0] for a in asked]
    done = engine.run()
    for sequence in ids:
        assert text_of(done[sequence].tokens) in LISTS[1]
        assert done[sequence].finished.reason == STOP
        assert done[sequence].finished.stop_token in (0, 2)


def test_log_probabilities_are_those_of_the_raw_logits(make_engine: Make) -> None:
    engine = with_guide(make_engine())
    (told,) = engine.submit(PROMPT, max_tokens=60, guide=choice_of("zebra"), logprobs=0)
    answer = engine.run()[told]
    (free,) = engine.submit([*PROMPT, *answer.tokens], max_tokens=1, prompt_logprobs=0)
    raw = engine.run()[free].prompt_logprobs[-len(answer.tokens) :]
    assert [one.token for one in answer.logprobs] == [one.token for one in raw]
    assert [one.logprob for one in answer.logprobs] == pytest.approx(
        [one.logprob for one in raw], abs=1e-3
    )
    assert min(one.logprob for one in raw) < -2


def test_an_answer_ends_where_it_may_not_be_longer(make_engine: Make) -> None:
    engine = with_guide(make_engine())
    (sequence,) = engine.submit(PROMPT, max_tokens=3, guide=choice_of(LISTS[1][0]))
    answer = engine.run()[sequence]
    assert answer.finished.reason == LENGTH
    assert len(answer.tokens) == 3
    assert LISTS[1][0].startswith(text_of(answer.tokens))


def test_a_real_guide_says_what_a_loop_over_its_masks_says(
    make_engine: Make, oracle: Callable[[Any], Any]
) -> None:
    """Forms that no list can hold; the mask is the guide's own, all else is by hand."""
    schema = {
        "type": "object",
        "properties": {"kind": {"enum": ["a", "b"]}, "size": {"type": "integer"}},
        "required": ["kind", "size"],
        "additionalProperties": False,
    }
    specs = [GuideSpec("regex", "[a-f]{4}-[0-9]{3}"), GuideSpec("json_schema", json.dumps(schema))]
    model = oracle(embedded.folder("nano"))
    engine = make_engine(guide=StrategyChoice("llguidance"))
    guide = engine.core.strategies.guides._now.strategy
    for spec in specs:
        matcher = guide.compile(spec).start()
        tokens: list[int] = []
        mask = np.zeros(128, np.int32)
        while True:
            matcher.fill(mask)
            may = np.unpackbits(mask.view(np.uint8), bitorder="little").astype(bool)
            with torch.inference_mode():
                logits = model(torch.tensor([[*PROMPT, *tokens]])).logits[0, -1]
            token = int(logits.masked_fill(~torch.from_numpy(may), -torch.inf).argmax())
            assert matcher.accept([token]) == 1
            if token in (0, 2) or len(tokens) == 60:
                break
            tokens.append(token)
        assert engine.generate(PROMPT, max_tokens=60, guide=tuple(spec)) == tokens


def test_the_list_itself_is_right() -> None:
    assert text_of([*allowed(("no",), "")][:1]) == "n"
    assert allowed(("no",), "no") == (0, 2)
