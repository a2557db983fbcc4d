"""Partial page reuse: same tokens, nothing recomputed, no page corrupted."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_hooks.caching import Match
from tests.random_cases import few_of

Make = Callable[..., Any]
RADIX = StrategyChoice("radix")
SHARED = [300 + i % 997 for i in range(100)]


def own(index: int, length: int) -> list[int]:
    """Ids that no other request has in this place."""
    return [2000 + index] * length


@pytest.mark.parametrize("cache", ["radix", "hash"])
def test_prompts_that_part_within_a_page_answer_as_transformers_do(
    cache: str,
    make_engine: Make,
    checkpoint: Callable[[str], Path],
    oracle: Callable[[Path], Any],
    prompts: Callable[..., list[list[int]]],
) -> None:
    folder = checkpoint("llama")
    model, rng = oracle(folder), random.Random(1)
    engine = make_engine(
        folder, prefix_cache=StrategyChoice(cache), max_batch_tokens=64, kv_pages=40
    )
    some = prompts(30, 320, 90)
    ids = []
    for prompt in some:
        ids += engine.submit(prompt, max_tokens=8, ignore_eos=True)
        for _ in range(rng.randrange(4)):
            engine.step()
            engine.core.check()
    answers = engine.run()
    within = [answers[i].admitted.cached_tokens % 16 for i in ids]
    assert sum(map(bool, within)) > 5
    for i, prompt in zip(ids, some, strict=True):
        tokens = list(prompt)
        for _ in range(8):
            with torch.inference_mode():
                tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert answers[i].tokens == tokens[len(prompt) :]


def test_a_shared_prefix_is_computed_once_to_the_last_token(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=RADIX)
    engine.submit(SHARED + own(0, 30), max_tokens=2, ignore_eos=True)
    engine.step()
    # The first one still runs.
    ids = [engine.submit(SHARED + own(i, 30), max_tokens=2, ignore_eos=True)[0] for i in (1, 2, 3)]
    answers = engine.run()
    assert [answers[i].admitted.cached_tokens for i in ids] == [100, 100, 100]
    assert engine.core.stats.computed_tokens == 100 + 30 * 4 + 4
    assert engine.core.stats.prefix_hits == 300


def test_the_same_prompt_again_computes_its_last_token_alone(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=RADIX)
    first = engine.generate(SHARED[:96], max_tokens=20, ignore_eos=True)
    before = engine.core.stats.computed_tokens
    assert engine.generate(SHARED[:96], max_tokens=20, ignore_eos=True) == first
    assert engine.core.stats.computed_tokens == before + 20


def test_a_page_that_is_copied_is_not_written_to(make_engine: Make) -> None:
    engine = make_engine(prefix_cache=RADIX, kv_pages=64)
    prompt = SHARED + own(0, 12)
    first = engine.generate(prompt, max_tokens=6, ignore_eos=True)
    pool = engine.core._placement._block_tables._pool
    before = pool.data.clone()
    known = [page for page in range(64) if engine.core._pages.is_known(page)]
    assert len(known) == 7 + 1  # the last one is filled in part
    engine.generate(SHARED + own(1, 12), max_tokens=20, ignore_eos=True)
    assert torch.equal(pool.data[known], before[known])
    assert engine.generate(prompt, max_tokens=6, ignore_eos=True) == first


def test_who_needs_every_page_gets_in_without_the_one_to_be_copied(make_engine: Make) -> None:
    # Eight pages for a sequence that needs them all, one of which begins like its last.
    engine = make_engine(prefix_cache=RADIX, kv_pages=8)
    engine.generate(SHARED + own(0, 20), max_tokens=4, ignore_eos=True)
    (again,) = engine.submit(SHARED + own(1, 20), max_tokens=8, ignore_eos=True)
    answer = engine.run()[again]
    assert answer.admitted.cached_tokens == 96
    alone = make_engine(prefix_cache=None)
    assert answer.tokens == alone.generate(SHARED + own(1, 20), max_tokens=8, ignore_eos=True)


@pytest.mark.parametrize("seed", few_of(range(3)))
def test_salts_keep_prefixes_apart_under_eviction_and_preemption(
    make_engine: Make, checkpoint: Callable[[str], Path], seed: int
) -> None:
    folder, rng = checkpoint("llama"), random.Random(seed)
    engine = make_engine(folder, prefix_cache=RADIX, kv_pages=30, page_size=4, max_running=6)
    alone = make_engine(folder, prefix_cache=None)
    beginnings = [[rng.randrange(2, 320) for _ in range(30)] for _ in range(2)]
    asked = {}
    for _ in range(40):
        cut = rng.choice(beginnings)[: rng.randrange(1, 31)]
        prompt = cut + [rng.randrange(2, 320) for _ in range(rng.randrange(1, 8))]
        salt = rng.choice([b"", b"other"])
        (i,) = engine.submit(prompt, salt=salt, max_tokens=rng.randrange(1, 30), ignore_eos=True)
        asked[i] = prompt
        for _ in range(rng.randrange(5)):
            engine.step()
            engine.core.check()
    answers = engine.run()
    assert engine.core.stats.preemptions > 0
    for i, prompt in asked.items():
        n = len(answers[i].tokens)
        assert answers[i].tokens == alone.generate(prompt, max_tokens=n, ignore_eos=True)


@pytest.mark.parametrize(
    "found", [Match([0], 17), Match([], 3), Match([0], -5), Match([99999], 16)], ids=str
)
def test_a_match_that_does_not_add_up_is_a_fault(make_engine: Make, found: Match) -> None:
    engine = make_engine(prefix_cache=RADIX)
    wanted = engine.generate(SHARED, max_tokens=5, ignore_eos=True)
    strategies = engine.core.strategies
    strategies.plan = dataclasses.replace(strategies.plan, match=lambda trail: found)
    engine.submit(SHARED, max_tokens=5, ignore_eos=True)
    (*_, last) = engine.run()
    assert engine.answers[last].tokens == wanted
    assert engine.core.stats.faults == 1
