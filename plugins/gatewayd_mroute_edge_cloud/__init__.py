"""Model router that prefers local targets while their queue is short, else remote ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_edge_cloud.config import EdgeCloudConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: EdgeCloudConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_edge_cloud.strategy import EdgeCloud

    return EdgeCloud(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``edge_cloud``."""
    return [
        StrategyInfo(
            name="edge_cloud",
            config_type=EdgeCloudConfig,
            build=_build,
            summary="Prefers local targets while their queue is short, else remote ones.",
            requires_spec=">=1.29,<2",
        )
    ]
