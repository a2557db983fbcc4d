"""Tool call parser for the format of Hermes, Qwen and the embedded model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_tools_hermes.config import HermesConfig

if TYPE_CHECKING:
    from gatewayd_hooks.parsing import ToolParserStrategy


def _build(config: HermesConfig) -> ToolParserStrategy:
    from gatewayd_tools_hermes.strategy import Hermes

    return Hermes(config)


@hookimpl
def gatewayd_tool_parsers() -> Sequence[StrategyInfo[ToolParserStrategy]]:
    """Provide ``hermes``."""
    return [
        StrategyInfo(
            name="hermes",
            config_type=HermesConfig,
            build=_build,
            summary="Calls between <tool_call> and </tool_call>, as Hermes and Qwen write them.",
            requires_spec=">=1.6,<2",
        )
    ]
