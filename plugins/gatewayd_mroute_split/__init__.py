"""Model router that splits requests by weight; a key or tenant stays at its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_split.config import SplitConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: SplitConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_split.strategy import Split

    return Split(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``split``."""
    return [
        StrategyInfo(
            name="split",
            config_type=SplitConfig,
            build=_build,
            summary="Splits requests by weight; a key or tenant stays at its target.",
            requires_spec=">=1.29,<2",
        )
    ]
