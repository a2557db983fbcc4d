"""Guided decoding on a device: masks filled while it computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.fake_guide import LISTS, choice_of, text_of, with_guide
from tests.engine.core.prompts import PROMPTS

Make = Callable[..., Any]


def ask(engine: Any, **fields: Any) -> list[list[int]]:
    ids = [
        engine.submit(prompt, max_tokens=40, guide=choice_of(*LISTS[i % 4]), **fields)[0]
        for i, prompt in enumerate(PROMPTS[:6])
    ]
    free = engine.submit(PROMPTS[6], max_tokens=20, ignore_eos=True)
    done = engine.run()
    for i, sequence in enumerate(ids):
        assert done[sequence].finished.error is None
        assert text_of(done[sequence].tokens) in LISTS[i % 4]
    assert len(done[free[0]].tokens) == 20
    return [done[sequence].tokens for sequence in ids]


@pytest.mark.parametrize("drafter", [None, "ngram", "forced"])
def test_answers_are_those_of_the_cpu(
    make_device_engine: Make, make_engine: Make, drafter: str | None
) -> None:
    chosen = drafter and StrategyChoice(drafter)
    engine = with_guide(make_device_engine(drafter=chosen))
    assert ask(engine) == ask(with_guide(make_engine()))
    assert bool(engine.core.stats.accepted_tokens) == (drafter is not None)


def test_with_all_that_changes_logits(make_device_engine: Make) -> None:
    engine = with_guide(make_device_engine())
    asked: dict[str, Any] = {"temperature": 1.5, "seed": 3, "min_tokens": 30, "logprobs": 2}
    tokens = ask(engine, **asked, frequency_penalty=1.0)
    assert ask(engine, **asked, frequency_penalty=1.0) == tokens
