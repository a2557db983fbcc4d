"""Cost-aware eviction: the page that is cheapest to recompute, adjusted for age."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_evict_cost.config import CostConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.caching import EvictionStrategy


def _build(config: CostConfig) -> EvictionStrategy:
    from gatewayd_evict_cost.strategy import CostEviction

    return CostEviction(config)


@hookimpl
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Provide ``cost``."""
    return [
        StrategyInfo(
            name="cost",
            config_type=CostConfig,
            build=_build,
            summary="Evicts the cached page that is cheapest to recompute, adjusted for age.",
            requires_spec=">=1.2,<2",
        )
    ]
