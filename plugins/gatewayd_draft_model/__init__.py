"""Drafter that uses a smaller model with the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_model.config import DraftModelConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: DraftModelConfig) -> DrafterStrategy:
    from gatewayd_draft_model.strategy import DraftModelDrafter

    return DraftModelDrafter(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``draft_model``."""
    return [
        StrategyInfo(
            name="draft_model",
            config_type=DraftModelConfig,
            build=_build,
            summary="Drafts of a smaller model with the same tokenizer.",
        )
    ]
