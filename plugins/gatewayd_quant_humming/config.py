"""Settings of ``[quantizer.humming]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class HummingConfig(StrategyConfig):
    """How its kernels add up."""

    batch_invariant: bool = setting(
        False,
        reload="restart",
        doc="Add up in one order, whatever the number of rows; slower.",
    )
