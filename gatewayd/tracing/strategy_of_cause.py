"""Map engine latency causes to the strategies responsible for them."""

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
    """Return the responsible strategy's name, all names of a chain; empty if there is none."""
    kind = _KINDS.get(cause)
    return "" if kind is None else ", ".join([one.name for one in config.choices(kind)])
