"""Settings of ``[protocol.anthropic]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class AnthropicConfig(StrategyConfig):
    """The API has nothing to set: limits are the gateway's."""
