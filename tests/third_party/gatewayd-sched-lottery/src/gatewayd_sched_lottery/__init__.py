"""Lottery scheduling: whoever waits draws for a place in the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_sched_lottery.config import LotteryConfig

if TYPE_CHECKING:
    from gatewayd_hooks.scheduling import SchedulerStrategy


def _build(config: LotteryConfig) -> SchedulerStrategy:
    from gatewayd_sched_lottery.strategy import Lottery

    return Lottery(config)


@hookimpl
def gatewayd_schedulers() -> Sequence[StrategyInfo[SchedulerStrategy]]:
    """Offer ``lottery``."""
    return [
        StrategyInfo(
            name="lottery",
            config_type=LotteryConfig,
            build=_build,
            summary="Waiting sequences draw for a place, by the tickets of their class.",
            requires_spec=">=1.5,<2",
        )
    ]
