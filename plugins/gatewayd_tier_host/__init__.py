"""KV tier that stores evicted pages in host memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_tier_host.config import HostConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_tiers import KvTierStrategy


def _build(config: HostConfig) -> KvTierStrategy:
    from gatewayd_tier_host.strategy import Host

    return Host(config)


@hookimpl
def gatewayd_kv_tiers() -> Sequence[StrategyInfo[KvTierStrategy]]:
    """Provide ``host``."""
    return [
        StrategyInfo(
            name="host",
            config_type=HostConfig,
            build=_build,
            summary="Stores KV pages in host memory, with LRU eviction.",
            requires_spec=">=1.4,<2",
        )
    ]
