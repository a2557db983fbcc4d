"""Costs of strategies, in engines and in this process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gatewayd.engines.api import Fleet
from gatewayd.plugins.fenced import Fenced
from gatewayd_engine.process.messages import StrategyRow
from gatewayd_hooks.host.plugin_times import PluginTimes


def costs_of(
    fleet: Fleet, asked: Iterable[Fenced[Any]], plugin_times: PluginTimes
) -> list[tuple[str, StrategyRow]]:
    """Cost rows with the engine, or ``none`` for strategies of this process.

    Args:
        fleet: the engines.
        asked: fenced strategies of this process.
        plugin_times: costs of strategies of this process.
    """
    rows = [(str(one.index), row) for one in fleet.status() for row in one.strategies]
    by_kind = {fenced.kind: fenced for fenced in asked}
    # Costs outlive a swap: strategies that were replaced are listed, too.
    for (kind, name), cost in plugin_times.costs().items():
        state, faults = "active", 0
        if (one := by_kind.get(kind)) is not None:
            faults = one.fence.faults(kind, name)
            if one.fence.is_quarantined(kind, name):
                state = "quarantined"
            elif name != one.name:
                state = "replaced"
        figures = (cost.calls, cost.seconds, cost.longest)
        rows.append(("none", StrategyRow(kind.value, name, state, faults, *figures)))
    return rows
