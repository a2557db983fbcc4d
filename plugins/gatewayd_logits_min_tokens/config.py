"""Settings of ``[logits_processor.min_tokens]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class MinTokensConfig(StrategyConfig):
    """No settings: the minimum is a request parameter."""
