"""Evicts the page that requests want kept least."""

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
    """Offer ``retention``."""
    return [
        StrategyInfo(
            name="retention",
            config_type=RetentionConfig,
            build=_build,
            summary="Gives cached pages up by the priority that requests gave them for a time.",
            requires_spec=">=1.2,<2",
        )
    ]
