"""Router that chooses the replica with the lowest load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_route_least_loaded.config import LeastLoadedConfig

if TYPE_CHECKING:
    from gatewayd_hooks.routing import RouterStrategy


def _build(config: LeastLoadedConfig) -> RouterStrategy:
    from gatewayd_route_least_loaded.strategy import LeastLoaded

    return LeastLoaded(config)


@hookimpl
def gatewayd_routers() -> Sequence[StrategyInfo[RouterStrategy]]:
    """Provide ``least_loaded``."""
    return [
        StrategyInfo(
            name="least_loaded",
            config_type=LeastLoadedConfig,
            build=_build,
            summary="Chooses the replica with the fewest sequences and queued prompt tokens.",
        )
    ]
