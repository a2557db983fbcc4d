"""Batch invariance: an answer has the same bits alone, in any batch, chunked, cached, preempted."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.runner.cpu import Runner

Make = Callable[..., Any]
OVERLAPS = Runner.__dict__["overlaps"]
INT8 = StrategyChoice("int8")
INT4 = StrategyChoice("int4", {"group_size": 32, "head": True})


def drawn(rng: random.Random, count: int) -> list[dict[str, Any]]:
    """Requests, some of which begin alike, greedy or sampled, some with log-probabilities."""
    starts = [[rng.randrange(20, 4000) for _ in range(40)] for _ in range(4)]
    return [
        {
            "prompt": rng.choice(starts)[: rng.choice([0, 16, 33, 40])]
            + [rng.randrange(20, 4000) for _ in range(rng.randint(1, 30))],
            "max_tokens": rng.choice([1, 4, 40]),
            "ignore_eos": True,
            "temperature": rng.choice([0.0, 0.8]),
            "top_p": rng.choice([1.0, 0.9]),
            "seed": rng.randrange(1 << 30),
            "logprobs": rng.choice([None, None, 2]),
        }
        for _ in range(count)
    ]


def bits(engine: Any, sequence: int) -> tuple[list[int], list[tuple[float, list[float]]]]:
    answer = engine.answers[sequence]
    assert answer.finished is not None
    assert answer.finished.error is None
    return answer.tokens, [(report.logprob, report.top_logprobs) for report in answer.logprobs]


@pytest.mark.parametrize("quantizer", [None, INT8, INT4], ids=["floats", "int8", "int4"])
@pytest.mark.parametrize(
    "count", [pytest.param(80, id="80"), pytest.param(10_000, id="10000", marks=pytest.mark.slow)]
)
def test_answers_have_the_same_bits_whatever_is_computed_beside_them(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, count: int, quantizer: StrategyChoice | None
) -> None:
    rng = random.Random(count)
    requests = drawn(rng, count)
    alone = make_engine(quantizer=quantizer, prefix_cache=None, threads=1)
    expected = []
    for request in requests:
        (sequence,) = alone.submit(**request)
        alone.run()
        expected.append(bits(alone, sequence))
    # Four threads on whatever there is, few pages, short chunks, steps that overlap.
    monkeypatch.setattr(Runner, "overlaps", OVERLAPS)
    engine = make_engine(
        quantizer=quantizer, threads=4, kv_pages=14, max_batch_tokens=24, max_running=12
    )
    sent: list[int] = []
    while len(sent) < count or engine.core.has_work:
        for request in requests[len(sent) : len(sent) + rng.choice([0, 0, 1, 5])]:
            sent += engine.submit(**request)
        engine.step()
    assert [bits(engine, sequence) for sequence in sent] == expected
    assert engine.core.stats.preemptions > 0


def test_steps_with_grammars_do_not_overlap(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Runner, "overlaps", OVERLAPS)
    runner = make_engine().core._runner
    assert runner.overlaps
    monkeypatch.setattr(type(runner._processors), "guides_any", True)
    assert not runner.overlaps
    assert not make_engine(cpu_kernels="torch").core._runner.overlaps
