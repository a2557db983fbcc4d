"""Settings of ``[quantizer.awq]``: of what is written; a checkpoint says itself how it is read."""

from __future__ import annotations

from typing import Literal

from gatewayd_hooks.strategy import StrategyConfig, setting


class AwqConfig(StrategyConfig):
    """How `gatewayd quantize --to awq` writes a checkpoint."""

    group_size: Literal[16, 32, 64, 128, 256, -1] = setting(
        128, reload="restart", doc="Columns that share a scale and a zero; -1 for all of a row."
    )
