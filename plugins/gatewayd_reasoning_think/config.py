"""Settings of ``[reasoning_parser.think]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig


class ThinkConfig(StrategyConfig):
    """No settings."""
