"""KV tier that stores pages in files, which persist across restarts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_tier_disk.config import DiskConfig

if TYPE_CHECKING:
    from gatewayd_hooks.kv_tiers import KvTierStrategy


def _build(config: DiskConfig) -> KvTierStrategy:
    from gatewayd_tier_disk.strategy import Disk

    return Disk(config)


@hookimpl
def gatewayd_kv_tiers() -> Sequence[StrategyInfo[KvTierStrategy]]:
    """Provide ``disk``."""
    return [
        StrategyInfo(
            name="disk",
            config_type=DiskConfig,
            build=_build,
            summary="Stores KV pages in append-only files, which persist across restarts.",
            requires_spec=">=1.4,<2",
        )
    ]
