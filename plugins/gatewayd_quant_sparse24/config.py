"""Settings of ``[quantizer.sparse24]``: none."""

from gatewayd_hooks.strategy import StrategyConfig


class Sparse24Config(StrategyConfig):
    """Which numbers stay is settled by their size."""
