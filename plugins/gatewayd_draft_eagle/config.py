"""Settings of ``[drafter.eagle]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class EagleConfig(StrategyConfig):
    """Which layer, and how far it looks."""

    heads: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc="Folder of a layer trained for the model; empty for the one that stands beside it.",
    )
    depth: int = setting(4, reload="restart", ge=1, le=32, doc="Tokens that are looked ahead.")
    width: int = setting(
        6, reload="restart", ge=1, le=16, doc="Choices that are guessed for each of them."
    )
    min_confidence: float = setting(
        0.1,
        reload="hot",
        ge=0.0,
        lt=1.0,
        doc="Likelihood of a chain so far below which it is not looked further ahead.",
    )
