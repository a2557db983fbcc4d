"""Residency by times of day."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_residency_schedule.config import ScheduleResidencyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.residency import ResidencyStrategy


def _build(config: ScheduleResidencyConfig) -> ResidencyStrategy:
    from gatewayd_residency_schedule.strategy import Scheduled

    return Scheduled(config)


@hookimpl
def gatewayd_residencies() -> Sequence[StrategyInfo[ResidencyStrategy]]:
    """Provide ``schedule``."""
    return [
        StrategyInfo(
            name="schedule",
            config_type=ScheduleResidencyConfig,
            build=_build,
            summary="Loads models at times of day; otherwise the least recently used is unloaded.",
            requires_spec=">=1.29,<2",
        )
    ]
