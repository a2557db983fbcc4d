"""Settings of ``[tool_parser.llama3]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig


class Llama3Config(StrategyConfig):
    """No settings."""
