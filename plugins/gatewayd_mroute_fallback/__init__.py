"""Model router that tries the targets of a route in the configured order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_fallback.config import FallbackConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: FallbackConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_fallback.strategy import Fallback

    return Fallback(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``fallback``."""
    return [
        StrategyInfo(
            name="fallback",
            config_type=FallbackConfig,
            build=_build,
            summary="Tries the targets in the configured order, those that are not ready last.",
            requires_spec=">=1.29,<2",
        )
    ]
