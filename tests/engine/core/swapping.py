"""What may fill each slot of an engine, and how it is swapped."""

from __future__ import annotations

from typing import Any

from gatewayd_engine.config import StrategyChoice
from gatewayd_engine.messages import Swap
from gatewayd_hooks.strategy import Kind

TIGHT: dict[str, Any] = {"page_size": 4, "kv_pages": 104, "max_batch_tokens": 96}
"""Few pages, so that eviction and preemption have something to do."""
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
    Kind.DRAFTER: [[], [StrategyChoice("ngram")], [StrategyChoice("lookahead")]],
    Kind.SPEC_CONTROLLER: [[StrategyChoice("adaptive")], [StrategyChoice("fixed")]],
    Kind.LOGITS_PROCESSOR: [
        [],
        [StrategyChoice(name) for name in ALL],
        [StrategyChoice(name) for name in ALL[::-1]],
        [StrategyChoice("bias")],
    ],
}


def swap(engine: Any, kind: Kind, *choices: StrategyChoice) -> bool:
    has_state: bool = engine.core.swaps.swap(Swap(1, kind.value, list(choices)))
    return has_state
