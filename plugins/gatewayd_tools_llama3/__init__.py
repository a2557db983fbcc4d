"""Tool call parser for the format of Llama 3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gatewayd_hooks.markers import hookimpl
from gatewayd_hooks.strategy import StrategyInfo
from gatewayd_tools_llama3.config import Llama3Config

if TYPE_CHECKING:
    from gatewayd_hooks.parsing import ToolParserStrategy


def _build(config: Llama3Config) -> ToolParserStrategy:
    from gatewayd_tools_llama3.strategy import Llama3

    return Llama3(config)


@hookimpl
def gatewayd_tool_parsers() -> Sequence[StrategyInfo[ToolParserStrategy]]:
    """Provide ``llama3``."""
    return [
        StrategyInfo(
            name="llama3",
            config_type=Llama3Config,
            build=_build,
            summary="Calls as bare JSON or after <|python_tag|>, as Llama 3.1 to 3.3 write them.",
            requires_spec=">=1.6,<2",
        )
    ]
