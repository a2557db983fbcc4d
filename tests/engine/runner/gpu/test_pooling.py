"""Pooling on a device runner: hidden states equal the CPU's, among captured steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.conftest import mixed_prompts

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]

PROMPTS = [[7], *mixed_prompts(8, 4096, 90, seed=3)]


@pytest.mark.parametrize("drafter", [None, StrategyChoice("ngram")])
def test_states_are_the_cpus(
    make_engine: Make, make_device_engine: Make, drafter: StrategyChoice | None
) -> None:
    found = []
    for make in (make_engine, make_device_engine):
        engine = make(max_batch_tokens=32, drafter=drafter)
        engine.submit(PROMPTS[2] * 2, max_tokens=60, ignore_eos=True)
        engine.step()
        ids = [
            engine.submit(prompt, pooling=pooling, max_tokens=1, ignore_eos=True)[0]
            for prompt in PROMPTS
            for pooling in ("mean", "last")
        ]
        done = engine.run()
        found.append([done[i].pooled for i in ids])
    for ours, theirs in zip(*found, strict=True):
        assert sum(one.count for one in ours) == sum(one.count for one in theirs)
        sums = [
            np.sum([np.frombuffer(one.vector, np.float32) for one in told], 0)
            for told in (ours, theirs)
        ]
        assert sums[0] == pytest.approx(sums[1], abs=1e-2)


def test_a_prompt_of_one_token_among_those_that_decode_is_told(make_device_engine: Make) -> None:
    engine = make_device_engine()
    (first,) = engine.submit([7], pooling="last", max_tokens=1, ignore_eos=True)
    alone = engine.run()[first]
    engine.submit(PROMPTS[2], max_tokens=30, ignore_eos=True)
    engine.step()
    # From here on it is computed in a step of one token for each sequence.
    (i,) = engine.submit([7], pooling="last", max_tokens=1, ignore_eos=True)
    told = engine.run()[i]
    vectors = [np.frombuffer(one.pooled[0].vector, np.float32) for one in (alone, told)]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-2)
