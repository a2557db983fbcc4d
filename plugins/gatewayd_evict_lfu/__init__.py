"""Least frequently used eviction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_evict_lfu.config import LfuConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.caching import EvictionStrategy


def _build(config: LfuConfig) -> EvictionStrategy:
    from gatewayd_evict_lfu.strategy import Lfu

    return Lfu()


@hookimpl
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Provide ``lfu``."""
    return [
        StrategyInfo(
            name="lfu",
            config_type=LfuConfig,
            build=_build,
            summary="Evicts the least frequently used cached page, with dynamic ageing (LFU-DA).",
        )
    ]
