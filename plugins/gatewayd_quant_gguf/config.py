"""Settings of ``[quantizer.gguf]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class GgufConfig(StrategyConfig):
    """What weights are in memory."""

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "Keep codes in memory and multiply them in a kernel of their own: less memory, and"
            " inputs are rounded to bfloat16."
        ),
    )
