"""Lookahead drafter: n-grams from the model's own predictions of later positions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_lookahead.config import LookaheadConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: LookaheadConfig) -> DrafterStrategy:
    from gatewayd_draft_lookahead.strategy import Lookahead

    return Lookahead(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``lookahead``."""
    return [
        StrategyInfo(
            name="lookahead",
            config_type=LookaheadConfig,
            build=_build,
            summary="N-grams from the model's own Jacobi iterations (lookahead decoding).",
        )
    ]
