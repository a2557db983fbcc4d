"""Model router that chooses the cheapest target that meets the quality and wait of the class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_cost.config import CostRouteConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: CostRouteConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_cost.strategy import CheapestTarget

    return CheapestTarget(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``cost``."""
    return [
        StrategyInfo(
            name="cost",
            config_type=CostRouteConfig,
            build=_build,
            summary="Chooses the cheapest target that meets the quality and wait of the class.",
            requires_spec=">=1.29,<2",
        )
    ]
