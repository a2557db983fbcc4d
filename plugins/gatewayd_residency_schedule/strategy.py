"""Loads models at times of day, and unloads those outside of their times first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.residency import ResidentModel
from gatewayd_residency_schedule.config import ScheduleResidencyConfig
from gatewayd_residency_schedule.windows import parse_window

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class Scheduled:
    """Protects models in their windows; of the others the least recently used is unloaded."""

    def __init__(self, config: ScheduleResidencyConfig) -> None:
        self._windows = [parse_window(window) for window in config.windows]

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def evict(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        """Choose a model."""
        due = set(self.preferred(unix))
        # False sorts before True: models in their window go only if all are.
        return min(
            models, key=lambda one: (one.name in due, -one.idle_seconds, one.num_running)
        ).name

    def preferred(self, unix: float) -> Sequence[str]:
        """Return the models in their windows, in the order of the windows."""
        return list(dict.fromkeys(one.model for one in self._windows if one.contains(unix)))
