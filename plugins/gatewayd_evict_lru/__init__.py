"""Least recently used eviction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_evict_lru.config import LruConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.caching import EvictionStrategy


def _build(config: LruConfig) -> EvictionStrategy:
    from gatewayd_evict_lru.strategy import Lru

    return Lru()


@hookimpl
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Provide ``lru``."""
    return [
        StrategyInfo(
            name="lru",
            config_type=LruConfig,
            build=_build,
            summary="Evicts the least recently used cached page (LRU).",
        )
    ]
