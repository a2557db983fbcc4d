"""Fair scheduler: tenants share the engine's tokens by weight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_sched_fair.config import FairConfig

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: FairConfig) -> SchedulerStrategy:
    from gatewayd_sched_fair.strategy import Fair

    return Fair(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Provide ``fair``."""
    return [
        StrategyInfo(
            name="fair",
            config_type=FairConfig,
            build=_build,
            summary="Weighted fair sharing of tokens between tenants (virtual token counters).",
            requires_spec=">=1.9,<2",
        )
    ]
