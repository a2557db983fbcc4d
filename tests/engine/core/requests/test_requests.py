"""Request parameters: accepted values and their effect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gatewayd_engine.model.fused.data import Draws
from gatewayd_engine.process.messages import SamplingParams, Submit
from gatewayd_engine.process.plugin_faults import RequestRejected
from gatewayd_engine.runner import cpu
from gatewayd_engine.sampling.token_picker import step_draws
from tests.engine.core.small_model import small

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]
PROMPT = [1, 419, 204, 2061, 356, 1033, 17, 300, 301, 302, 303, 304, 305, 306, 307, 308, 309, 310]


@pytest.mark.parametrize("top_p", [0.95, 1.0])
def test_a_seed_repeats_whatever_else_is_in_the_batch(make_engine: Make, top_p: float) -> None:
    wishes = {"max_tokens": 30, "temperature": 1.0, "top_p": top_p, "seed": 42, "ignore_eos": True}
    alone = make_engine().generate(PROMPT, **wishes)
    crowded = make_engine(max_batch_tokens=64, kv_pages=60)
    for i in range(12):
        others = {"temperature": 1.0, "top_k": 30 * (i % 2), "ignore_eos": True}
        crowded.submit((PROMPT * 2)[: 3 * i + 3], max_tokens=40, **others)
    (mine,) = crowded.submit(PROMPT, **wishes)
    assert crowded.run()[mine].tokens == alone
    other = make_engine().generate(PROMPT, **{**wishes, "seed": 43})
    assert other != alone


def test_without_a_seed_answers_differ(make_engine: Make) -> None:
    engine = make_engine()
    wishes = {"max_tokens": 30, "temperature": 1.0, "ignore_eos": True}
    assert engine.generate(PROMPT, **wishes) != engine.generate(PROMPT, **wishes)


@pytest.mark.usefixtures("depth")
def test_an_end_token_stops_and_is_not_told(make_engine: Make) -> None:
    free = make_engine().generate(PROMPT, max_tokens=12, ignore_eos=True)
    end = free[5]
    engine = make_engine()
    (i,) = engine.submit(PROMPT, max_tokens=12, ignore_eos=True, stop_token_ids=[end])
    answer = engine.run()[i]
    assert answer.tokens == free[: free.index(end)]
    assert (answer.finished.reason, answer.finished.stop_token) == (0, end)


def test_min_tokens_holds_back_end_tokens(make_engine: Make) -> None:
    free = make_engine().generate(PROMPT, max_tokens=12, ignore_eos=True)
    engine = make_engine()
    (i,) = engine.submit(
        PROMPT, max_tokens=12, ignore_eos=True, stop_token_ids=[free[0]], min_tokens=6
    )
    answer = engine.run()[i]
    assert len(answer.tokens) >= 6
    assert free[0] not in answer.tokens[:6]


@pytest.mark.usefixtures("depth")
def test_length_ends_with_the_last_token_told(make_engine: Make) -> None:
    engine = make_engine()
    (i,) = engine.submit(PROMPT, max_tokens=7, ignore_eos=True)
    answer = engine.run()[i]
    assert len(answer.tokens) == 7
    assert (answer.finished.reason, answer.finished.stop_token) == (1, None)


@pytest.mark.usefixtures("depth")
def test_logprobs_are_those_of_the_raw_logits(
    make_engine: Make, oracle: Callable[[Any], Any]
) -> None:
    engine = make_engine()
    (i,) = engine.submit(
        PROMPT,
        max_tokens=6,
        ignore_eos=True,
        logprobs=3,
        prompt_logprobs=2,
        repetition_penalty=1.5,
        temperature=0.7,
        seed=1,
    )
    answer = engine.run()[i]
    ids = PROMPT + answer.tokens
    with torch.inference_mode():
        logits = oracle(small())(torch.tensor([ids])).logits[0]
    wanted = torch.log_softmax(logits.float(), -1)
    told = [*answer.prompt_logprobs, *answer.logprobs]
    assert [report.token for report in told] == ids[1:]
    for position, report in enumerate(told):
        line = wanted[position]
        assert report.logprob == pytest.approx(float(line[report.token]), abs=1e-4)
        assert report.rank == int((line > line[report.token]).sum()) + 1
        best = line.topk(len(report.top_tokens))
        assert report.top_logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
        assert report.top_tokens == best.indices.tolist()
    assert len(told[0].top_tokens) == 2
    assert len(told[-1].top_tokens) == 3


@pytest.mark.usefixtures("depth")
def test_prompt_logprobs_are_told_once_though_preempted(make_engine: Make) -> None:
    engine = make_engine(page_size=4, max_batch_tokens=16, kv_pages=96, max_running=8)
    wishes = {"max_tokens": 40, "ignore_eos": True, "prompt_logprobs": 0}
    for i in range(6):
        engine.submit([9 + i, *PROMPT] * 4, **wishes)
    answers = engine.run()
    assert engine.core.stats.preemptions > 0
    for i in range(6):
        told = [report.token for report in answers[i].prompt_logprobs]
        assert told == ([9 + i, *PROMPT] * 4)[1:]


@pytest.mark.parametrize(
    ("prompt", "fields", "words"),
    [
        ([], {}, "empty"),
        ([4096], {}, "from 0 to 4095"),
        ([-1], {}, "from 0 to 4095"),
        (PROMPT, {"max_tokens": 0}, "max_tokens is 0"),
        (PROMPT, {"max_tokens": 2048}, "context of 2048"),
        (PROMPT, {"temperature": float("nan")}, "temperature"),
        (PROMPT, {"temperature": float("inf")}, "temperature"),
        (PROMPT, {"temperature": -1.0}, "temperature"),
        (PROMPT, {"top_p": 0.0}, "top_p"),
        (PROMPT, {"top_p": float("nan")}, "top_p"),
        (PROMPT, {"min_p": 1.5}, "min_p"),
        (PROMPT, {"top_k": -1}, "top_k"),
        (PROMPT, {"stop_token_ids": [4096]}, "stop_token_ids"),
        (PROMPT, {"logit_bias": [(-1, 1.0)]}, "token ids"),
        (PROMPT, {"logprobs": -1}, "logprobs"),
        (PROMPT, {"logit_bias": [(1, float("nan"))]}, "logit_bias"),
        (PROMPT, {"repetition_penalty": 0.0}, "repetition_penalty"),
        (PROMPT, {"frequency_penalty": float("inf")}, "frequency_penalty"),
        (PROMPT, {"min_tokens": 9}, "min_tokens"),
    ],
)
def test_bad_numbers_are_refused_before_they_reach_the_batch(
    make_engine: Make, prompt: list[int], fields: dict[str, Any], words: str
) -> None:
    engine = make_engine()
    with pytest.raises(RequestRejected, match=words):
        engine.submit(prompt, **{"max_tokens": 5, **fields})
    assert not engine.core.has_work


@pytest.mark.parametrize("page_size", [1, 48, 100])
def test_any_page_size_gives_the_same_tokens(make_engine: Make, page_size: int) -> None:
    prompts = [PROMPT * k for k in range(1, 9)]
    wanted = [make_engine().generate(p, max_tokens=30, ignore_eos=True) for p in prompts]
    engine = make_engine(page_size=page_size)
    ids = [engine.submit(p, max_tokens=30, ignore_eos=True)[0] for p in prompts]
    answers = engine.run()
    assert [answers[i].tokens for i in ids] == wanted
    assert engine.core.stats.step < 60  # together, not one by one


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("filters", [{}, {"top_k": 20}, {"top_k": 40, "top_p": 0.9, "min_p": 0.01}])
def test_random_tokens_are_those_of_torch_next_to_any_request(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, filters: dict[str, float]
) -> None:
    """Compiled steps draw from the model's logits, torch from what processors made of them."""
    wishes = {"max_tokens": 30, "temperature": 0.9, "seed": 7, "ignore_eos": True, **filters}
    engine = make_engine(max_running=8)
    draws: list[Draws | None] = []

    def kept(*given: Any) -> Draws | None:
        draws.append(step_draws(*given))
        return draws[-1]

    monkeypatch.setattr(cpu, "step_draws", kept)
    drawn = engine.generate(PROMPT, **wishes)
    assert len(draws) == 30
    assert None not in draws
    # Penalties and log-probabilities of others make steps in which torch draws for them.
    (own,) = engine.submit(PROMPT, **wishes)
    engine.submit(PROMPT, **{**wishes, "presence_penalty": 1.5, "seed": 8})
    engine.submit(PROMPT, **{**wishes, "top_p": 0.8, "logprobs": 2, "seed": 9})
    engine.submit(PROMPT, max_tokens=20)
    engine.run()
    assert engine.answers[own].tokens == drawn
    monkeypatch.setattr(cpu, "step_draws", lambda *_: None)
    monkeypatch.setattr(cpu, "needs_tokens_alone", lambda *_: False)
    assert make_engine(max_running=8).generate(PROMPT, **wishes) == drawn


