"""Deadline scheduler: least slack to the first token first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_sched_slo.config import SloConfig

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: SloConfig) -> SchedulerStrategy:
    from gatewayd_sched_slo.strategy import LeastSlack

    return LeastSlack(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Provide ``slo``."""
    return [
        StrategyInfo(
            name="slo",
            config_type=SloConfig,
            build=_build,
            summary="Least slack to the first token's deadline first; realtime preempts batch.",
            requires_spec=">=1.9,<2",
        )
    ]
