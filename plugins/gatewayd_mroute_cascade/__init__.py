"""Model router that has the first target answer, and the next one if that answer is uncertain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_mroute_cascade.config import CascadeConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.model_routing import ModelRouterStrategy


def _build(config: CascadeConfig) -> ModelRouterStrategy:
    from gatewayd_mroute_cascade.strategy import Cascade

    return Cascade(config)


@hookimpl
def gatewayd_model_routers() -> Sequence[StrategyInfo[ModelRouterStrategy]]:
    """Provide ``cascade``."""
    return [
        StrategyInfo(
            name="cascade",
            config_type=CascadeConfig,
            build=_build,
            summary="Has the first target answer, and the next one if that answer is uncertain.",
            requires_spec=">=1.29,<2",
        )
    ]
