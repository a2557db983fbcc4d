"""Settings of ``[logits_processor.min_tokens]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class MinTokensConfig(StrategyConfig):
    """Every request brings its own minimum."""
