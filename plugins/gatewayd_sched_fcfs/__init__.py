"""First-come-first-served scheduler: running sequences first, then arrivals in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_sched_fcfs.config import FcfsConfig

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: FcfsConfig) -> SchedulerStrategy:
    from gatewayd_sched_fcfs.strategy import Fcfs

    return Fcfs(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Provide ``fcfs``."""
    return [
        StrategyInfo(
            name="fcfs",
            config_type=FcfsConfig,
            build=_build,
            summary="First come, first served, with chunked prefill; decodes go first.",
            requires_spec=">=1.5,<2",
        )
    ]
