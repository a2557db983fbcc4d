"""Guided decoding with llguidance: an Earley parser over lexemes, masks in tens of microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_guide_llguidance.config import LlguidanceConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.guiding import GuideStrategy


def _build(config: LlguidanceConfig) -> GuideStrategy:
    from gatewayd_guide_llguidance.strategy import Llguidance

    return Llguidance(config)


@hookimpl
def gatewayd_guides() -> Sequence[StrategyInfo[GuideStrategy]]:
    """Provide ``llguidance``."""
    return [
        StrategyInfo(
            name="llguidance",
            config_type=LlguidanceConfig,
            build=_build,
            summary="JSON Schema, regular expressions, Lark and structural tags; compiles fast.",
            requires_spec=">=1.6,<2",
        )
    ]
