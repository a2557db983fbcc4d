"""Settings of ``[quantizer.gguf]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class GgufConfig(StrategyConfig):
    """What weights are in memory."""

    packed: bool = setting(
        False,
        reload="restart",
        doc="Keep codes in memory, and make floats of them for each product: less memory, slower.",
    )
