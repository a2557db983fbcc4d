"""Medusa drafter: predicts several tokens at once with heads on the last hidden state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_medusa.config import MedusaConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: MedusaConfig) -> DrafterStrategy:
    from gatewayd_draft_medusa.strategy import Medusa

    return Medusa(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``medusa``."""
    return [
        StrategyInfo(
            name="medusa",
            config_type=MedusaConfig,
            build=_build,
            summary="Draft tree from trained heads on the last hidden state (Medusa).",
        )
    ]
