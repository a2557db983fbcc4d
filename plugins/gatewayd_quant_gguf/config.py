"""Settings of ``[quantizer.gguf]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class GgufConfig(StrategyConfig):
    """Form of weights in memory."""

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "Whether weights stay quantized in memory and are multiplied by a quantized matmul "
            "kernel: less memory, but inputs are rounded to bfloat16."
        ),
    )
