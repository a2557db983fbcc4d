"""Eviction by a clock, with a time to live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_evict_clock.config import ClockSettings

if TYPE_CHECKING:
    from gatewayd_hooks.caching import EvictionStrategy


def _build(config: ClockSettings) -> EvictionStrategy:
    from gatewayd_evict_clock.strategy import ClockEviction

    return ClockEviction(config)


@hookimpl
def gatewayd_evictions() -> Sequence[StrategyInfo[EvictionStrategy]]:
    """Offer ``clock``."""
    return [
        StrategyInfo(
            name="clock",
            config_type=ClockSettings,
            build=_build,
            summary="A clock with chances for pages that are hit, and a time to live.",
            requires_spec=">=1.2,<2",
        )
    ]
