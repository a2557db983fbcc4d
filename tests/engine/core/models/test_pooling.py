"""Pooling: hidden states of prompts equal transformers'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_engine.process.plugin_faults import RequestRejected
from tests.engine.core.conftest import Answer, MakeEngine, mixed_prompts
from tests.engine.core.small_model import small

pytestmark = pytest.mark.usefixtures("small_model")

PROMPTS = mixed_prompts(10, 4096, 90, seed=3)
WISH: dict[str, Any] = {"max_tokens": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def states(oracle: Callable[[Any], Any]) -> Callable[[list[int]], torch.Tensor]:
    """Hidden states of a prompt after the final norm, ``[prompt_len, hidden]``."""
    model = oracle(small()).model

    def compute(prompt: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            found: torch.Tensor = model(torch.tensor([prompt])).last_hidden_state[0]
        return found

    return compute


def check(
    answer: Answer, prompt: list[int], pooling: str, states: Callable[[list[int]], torch.Tensor]
) -> None:
    vectors = [np.frombuffer(one.vector, np.float32) for one in answer.pooled]
    counts = [one.count for one in answer.pooled]
    expected = states(prompt)
    if pooling == "last":
        assert counts == [1]
        assert vectors[0] == pytest.approx(expected[-1].numpy(), abs=1e-3)
        return
    assert sum(counts) == len(prompt)
    mean = np.sum(vectors, 0) / len(prompt)
    assert mean == pytest.approx(expected.mean(0).numpy(), abs=1e-3)
    if len(counts) > 1:  # each part is its own tokens'
        assert vectors[0] == pytest.approx(expected[: counts[0]].sum(0).numpy(), abs=1e-2)


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("drafter", [None, StrategyChoice("ngram")])
def test_states_are_transformers_among_others_in_chunks(
    make_engine: MakeEngine,
    states: Callable[[list[int]], torch.Tensor],
    drafter: StrategyChoice | None,
) -> None:
    engine = make_engine(max_batch_tokens=32, drafter=drafter)
    engine.submit(PROMPTS[0] * 2, max_tokens=60, ignore_eos=True)
    asked = [
        (engine.submit(prompt, pooling=pooling, **WISH)[0], prompt, pooling)
        for prompt in PROMPTS
        for pooling in ("mean", "last")
    ]
    answers = engine.run()
    assert any(len(answers[i].pooled) > 1 for i, _, _ in asked)
    for i, prompt, pooling in asked:
        check(answers[i], prompt, pooling, states)


def test_a_cached_beginning_is_computed_again_for_the_mean_alone(
    make_engine: MakeEngine, states: Callable[[list[int]], torch.Tensor]
) -> None:
    engine, prompt = make_engine(), list(range(100, 180))
    engine.generate(prompt, max_tokens=1)
    for pooling, cached in (("mean", 0), ("last", 64)):
        (i,) = engine.submit(prompt, pooling=pooling, **WISH)
        answer = engine.run()[i]
        assert answer.admitted is not None
        assert answer.admitted.cached_tokens >= cached
        assert (answer.admitted.cached_tokens > 0) == (cached > 0)
        check(answer, prompt, pooling, states)


@pytest.mark.usefixtures("depth")
def test_states_are_told_once_though_preempted(
    make_engine: MakeEngine, states: Callable[[list[int]], torch.Tensor]
) -> None:
    engine = make_engine(page_size=4, max_batch_tokens=16, kv_pages=96, max_running=8)
    prompts = [[9 + i, *PROMPTS[1][:20]] * 3 for i in range(6)]
    asked = [
        engine.submit(prompt, pooling="mean", max_tokens=40, ignore_eos=True)[0]
        for prompt in prompts
    ]
    answers = engine.run()
    assert engine.core.stats.preemptions > 0
    for i, prompt in zip(asked, prompts, strict=True):
        check(answers[i], prompt, "mean", states)


@pytest.mark.parametrize(
    ("fields", "sequences", "words"),
    [
        ({"pooling": "max"}, [0], "must be one of mean, last"),
        ({"pooling": "mean"}, [0, 1], "needs one sequence"),
        ({"pooling": "mean", "prompt_logprobs": 0}, [0], "prompt_logprobs to be None"),
    ],
)
def test_what_cannot_be_pooled_is_refused(
    make_engine: MakeEngine, fields: dict[str, Any], sequences: list[int], words: str
) -> None:
    engine = make_engine()
    prompt = np.array([1, 2], np.int32).tobytes()
    with pytest.raises(RequestRejected, match=words):
        engine.core.submit(Submit(sequences, prompt, SamplingParams(max_tokens=1, **fields)))
