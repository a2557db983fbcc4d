"""Which strategy an engine's causes are due to: of each cause the kind that decides about it."""

from __future__ import annotations

from collections.abc import Mapping

from gatewayd_engine.process.config import EngineConfig
from gatewayd_engine.process.time_causes import Cause
from gatewayd_hooks.strategy import Kind

_KINDS: Mapping[int, Kind] = {
    Cause.TURN: Kind.SCHEDULER,
    Cause.TIER: Kind.KV_TIER,
    Cause.GRAMMAR: Kind.GUIDE,
    Cause.PREEMPTED: Kind.PREEMPTION,
    Cause.RECOMPUTE: Kind.PREEMPTION,
}


def strategy_of(config: EngineConfig, cause: int) -> str:
    """The strategy's name, of a chain all; empty for what no strategy decides."""
    kind = _KINDS.get(cause)
    return "" if kind is None else ", ".join([one.name for one in config.choices(kind)])
