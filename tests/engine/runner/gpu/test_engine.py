"""Device runner: an engine's tokens equal the CPU's, whatever happens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gatewayd_engine.process.config import StrategyChoice
from tests.engine.core.golden import golden_model
from tests.engine.core.models.test_tokens import compare
from tests.engine.core.prompts import PROMPTS, answers
from tests.engine.core.requests.test_random_requests import check_random_requests
from tests.random_cases import few_of

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


def test_greedy_tokens_are_the_cpus(make_device_engine: Make, undisturbed: list[list[int]]) -> None:
    assert answers(make_device_engine()) == undisturbed


@pytest.mark.parametrize(
    "architecture", ["llama", "qwen3", "gemma2", "mistral", "mixtral", "phi3", "gpt_oss"]
)
def test_tokens_equal_transformers(
    architecture: str,
    checkpoint: Callable[[str], Path],
    make_device_engine: Make,
) -> None:
    from tests.engine.core.conftest import mixed_prompts

    folder = checkpoint(architecture)
    engine = make_device_engine(
        folder, page_size=2, kv_pages=180, max_batch_tokens=64, max_running=16
    )
    compare(engine, golden_model(folder), mixed_prompts(24, 320, 160), 12, must_preempt=None)


def test_a_seed_repeats_whatever_the_batch(make_device_engine: Make) -> None:
    engine = make_device_engine()
    asked: dict[str, Any] = {"temperature": 1.0, "seed": 11, "max_tokens": 12, "ignore_eos": True}
    alone = engine.generate(PROMPTS[3], **asked)
    for fields in ({}, {"temperature": 1.3, "seed": 5}):
        for prompt in PROMPTS:
            engine.submit(prompt, max_tokens=20, ignore_eos=True, **fields)
    engine.step()
    (again,) = engine.submit(PROMPTS[3], **asked)
    assert engine.run()[again].tokens == alone
    assert engine.generate(PROMPTS[3], **{**asked, "seed": 12}) != alone


def test_what_is_asked_beside_tokens_is_the_cpus(
    make_engine: Make, make_device_engine: Make
) -> None:
    fields: dict[str, Any] = {"logprobs": 3, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    fields |= {"logit_bias": [(9, 2.0)], "min_tokens": 5, "max_tokens": 12}
    some: list[dict[str, Any]] = [fields, {"max_tokens": 12}, {**fields, "prompt_logprobs": 2}]
    found = []
    for make in (make_engine, make_device_engine):
        engine = make(max_batch_tokens=48)
        ids = [engine.submit(p, **some[i % 3])[0] for i, p in enumerate(PROMPTS)]
        done = engine.run()
        found.append([done[i] for i in ids])
    for ours, theirs in zip(*found, strict=True):
        assert ours.tokens == theirs.tokens
        for mine, other in (
            (ours.logprobs, theirs.logprobs),
            (ours.prompt_logprobs, theirs.prompt_logprobs),
        ):
            assert [r.token for r in mine] == [r.token for r in other]
            # Where logits are nearly equal, the order of additions ranks them.
            assert [r.rank for r in mine] == pytest.approx([r.rank for r in other], abs=3)
            assert [r.top_logprobs[0] for r in mine if r.top_tokens] == pytest.approx(
                [r.top_logprobs[0] for r in other if r.top_tokens], abs=1e-4
            )
            assert [r.logprob for r in mine] == pytest.approx([r.logprob for r in other], abs=1e-4)


@pytest.mark.parametrize("seed", few_of(range(3)))
def test_random_requests(
    make_device_engine: Make, checkpoint: Callable[[str], Path], seed: int
) -> None:
    check_random_requests(make_device_engine, checkpoint, seed)


def test_numbers_that_go_wrong_end_their_request_alone(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_device_engine()
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    for _ in range(4):
        engine.step()
    kernels = device_runner(engine)._kernels
    sample, calls = kernels.sample, 0

    def poisoned(logits: torch.Tensor, *rest: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            logits = logits.clone()
            logits[3, 17] = torch.nan
        return sample(logits, *rest)

    monkeypatch.setattr(kernels, "sample", poisoned)
    done = engine.run()
    failed = [k for k, i in enumerate(ids) if done[i].finished.error]
    assert [done[ids[k]].finished.error[0] for k in failed] == ["numerical_error"]
    for k in {*range(8)} - {*failed}:
        assert done[ids[k]].tokens == undisturbed[k]


def test_a_prompt_whose_states_are_no_numbers_fails_before_it_is_shared(
    make_device_engine: Make, device_runner: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_device_engine(max_batch_tokens=32)
    decoder = device_runner(engine)._decoder
    hidden, calls = decoder.hidden, 0

    def poisoned(*args: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        states: torch.Tensor = hidden(*args)
        if calls == 1:
            states[5:] = torch.nan
        return states

    monkeypatch.setattr(decoder, "hidden", poisoned)
    prompt = list(range(20, 120))
    (bad,) = engine.submit(prompt, max_tokens=4, ignore_eos=True)
    assert engine.run()[bad].finished.error[0] == "numerical_error"
    assert engine.core.stats.cached_pages == 0
    monkeypatch.setattr(decoder, "hidden", hidden)
    assert len(engine.generate(prompt, max_tokens=4, ignore_eos=True)) == 4


def test_a_launch_that_raises_costs_one_request(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = make_device_engine()
    runner = device_runner(engine)
    launch = runner.launch

    def failing(batch: Any) -> Any:
        if (batch.rows == 2).any() and len(batch.ids) > len(batch):
            raise MemoryError("row 2 is too much")
        return launch(batch)

    monkeypatch.setattr(runner, "launch", failing)
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True)[0] for p in PROMPTS]
    done = engine.run()
    failed = [k for k, i in enumerate(ids) if done[i].finished.error]
    assert len(failed) == 1
    for k in {*range(8)} - {*failed}:
        assert done[ids[k]].tokens == undisturbed[k]


@pytest.mark.parametrize("drafter", ["ngram", "lookahead"])
def test_drafts_change_no_answer(
    make_device_engine: Make, undisturbed: list[list[int]], drafter: str
) -> None:
    engine = make_device_engine(
        drafter=StrategyChoice(drafter), spec_controller=StrategyChoice("fixed")
    )
    assert answers(engine) == undisturbed
    assert engine.core.stats.draft_tokens > 0


def test_preempted_sequences_go_on_where_they_were(
    make_device_engine: Make, undisturbed: list[list[int]]
) -> None:
    rng = random.Random(3)
    engine = make_device_engine(kv_pages=26, max_running=8)
    for _ in range(3):
        order = list(range(8))
        rng.shuffle(order)
        ids = {i: engine.submit(PROMPTS[i], max_tokens=12, ignore_eos=True)[0] for i in order}
        done = engine.run()
        assert [done[ids[i]].tokens for i in range(8)] == undisturbed


def test_drafts_change_no_answer_that_is_drawn(make_device_engine: Make) -> None:
    drawn: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 5, "logprobs": 1}
    plain, guessing = (
        make_device_engine(drafter=drafter, spec_controller=StrategyChoice("fixed"))
        for drafter in (None, StrategyChoice("ngram"))
    )
    found = []
    for engine in (plain, guessing):
        ids = [
            engine.submit(
                [*prompt, *prompt],
                max_tokens=12,
                ignore_eos=True,
                **drawn,
                frequency_penalty=0.5 * (i % 2),
            )[0]
            for i, prompt in enumerate(PROMPTS)
        ]
        done = engine.run()
        found.append([(done[i].tokens, [r.token for r in done[i].logprobs]) for i in ids])
    assert found[0] == found[1]
    assert guessing.core.stats.draft_tokens > 0


def test_what_all_begin_with_is_attended_once(
    make_device_engine: Make,
    make_engine: Make,
    device_runner: Callable[[Any], Any],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prompts = [[*range(20, 100), 7 + i, *range(30, 33 + i)] for i in range(5)]

    def answered(engine: Any) -> list[list[int]]:
        ids = [engine.submit(p, max_tokens=8, ignore_eos=True)[0] for p in prompts[:4]]
        for _ in range(4):
            engine.step()
        # A prompt among those who decode: such a step is not captured.
        ids += engine.submit(prompts[4], max_tokens=8, ignore_eos=True)
        done = engine.run()
        return [done[i].tokens for i in ids]

    engine = make_device_engine(cascade_attention=True)
    runner, shared = device_runner(engine), set()
    look = runner._shared_pages

    def noted(batch: Any) -> int:
        pages: int = look(batch)
        shared.add(pages)
        return pages

    monkeypatch.setattr(runner, "_shared_pages", noted)
    assert answered(engine) == answered(make_engine())
    assert (5 in shared) is (request.node.callspec.id == "captured")


@pytest.mark.parametrize("where", ["logprobs", "allocate", "whole"])
def test_a_step_that_runs_out_of_memory_is_launched_again_from_the_tokens_before(
    make_device_engine: Make,
    device_runner: Callable[[Any], Any],
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
) -> None:
    engine = make_device_engine()
    asked = {"frequency_penalty": 0.01, "logprobs": 1} if where != "whole" else {}
    ids = [engine.submit(p, max_tokens=12, ignore_eos=True, **asked)[0] for p in PROMPTS]
    for _ in range(4):
        engine.step()
    runner = device_runner(engine)
    owner: Any = runner._kernels if where == "logprobs" else runner._copier
    name = "logprobs" if where == "logprobs" else "allocate"
    does, calls = getattr(owner, name), 0

    def failing(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise torch.OutOfMemoryError("out of memory")
        return does(*args)

    monkeypatch.setattr(owner, name, failing)
    done = engine.run()
    assert calls > 8
    assert [done[i].tokens for i in ids] == undisturbed
