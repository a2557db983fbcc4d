"""Output parsers for gateways over fake fleets."""

from __future__ import annotations

from typing import Any

from gatewayd.plugins.parsers import FencedParser, ModelParsers
from gatewayd_hooks.host.plugin_times import PluginTimes
from gatewayd_hooks.host.watchdog import Watchdog
from gatewayd_hooks.parsing import ReasoningParserStrategy, ToolParserStrategy
from gatewayd_hooks.strategy import Kind
from gatewayd_reasoning_think.config import ThinkConfig
from gatewayd_reasoning_think.strategy import Think
from gatewayd_tools_hermes.config import HermesConfig
from gatewayd_tools_hermes.strategy import Hermes
from gatewayd_tools_mistral.config import MistralConfig
from gatewayd_tools_mistral.strategy import Mistral


def parsers(tools: Any = None, *, reasoning: bool = False) -> ModelParsers:
    """Hermes, or another; with ``think`` if it is wanted."""
    plugin_times = PluginTimes(0.05)
    watchdog = Watchdog(plugin_times, 2.0)
    seat: FencedParser[ToolParserStrategy] = FencedParser(
        Kind.TOOL_PARSER, tools or Hermes(HermesConfig()), "tools", plugin_times, watchdog
    )
    thought: FencedParser[ReasoningParserStrategy] | None = None
    if reasoning:
        think = Think(ThinkConfig())
        thought = FencedParser(Kind.REASONING_PARSER, think, "think", plugin_times, watchdog)
    return ModelParsers(seat, thought)


def mistral() -> ModelParsers:
    """Of the model whose templates want ids of nine characters."""
    return parsers(Mistral(MistralConfig()))
