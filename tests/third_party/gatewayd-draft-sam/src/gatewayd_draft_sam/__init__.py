"""Drafts from a suffix automaton of each sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

from gatewayd_draft_sam.config import SamSettings

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: SamSettings) -> DrafterStrategy:
    from gatewayd_draft_sam.strategy import SamDrafter

    return SamDrafter(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Offer ``sam``."""
    return [
        StrategyInfo(
            name="sam",
            config_type=SamSettings,
            build=_build,
            summary="What followed the longest repetition, found by a suffix automaton.",
            requires_spec=">=1.2,<2",
        )
    ]
