"""Speculation controller with a fixed number of drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_spec_fixed.config import FixedConfig

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import SpecControllerStrategy


def _build(config: FixedConfig) -> SpecControllerStrategy:
    from gatewayd_spec_fixed.strategy import Fixed

    return Fixed(config)


@hookimpl
def gatewayd_spec_controllers() -> Sequence[StrategyInfo[SpecControllerStrategy]]:
    """Provide ``fixed``."""
    return [
        StrategyInfo(
            name="fixed",
            config_type=FixedConfig,
            build=_build,
            summary="The same number of drafts for every sequence in every step.",
        )
    ]
