"""Settings of ``[quantizer.fp8]``."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8QuantizerConfig(StrategyConfig):
    """How numbers are kept in memory, and how `gatewayd quantize --to fp8` writes them.

    A checkpoint says itself how it is to be read.
    """

    packed: bool = setting(
        False,
        reload="restart",
        doc=(
            "On a CPU keep a byte for each number, and make floats of them for each product: less"
            " memory, slower."
        ),
    )
    scales: Literal["auto", "block", "tensor", "row"] = setting(
        "auto",
        reload="restart",
        doc=(
            "What shares a scale in what is written: 128 rows and 128 columns (block), a matrix"
            " (tensor), or a row, which gatewayd reads and vLLM does not (row). auto is block where"
            " all rows and columns are multiples of 128, and tensor elsewhere."
        ),
    )
