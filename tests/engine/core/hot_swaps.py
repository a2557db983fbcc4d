"""Strategies for each slot of an engine, and how they are swapped."""

from __future__ import annotations

import time
from typing import Any

from gatewayd_engine.core.hot_swap import EngineSwapRefused
from gatewayd_engine.process.config import StrategyChoice
from gatewayd_engine.process.messages import SwapStrategy
from gatewayd_hooks.strategy import Kind
from tests.engine.core.tiered_engines import host

TIGHT: dict[str, Any] = {"page_size": 4, "kv_pages": 104, "max_batch_tokens": 96}
"""Few pages, so that eviction and preemption have something to do."""
HEADS = ("medusa", "eagle")
ALL = ("penalties", "bias", "min_tokens")
OFFERS: dict[Kind, list[list[StrategyChoice]]] = {
    Kind.SCHEDULER: [
        [StrategyChoice("fcfs")],
        [StrategyChoice("fcfs", {"max_prefill_chunk": 7})],
        [StrategyChoice("priority")],
        [StrategyChoice("priority", {"batch": 3.0})],
    ],
    Kind.PREFIX_CACHE: [[], [StrategyChoice("hash")], [StrategyChoice("radix")]],
    Kind.EVICTION: [*([StrategyChoice(name)] for name in ("lru", "lfu", "cost", "retention"))],
    Kind.PREEMPTION: [[StrategyChoice("recompute")], [StrategyChoice("swap")]],
    Kind.DRAFTER: [
        [],
        *([StrategyChoice(name)] for name in ("ngram", "lookahead", "draft_model", *HEADS)),
    ],
    Kind.SPEC_CONTROLLER: [[StrategyChoice("adaptive")], [StrategyChoice("fixed")]],
    Kind.LOGITS_PROCESSOR: [
        [],
        [StrategyChoice(name) for name in ALL],
        [StrategyChoice(name) for name in ALL[::-1]],
        [StrategyChoice("bias")],
    ],
    # It selects, and from so many places that nothing is passed over.
    Kind.KV_COMPRESSION: [[], [StrategyChoice("heavy", {"budget": 1.0, "at_least": 1})]],
    Kind.KV_TIER: [[], [host("1MiB")], [host("64KiB")]],
}


def swap(engine: Any, kind: Kind, *choices: StrategyChoice) -> bool:
    """Swap while nothing else happens; whether the state was handed over."""
    engine.core.swaps.start(SwapStrategy(1, kind.value, list(choices)))
    while not (answers := engine.core.swaps.complete_ready()):
        time.sleep(0.0002)
    (answer,) = answers
    if answer.error:
        raise EngineSwapRefused(answer.error)
    return bool(answer.has_state)


def settle(engine: Any) -> None:
    """End swaps that have been opened; none may be refused."""
    assert [answer.error for answer in engine.core.swaps.complete_ready() if answer.error] == []
