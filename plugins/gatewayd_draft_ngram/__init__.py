"""Prompt lookup drafter: predicts that a sequence repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_draft_ngram.config import NgramConfig
from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo

if TYPE_CHECKING:
    from gatewayd_hooks.speculation import DrafterStrategy


def _build(config: NgramConfig) -> DrafterStrategy:
    from gatewayd_draft_ngram.strategy import Ngram

    return Ngram(config)


@hookimpl
def gatewayd_drafters() -> Sequence[StrategyInfo[DrafterStrategy]]:
    """Provide ``ngram``."""
    return [
        StrategyInfo(
            name="ngram",
            config_type=NgramConfig,
            build=_build,
            summary="Tokens after an earlier occurrence of the last ones (prompt lookup).",
        )
    ]
