"""Logits processor faults: hurt only the requests that use it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.engine.core.prompts import PROMPTS, answers

pytestmark = pytest.mark.usefixtures("small_model")

Make = Callable[..., Any]


@pytest.mark.usefixtures("depth")
def test_a_processor_that_raises_fails_those_who_asked_for_it(
    make_engine: Make, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    chain = engine.core.strategies.processors
    bias = chain._processors[1]
    apply = bias.apply

    def picky(logits: torch.Tensor, index: torch.Tensor, rows: torch.Tensor) -> None:
        kept = logits.clone()
        logits.zero_()
        if (rows == 0).any():
            raise ValueError("row 0 is not to my taste")
        logits.copy_(kept)
        apply(logits, index, rows)

    monkeypatch.setattr(bias, "apply", picky)
    ids = [
        engine.submit(p, max_tokens=12, ignore_eos=True, logit_bias=[(9, 0.0)] if k < 2 else [])[0]
        for k, p in enumerate(PROMPTS)
    ]
    done = engine.run()
    assert done[ids[0]].finished.error[0] == "strategy_error"
    for k in range(1, len(PROMPTS)):
        assert done[ids[k]].tokens == undisturbed[k]


def test_who_comes_next_with_a_cached_beginning_is_well(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    prompt = list(range(40, 110))  # four pages and a chunk of six tokens behind them
    wanted = engine.generate(prompt, max_tokens=8, ignore_eos=True)
    bias = engine.core.strategies.processors._processors[1]

    def raises(*args: Any) -> None:
        raise ValueError("not to my taste")

    (failing,) = engine.submit(PROMPTS[0], max_tokens=8, logit_bias=[(9, 0.0)])
    engine.step()
    engine.step()
    monkeypatch.setattr(bias, "apply", raises)
    engine.run()
    assert engine.answers[failing].finished.error[0] == "strategy_error"
    # No step without a failure comes before the chunk, alone in its own.
    assert engine.generate(prompt, max_tokens=8, ignore_eos=True) == wanted


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("method", ["admit", "remove", "append"])
def test_a_processor_that_raises_anywhere_hurts_nobody_else(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    engine = make_engine()
    bias = engine.core.strategies.processors._processors[1]
    sound = getattr(bias, method)

    def raises(*args: Any) -> Any:
        if method != "admit" or args[1].logit_bias:
            raise ValueError("not to my taste")
        return sound(*args)

    monkeypatch.setattr(bias, method, raises)
    ids = [
        engine.submit(p, max_tokens=12, ignore_eos=True, logit_bias=[(9, 0.0)] if k < 2 else [])[0]
        for k, p in enumerate(PROMPTS)
    ]
    done = engine.run()
    for k, i in enumerate(ids):
        if k < 2 and method != "remove":
            assert done[i].finished.error[0] == "strategy_error"
        else:
            assert done[i].tokens == undisturbed[k]


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("method", ["apply", "append", "remove"])
def test_a_processor_that_fails_again_and_again_is_quarantined(
    make_engine: Make,
    undisturbed: list[list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    engine = make_engine(fault_limit=3)
    bias = engine.core.strategies.processors._processors[1]

    def raises(*args: Any) -> Any:
        raise ValueError("not to my taste")

    def ask() -> Any:
        (i,) = engine.submit(PROMPTS[0], max_tokens=12, ignore_eos=True, logit_bias=[(9, 0.0)])
        return engine.run()[i].finished.error

    monkeypatch.setattr(bias, method, raises)
    errors = [ask() for _ in range(3)]
    if method == "remove":
        assert errors == [None] * 3
    else:
        sentence = "the logits processor bias failed; try again, or send the request without it"
        assert errors == [("strategy_error", sentence)] * 3
    assert engine.core.stats.faults == 3
    monkeypatch.undo()
    sentence = "the logits processor bias is out of service; send the request without it"
    assert ask() == ("strategy_error", sentence)
    monkeypatch.setattr(bias, "admit", raises)
    caplog.clear()
    assert answers(engine) == undisturbed  # nobody else notices
    assert [r.getMessage() for r in caplog.records] == [
        "logits processor bias is quarantined and raised: ValueError: not to my taste"
    ]
    assert engine.core.stats.faults == 3


def test_a_request_that_a_processor_refuses_is_no_fault_of_the_processor(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(fault_limit=1)
    bias = engine.core.strategies.processors._processors[1]
    sound = bias.admit

    def picky(row: int, params: Any, *rest: Any) -> Any:
        if params.logit_bias == [(9, 1.0)]:
            raise ValueError("no ones")
        return sound(row, params, *rest)

    monkeypatch.setattr(bias, "admit", picky)
    for value in (1.0, 1.0, 2.0):
        (i,) = engine.submit(PROMPTS[0], max_tokens=3, ignore_eos=True, logit_bias=[(9, value)])
        assert (engine.run()[i].finished.error is None) == (value == 2.0)
    assert engine.core.stats.faults == 0
