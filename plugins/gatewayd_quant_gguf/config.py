"""Settings of ``[quantizer.gguf]``."""

from gatewayd_hooks.strategy import StrategyConfig, setting


class GgufConfig(StrategyConfig):
    """Form of weights in memory."""

    packed: bool = setting(
        True,
        reload="restart",
        doc=(
            "Whether weights stay quantized in memory and are multiplied from their codes. If not, "
            "they are dequantized to `[model] dtype` while the model is loaded."
        ),
    )
