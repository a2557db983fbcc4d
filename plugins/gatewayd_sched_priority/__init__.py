"""Priority scheduler: service classes share the engine's tokens by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_sched_priority.config import PriorityConfig

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: PriorityConfig) -> SchedulerStrategy:
    from gatewayd_sched_priority.strategy import WeightedClasses

    return WeightedClasses(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Provide ``priority``."""
    return [
        StrategyInfo(
            name="priority",
            config_type=PriorityConfig,
            build=_build,
            summary="Realtime, standard and batch share tokens by weight, without starvation.",
            requires_spec=">=1.9,<2",
        )
    ]
