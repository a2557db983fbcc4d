"""Reasoning parser for <think> and </think>."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_reasoning_think.config import ThinkConfig

if TYPE_CHECKING:
    from gatewayd_hooks.parsing import ReasoningParserStrategy


def _build(config: ThinkConfig) -> ReasoningParserStrategy:
    from gatewayd_reasoning_think.strategy import Think

    return Think(config)


@hookimpl
def gatewayd_reasoning_parsers() -> Sequence[StrategyInfo[ReasoningParserStrategy]]:
    """Provide ``think``."""
    return [
        StrategyInfo(
            name="think",
            config_type=ThinkConfig,
            build=_build,
            summary="Reasoning between <think> and </think>, as DeepSeek and Qwen write it.",
            requires_spec=">=1.6,<2",
        )
    ]
