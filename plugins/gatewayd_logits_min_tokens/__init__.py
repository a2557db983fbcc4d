"""Keeps a request from ending before it has generated enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_logits_min_tokens.config import MinTokensConfig

if TYPE_CHECKING:
    from gatewayd_hooks.logits import LogitsProcessor


def _build(config: MinTokensConfig) -> LogitsProcessor:
    from gatewayd_logits_min_tokens.strategy import MinTokens

    return MinTokens()


@hookimpl
def gatewayd_logits_processors() -> Sequence[StrategyInfo[LogitsProcessor]]:
    """Offer ``min_tokens``."""
    return [
        StrategyInfo(
            name="min_tokens",
            config_type=MinTokensConfig,
            build=_build,
            summary="Serves min_tokens: no end token is sampled before.",
        )
    ]
