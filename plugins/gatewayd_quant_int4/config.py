"""Settings of ``[quantizer.int4]``."""

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Int4QuantizerConfig(StrategyConfig):
    """How finely rows are cut, and what is rounded."""

    group_size: Literal[32, 64, 128] = setting(
        128,
        reload="restart",
        doc="Neighbours in a row that share a scale: 32, 64 or 128. Fewer lose less and take more.",
    )
    symmetric: bool = setting(
        False,
        reload="restart",
        doc="Steps lie around zero, so no least number is kept for each group; loses more.",
    )
    head: bool = setting(
        False, reload="restart", doc="Round the matrix that makes logits, too; loses more."
    )
