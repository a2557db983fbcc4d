"""Settings of ``[quantizer.fp8]``."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class Fp8Config(StrategyConfig):
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
    scales: Literal["row", "tensor", "block"] = setting(
        "row",
        reload="restart",
        doc="What shares a scale in what is written: a row, a matrix, or 128 rows and 128 columns.",
    )
