"""Fair shares: tenants take turns by what they have had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_sched_fairshare.config import FairshareSettings

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: FairshareSettings) -> SchedulerStrategy:
    from gatewayd_sched_fairshare.strategy import FairshareScheduler

    return FairshareScheduler(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Offer ``fairshare``."""
    return [
        StrategyInfo(
            name="fairshare",
            config_type=FairshareSettings,
            build=_build,
            summary="Tenants get the same, whoever asks for more.",
            requires_spec=">=1.5,<2",
        )
    ]
