"""Residency that unloads the model whose absence costs the least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_residency_cost.config import CostResidencyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.residency import ResidencyStrategy


def _build(config: CostResidencyConfig) -> ResidencyStrategy:
    from gatewayd_residency_cost.strategy import CheapestToMiss

    return CheapestToMiss(config)


@hookimpl
def gatewayd_residencies() -> Sequence[StrategyInfo[ResidencyStrategy]]:
    """Provide ``cost``."""
    return [
        StrategyInfo(
            name="cost",
            config_type=CostResidencyConfig,
            build=_build,
            summary="Unloads the model whose absence costs the least waiting, by its request rate.",
            requires_spec=">=1.29,<2",
        )
    ]
