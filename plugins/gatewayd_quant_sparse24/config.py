"""Settings of ``[quantizer.sparse24]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Sparse24Config(StrategyConfig):
    """No settings: weights are pruned by magnitude."""
