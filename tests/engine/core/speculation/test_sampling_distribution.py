"""Sampling with drafts: the model's distribution for every drafter (chi-square)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from tokenizers import Tokenizer

from gatewayd_engine.model import embedded
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.strategy import Kind
from tests.engine.core.fake_drafters import Drawn, guess_with
from tests.engine.core.models.test_strategy_combinations import names

Make = Callable[..., Any]

ASKED = "<|im_start|>user\nWhat does {} do?<|im_end|>\n<|im_start|>assistant\n"
MERGE = "heapq.merge", "Merge multiple sorted inputs into a single sorted output."
BISECT = "bisect.bisect_left", "Return the index where to insert item x in list a, assuming a is"
TEMPERATURE, TOP_K, LENGTH = 4.0, 3, 4
DRAFTERS = [name for name in names(Kind.DRAFTER) if name != "forced"]


def prompt_for(drafter: str) -> list[int]:
    """Asks again what was answered just now, so that the drafter's guesses are often right."""
    name, answer = BISECT if drafter == "eagle" else MERGE
    asked = ASKED.format(name)
    tokenizer = Tokenizer.from_file(str(embedded.folder("nano") / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(f"{asked}{answer}<|im_end|>\n{asked}").ids
    return ids


@pytest.fixture
def wanted(oracle: Callable[..., Any], drafter: str) -> dict[tuple[int, ...], float]:
    """The probability of each answer, from transformers' logits, a length at a time."""
    model, prompt = oracle(embedded.folder("nano")), prompt_for(drafter)
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(LENGTH):
        grown = {}
        with torch.no_grad():
            last = model(torch.tensor([prompt + list(prefix) for prefix in found])).logits[:, -1]
        for (prefix, probability), logits in zip(found.items(), last.double(), strict=True):
            best, ids = logits.topk(TOP_K)
            for token, share in zip(
                ids.tolist(), torch.softmax(best / TEMPERATURE, -1).tolist(), strict=True
            ):
                grown[*prefix, token] = probability * share
        found = grown
    return found


def drawn(engine: Any, prompt: list[int], draws: int) -> Counter[tuple[int, ...]]:
    """So many answers to the prompt, 64 at a time."""
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(draws // 64):
        ids = engine.submit(
            prompt,
            n=64,
            max_tokens=LENGTH,
            temperature=TEMPERATURE,
            top_k=TOP_K,
            ignore_eos=True,
        )
        done = engine.run()
        counts.update(tuple(done[i].tokens) for i in ids)
        engine.answers.clear()
    return counts


def p_value(counts: Counter[tuple[int, ...]], wanted: dict[tuple[int, ...], float]) -> float:
    """Answers that are too rare to count are counted together."""
    total = sum(counts.values())
    assert set(counts) <= set(wanted)
    often = [answer for answer, share in wanted.items() if share * total >= 5]
    seen = [counts[answer] for answer in often]
    expected = [wanted[answer] * total for answer in often]
    rest = total - sum(expected)
    if rest >= 5:
        seen.append(total - sum(seen))
        expected.append(rest)
    else:
        expected = [share * sum(seen) / sum(expected) for share in expected]
    return float(stats.chisquare(seen, expected).pvalue)


def engine_with(make_engine: Make, drafter: str) -> Any:
    # Little is sure after such a prompt, and all that is drawn is to be looked at.
    settings = {"min_confidence": 0.0} if drafter == "draft_model" else {}
    return make_engine(
        drafter=StrategyChoice(drafter, settings),
        spec_controller=StrategyChoice("fixed", {"drafts": 3}),
    )


@pytest.mark.parametrize("drafter", ["draft_model", "scripted"])
def test_a_thousand_draws(
    make_engine: Make, wanted: dict[tuple[int, ...], float], drafter: str
) -> None:
    engine = engine_with(make_engine, "ngram" if drafter == "scripted" else drafter)
    if drafter == "scripted":
        # From all of the vocabulary, so that nearly all of it is refused.
        guess_with(engine, Drawn([], 0.0, "chain"))
    assert p_value(drawn(engine, prompt_for(drafter), 1_024), wanted) > 0.01
    assert engine.core.stats.draft_tokens > 200


@pytest.mark.parametrize("drafter", ["ngram"])
def test_the_chi_square_sees_another_temperature(
    make_engine: Make, wanted: dict[tuple[int, ...], float], drafter: str
) -> None:
    flatter = {answer: share**0.6 for answer, share in wanted.items()}
    total = sum(flatter.values())
    other = {answer: share / total for answer, share in flatter.items()}
    assert (
        p_value(drawn(engine_with(make_engine, drafter), prompt_for(drafter), 1_024), other) < 0.01
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_hundred_thousand_draws(
    make_engine: Make, wanted: dict[tuple[int, ...], float], drafter: str
) -> None:
    engine = engine_with(make_engine, drafter)
    assert p_value(drawn(engine, prompt_for(drafter), 100_032), wanted) > 0.01
    stats_ = engine.core.stats
    print(f"{drafter}: {stats_.accepted_tokens} of {stats_.draft_tokens} drafts kept")
    assert stats_.accepted_tokens > 0.05 * stats_.draft_tokens > 1000


@pytest.mark.parametrize("drafter", ["eagle", "ngram"])
def test_the_answers_are_all_there_is(wanted: dict[tuple[int, ...], float]) -> None:
    assert len(wanted) == len(list(itertools.product(range(TOP_K), repeat=LENGTH)))
    assert sum(wanted.values()) == pytest.approx(1)
