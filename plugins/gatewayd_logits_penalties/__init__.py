"""Logits processor for frequency, presence and repetition penalties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_logits_penalties.config import PenaltiesConfig

if TYPE_CHECKING:
    from gatewayd_hooks.logits import LogitsProcessor


def _build(config: PenaltiesConfig) -> LogitsProcessor:
    from gatewayd_logits_penalties.strategy import Penalties

    return Penalties()


@hookimpl
def gatewayd_logits_processors() -> Sequence[StrategyInfo[LogitsProcessor]]:
    """Provide ``penalties``."""
    return [
        StrategyInfo(
            name="penalties",
            config_type=PenaltiesConfig,
            build=_build,
            summary="Implements frequency_penalty, presence_penalty and repetition_penalty.",
        )
    ]
