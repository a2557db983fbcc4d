"""Router that sends prompts with a common prefix to the replica that has it cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_route_prefix.config import PrefixConfig

if TYPE_CHECKING:
    from gatewayd_hooks.routing import RouterStrategy


def _build(config: PrefixConfig) -> RouterStrategy:
    from gatewayd_route_prefix.strategy import Prefix

    return Prefix(config)


@hookimpl
def gatewayd_routers() -> Sequence[StrategyInfo[RouterStrategy]]:
    """Provide ``prefix``."""
    return [
        StrategyInfo(
            name="prefix",
            config_type=PrefixConfig,
            build=_build,
            summary="Prompts with a common prefix share a replica, unless it is busy.",
        )
    ]
