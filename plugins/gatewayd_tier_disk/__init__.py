"""Keeps pages in files, so that they outlive memory and process."""

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
            summary="Pages in append-only files, found again after a restart.",
            requires_spec=">=1.4,<2",
        )
    ]