def test_a_temperature_too_small_for_float32_is_greedy(make_engine: Make) -> None:
    greedy = make_engine().generate(PROMPT, max_tokens=8, ignore_eos=True)
    for temperature in (1e-46, 1e-30, 1e-9):
        engine = make_engine()
        got = engine.generate(PROMPT, max_tokens=8, ignore_eos=True, temperature=temperature)
        assert got == greedy


def test_broken_submissions_are_refused(make_engine: Make) -> None:
    engine = make_engine()
    prompt = np.array(PROMPT, np.int32).tobytes()
    params = SamplingParams(max_tokens=5)
    engine.core.submit(Submit([0, 1, 2], prompt, params))
    for broken in (
        Submit([5], prompt[:-1], params),
        Submit([2], prompt, params),
        Submit([5, 5], prompt, params),
        Submit([], prompt, params),
        Submit([5], prompt, params, priority=300),
        Submit([5], prompt, params, priority=-1),
        Submit([5], prompt, params, queued_seconds=float("nan")),
        Submit([5], prompt, SamplingParams(max_tokens=5, prompt_logprobs=4096)),
    ):
        with pytest.raises(RequestRejected):
            engine.core.submit(broken)
    engine.core.abort([0, 1, 2])
    assert not engine.core.has_work


def test_an_id_in_use_is_refused(make_engine: Make) -> None:
    engine = make_engine()
    engine.submit(PROMPT, max_tokens=5)
    prompt = np.array(PROMPT, np.int32).tobytes()
    with pytest.raises(RequestRejected, match="in use"):
        engine.core.submit(Submit([0], prompt, SamplingParams(max_tokens=5)))
