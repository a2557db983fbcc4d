"""Settings of ``[drafter.forced]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class ForcedConfig(StrategyConfig):
    """No settings: the logits processors determine forced tokens."""
