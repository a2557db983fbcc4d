"""EAGLE drafter: predicts the next hidden states, and from them the next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_eagle.config import EagleConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: EagleConfig) -> DrafterStrategy:
    from gatewayd_draft_eagle.strategy import Eagle

    return Eagle(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``eagle``."""
    return [
        StrategyInfo(
            name="eagle",
            config_type=EagleConfig,
            build=_build,
            summary="Draft tree from hidden states predicted by one trained layer (EAGLE).",
        )
    ]
