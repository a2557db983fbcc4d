"""Prompt compaction: faults and interleaved events while prompts are shortened."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.plugin_faults import StrategyFault
from gatewayd_engine.scheduling.page_growth import PageGrowth
from gatewayd_hooks.kv_compression import Compacted, Compaction
from gatewayd_hooks.preemption import PreemptionMode, Victim
from gatewayd_hooks.strategy import Kind
from gatewayd_kvc_matching.strategy import Matching
from tests.engine.core.cache.test_compaction import (
    FIELDS,
    LENGTH,
    PROMPT,
    Make,
    _wide_model,
    answer,
    fitted,
)

__all__ = ["_wide_model", "fitted"]


@pytest.fixture
def odd_biases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Biases a little above 1, half of whose bytes are no number as bfloat16."""
    odd, compact = (
        torch.tensor([0x3F807FC1], dtype=torch.int32).view(torch.float32),
        Matching.compact,
    )

    def biased(self: Any, *args: Any) -> Compacted:
        few = compact(self, *args)
        return few._replace(bias=odd.expand(few.bias.shape))

    monkeypatch.setattr(Matching, "compact", biased)


@pytest.mark.parametrize(
    ("method", "broken", "what"),
    [
        ("plan", lambda self, *args: 1 / 0, "division by zero"),
        ("plan", lambda self, rows, *rest: [Compaction(rows[0], 12, 8)], "whole pages"),
        ("plan", lambda self, rows, *rest: 2 * [Compaction(rows[0], 128, 32)], "plans rows"),
        ("plan", lambda self, rows, *rest: [Compaction(rows[0] + 1, 128, 32)], "plans rows"),
        (
            "plan",
            lambda self, rows, *rest: [Compaction(rows[0], rows[0] + 128.0, 32)],
            "not integers",
        ),
        ("compact", lambda self, *args: 1 / 0, "division by zero"),
        ("compact", lambda self, layer, q, k, v, n: Compacted(k, k[..., 0], v), "have shape"),
        (
            "compact",
            lambda self, layer, q, k, v, n: Compacted(k[:, :n], k[:, :n, 0] / 0, v[:, :n]),
            "not finite",
        ),
        (
            "compact",
            lambda self, layer, q, k, v, n: Compacted(
                k[:, :n], k[:, :n, 0], torch.full_like(v[:, :n], 1e300, dtype=torch.float64)
            ),
            "not finite",
        ),
    ],
)
def test_a_fault_leaves_prompts_whole(
    make_engine: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    method: str,
    broken: Any,
    what: str,
) -> None:
    calm, plain = answer(make_engine(**FIELDS)), answer(make_engine())
    assert calm != plain
    monkeypatch.setattr(Matching, method, broken)
    engine = make_engine(**FIELDS, fault_limit=2)
    assert answer(engine) == plain
    assert engine.core.stats.faults == 1
    assert what in caplog.text
    for _ in range(2):  # it comes back once, and is quarantined
        assert answer(engine) == plain
        assert engine.core.stats.faults == 2


def test_what_is_compacted_stays_so_when_the_strategy_fails(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(**FIELDS)
    calm, other = answer(engine), [*PROMPT[::-1]]
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while len(engine.answers[one].tokens) < 5:
        engine.step()
    monkeypatch.setattr(Matching, "sizes", lambda self, prompt_len: 1 / 0)
    (two,) = engine.submit(other, max_tokens=LENGTH, ignore_eos=True)
    done = engine.run()
    assert done[one].tokens == calm
    assert done[two].tokens == answer(make_engine(), other)


def test_one_that_gives_way_to_another_before_its_turn_is_shortened_later(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, fitted: list[Compacted]
) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None, preemption=StrategyChoice("swap"))
    prompts = [PROMPT, PROMPT[::-1]]
    calm = [answer(engine, prompt) for prompt in prompts]
    take, gone = PageGrowth.allocate, list[int]()

    def crowded(self: Any, preempted: set[int], slot: int) -> Any:
        (other,) = set(self._queue.running) - {slot} or {slot}
        if not gone:
            gone.append(other)
            self._preemption.preempt(Victim(other, PreemptionMode.SWAP))
        return take(self, preempted, slot)

    monkeypatch.setattr(PageGrowth, "allocate", crowded)
    ids = [engine.submit(p, max_tokens=LENGTH, ignore_eos=True)[0] for p in prompts]
    engine.step()
    assert len(gone) == 1
    engine.core.check()
    done = engine.run()
    assert [done[i].tokens for i in ids] == calm
    assert len(fitted) == 4 * 3


@pytest.mark.parametrize("raises", [False, True])
def test_what_goes_wrong_in_between_leaves_nothing_behind(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch, raises: bool
) -> None:
    engine = make_engine(**FIELDS, prefix_cache=None)
    calm = answer(engine)
    take, left = PageGrowth.allocate, [3]

    def failing(self: Any, preempted: set[int], slot: int) -> Any:
        left[0] -= 1
        if left[0]:
            return take(self, preempted, slot)
        if raises:
            raise StrategyFault(Kind.PREEMPTION, "not now")
        self._preemption.preempt(Victim(slot, PreemptionMode.SWAP))
        return None

    monkeypatch.setattr(PageGrowth, "allocate", failing)
    (one,) = engine.submit(PROMPT, max_tokens=LENGTH, ignore_eos=True)
    while engine.core.has_work:
        engine.step()
        engine.core.check()
    assert engine.answers[one].tokens == calm
    assert engine.core.stats.faults == raises


@pytest.mark.parametrize("form", [{"kv_codec": StrategyChoice("int8")}, {"dtype": "bfloat16"}])
@pytest.mark.usefixtures("odd_biases")
def test_biases_leave_nothing_to_the_next_that_is_no_number(
    make_engine: Make, form: dict[str, Any]
) -> None:
    engine = make_engine(**{**FIELDS, "kv_pages": 40}, **form, prefix_cache=None)
    assert len(answer(engine)) == LENGTH
    pool = engine.core._placement.shortening._pool
    numbers = pool.data if pool.codec is None else pool.codec.decode(pool.data)
    assert bool(numbers.isfinite().all())
    ids = [engine.submit(PROMPT[:n], max_tokens=20, ignore_eos=True)[0] for n in range(20, 63, 9)]
    done = engine.run()
    assert {done[i].finished.error for i in ids} == {None}
