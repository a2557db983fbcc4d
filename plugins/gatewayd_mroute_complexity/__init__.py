"""Model router that chooses a larger target for a request that looks more complex."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_complexity.config import ComplexityConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: ComplexityConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_complexity.strategy import Complexity

    return Complexity(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``complexity``."""
    return [
        StrategyInfo(
            name="complexity",
            config_type=ComplexityConfig,
            build=_build,
            summary="Chooses a larger target for a request that looks more complex.",
            requires_spec=">=1.29,<2",
        )
    ]
