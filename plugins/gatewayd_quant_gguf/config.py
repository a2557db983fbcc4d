"""Settings of ``[quantizer.gguf]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class GgufConfig(StrategyConfig):
    """What weights are in memory."""

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "Keep codes in memory, in their kernel; Q6_K is made floats for each product, less"
            " memory and slower."
        ),
    )
