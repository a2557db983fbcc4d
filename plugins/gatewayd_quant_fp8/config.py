"""Settings of ``[quantizer.fp8]``."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8QuantizerConfig(StrategyConfig):
    """How weights are stored in memory, and how `gatewayd quantize --to fp8` writes them.

    How a checkpoint is read is determined by the checkpoint.
    """

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "Whether weights on a CPU stay 8-bit in memory and are dequantized for each matmul: "
            "less memory, but slower."
        ),
    )
    scales: Literal["auto", "block", "tensor", "row"] = setting(
        "auto",
        reload="restart",
        doc=(
            "What shares a scale in written checkpoints: `block` is 128 rows and 128 columns, "
            "`tensor` a whole matrix, `row` a single row, which gatewayd reads and vLLM does not; "
            "`auto` is `block` if all rows and columns are multiples of 128, and otherwise "
            "`tensor`."
        ),
    )
