"""Guesses the next hidden states, and from them the next tokens: EAGLE."""

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
    """Offer ``eagle``."""
    return [
        StrategyInfo(
            name="eagle",
            config_type=EagleConfig,
            build=_build,
            summary="A tree of tokens from hidden states that one trained layer foresees.",
        )
    ]
