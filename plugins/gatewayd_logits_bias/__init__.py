"""Logits processor for ``logit_bias``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_logits_bias.config import BiasConfig

if TYPE_CHECKING:
    from gatewayd_hooks.logits import LogitsProcessor


def _build(config: BiasConfig) -> LogitsProcessor:
    from gatewayd_logits_bias.strategy import Bias

    return Bias()


@hookimpl
def gatewayd_logits_processors() -> Sequence[StrategyInfo[LogitsProcessor]]:
    """Provide ``bias``."""
    return [
        StrategyInfo(
            name="bias",
            config_type=BiasConfig,
            build=_build,
            summary="Implements logit_bias.",
        )
    ]
