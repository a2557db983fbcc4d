"""Residency that unloads the model that was used least recently."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_residency_lru.config import LruResidencyConfig

if TYPE_CHECKING:
    from gatewayd_hooks.targets.residency import ResidencyStrategy


def _build(config: LruResidencyConfig) -> ResidencyStrategy:
    from gatewayd_residency_lru.strategy import LeastRecentlyUsed

    return LeastRecentlyUsed(config)


@hookimpl
def gatewayd_residencies() -> Sequence[StrategyInfo[ResidencyStrategy]]:
    """Provide ``lru``."""
    return [
        StrategyInfo(
            name="lru",
            config_type=LruResidencyConfig,
            build=_build,
            summary="Unloads the model whose last request ended longest ago.",
            requires_spec=">=1.29,<2",
        )
    ]
