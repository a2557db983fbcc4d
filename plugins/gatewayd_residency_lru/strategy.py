"""Unloads the model that was used least recently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.residency import ResidentModel
from gatewayd_residency_lru.config import LruResidencyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class LeastRecentlyUsed:
    """Compares the ends of the last requests; of busy models the one with the fewest goes."""

    def __init__(self, config: LruResidencyConfig) -> None:
        self._config = config

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def evict(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        """Choose a model."""
        return max(models, key=lambda model: (model.idle_seconds, -model.num_running)).name

    def preferred(self, unix: float) -> Sequence[str]:
        """Leave loading to requests."""
        return ()
