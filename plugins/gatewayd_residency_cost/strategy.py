"""Unloads the model whose absence costs the least waiting, as Greedy-Dual-Size-Frequency does.

The expected cost of unloading a model is the load time that its next requests wait for, times how
often they come; freed memory makes up for it. Source: Cherkasova, "Improving WWW Proxies
Performance with Greedy-Dual-Size-Frequency Caching Policy", 1998, with a request rate in place of
the frequency and its ageing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.targets.residency import ResidentModel
from gatewayd_residency_cost.config import CostResidencyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.resources import GatewayResources


class CheapestToMiss:
    """Compares costs; among equals the model goes that was used least recently."""

    def __init__(self, config: CostResidencyConfig) -> None:
        self._by_memory = config.by_memory

    def open(self, resources: GatewayResources) -> None:
        """Do nothing: no resources are needed."""

    def close(self) -> None:
        """Do nothing: there are no resources to release."""

    def evict(self, wanted: str, models: Sequence[ResidentModel], unix: float) -> str:
        """Choose a model."""
        return min(models, key=self._cost).name

    def preferred(self, unix: float) -> Sequence[str]:
        """Leave loading to requests."""
        return ()

    def _cost(self, model: ResidentModel) -> tuple[float, float, int]:
        cost = model.load_seconds * model.request_rate
        if self._by_memory:
            cost /= max(1, model.memory)
        return cost, -model.idle_seconds, model.num_running
