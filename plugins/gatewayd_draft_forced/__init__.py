"""Drafter of tokens that logits processors force."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_forced.config import ForcedConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: ForcedConfig) -> DrafterStrategy:
    from gatewayd_draft_forced.strategy import Forced

    return Forced()


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``forced``."""
    return [
        StrategyInfo(
            name="forced",
            config_type=ForcedConfig,
            build=_build,
            summary="Tokens that logits processors (grammars) force to come next.",
        )
    ]
