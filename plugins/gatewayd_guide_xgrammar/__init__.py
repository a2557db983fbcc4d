"""Guided decoding with XGrammar: masks of most states are computed when compiling a grammar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_guide_xgrammar.config import XgrammarConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.guiding import GuideStrategy


def _build(config: XgrammarConfig) -> GuideStrategy:
    from gatewayd_guide_xgrammar.strategy import Xgrammar

    return Xgrammar(config)


@hookimpl
def gatewayd_guides() -> Sequence[StrategyInfo[GuideStrategy]]:
    """Provide ``xgrammar``."""
    return [
        StrategyInfo(
            name="xgrammar",
            config_type=XgrammarConfig,
            build=_build,
            summary="JSON Schema, regular expressions, EBNF and structural tags; compiles slowly.",
            requires_spec=">=1.6,<2",
        )
    ]
