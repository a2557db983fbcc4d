"""Tool call parser for the formats of Mistral."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_tools_mistral.config import MistralConfig

if TYPE_CHECKING:
    from gatewayd_hooks.parsing import ToolParserStrategy


def _build(config: MistralConfig) -> ToolParserStrategy:
    from gatewayd_tools_mistral.strategy import Mistral

    return Mistral(config)


@hookimpl
def gatewayd_tool_parsers() -> Sequence[StrategyInfo[ToolParserStrategy]]:
    """Provide ``mistral``."""
    return [
        StrategyInfo(
            name="mistral",
            config_type=MistralConfig,
            build=_build,
            summary="Calls after [TOOL_CALLS], in a list or by name, as Mistral writes them.",
            requires_spec=">=1.6,<2",
        )
    ]
