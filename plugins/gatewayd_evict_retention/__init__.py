"""Eviction by retention priorities that requests set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_evict_retention.config import RetentionConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.caching import EvictionStrategy


def _build(config: RetentionConfig) -> EvictionStrategy:
    from gatewayd_evict_retention.strategy import Retention

    return Retention()


@hookimpl
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Provide ``retention``."""
    return [
        StrategyInfo(
            name="retention",
            config_type=RetentionConfig,
            build=_build,
            summary="Evicts cached pages by the retention priority and duration that requests set.",
            requires_spec=">=1.2,<2",
        )
    ]
