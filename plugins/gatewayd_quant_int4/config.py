"""Settings of ``[quantizer.int4]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Int4QuantizerConfig(StrategyConfig):
    """Group size, and what is quantized."""

    group_size: Literal[32, 64, 128] = setting(
        128,
        reload="restart",
        doc=(
            "Number of columns that share a scale: 32, 64 or 128; smaller groups are more "
            "accurate and take more memory."
        ),
    )
    symmetric: bool = setting(
        False,
        reload="restart",
        doc=(
            "Whether ranges are symmetric around zero, without an offset per group; less memory, "
            "less accurate."
        ),
    )
    head: bool = setting(
        False,
        reload="restart",
        doc=("Whether the LM head, which computes the logits, is quantized, too; less accurate."),
    )
