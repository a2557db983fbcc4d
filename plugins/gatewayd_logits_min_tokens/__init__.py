"""Logits processor for ``min_tokens``."""

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
    """Provide ``min_tokens``."""
    return [
        StrategyInfo(
            name="min_tokens",
            config_type=MinTokensConfig,
            build=_build,
            summary="Implements min_tokens: no end token is sampled before that many.",
        )
    ]
