"""Adaptive speculation controller, by each sequence's acceptance rate and by the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_spec_adaptive.config import AdaptiveConfig

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import SpecControllerStrategy


def _build(config: AdaptiveConfig) -> SpecControllerStrategy:
    from gatewayd_spec_adaptive.strategy import Adaptive

    return Adaptive(config)


@hookimpl
def gatewayd_spec_controllers() -> Sequence[StrategyInfo[SpecControllerStrategy]]:
    """Provide ``adaptive``."""
    return [
        StrategyInfo(
            name="adaptive",
            config_type=AdaptiveConfig,
            build=_build,
            summary="Maximizes goodput, by each sequence's acceptance rate and by the load.",
        )
    ]
