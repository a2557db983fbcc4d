"""Settings of ``[quantizer.humming]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class HummingConfig(StrategyConfig):
    """Order of accumulation in its kernels."""

    batch_invariant: bool = setting(
        False,
        reload="restart",
        doc="Whether results are independent of the number of rows (batch-invariant); slower.",
    )
