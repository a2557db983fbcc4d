"""Settings of ``[quantizer.awq]``, for writing; how a checkpoint is read is in the checkpoint."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class AwqConfig(StrategyConfig):
    """How `gatewayd quantize --to awq` writes a checkpoint."""

    group_size: Literal[16, 32, 64, 128, 256, -1] = setting(
        128,
        reload="restart",
        doc=(
            "Number of columns that share a scale and a zero point: 16, 32, 64, 128, 256, or "
            "-1 for a whole row."
        ),
    )
