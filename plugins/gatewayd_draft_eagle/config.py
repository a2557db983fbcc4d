"""Settings of ``[drafter.eagle]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class EagleConfig(StrategyConfig):
    """Trained layer, and the size of the draft tree."""

    heads: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc=(
            "Folder of a layer trained for the model; empty for the model's folder with the "
            "suffix `-eagle`."
        ),
    )
    depth: int = setting(
        4, reload="restart", ge=1, le=32, doc="Depth of the draft tree in tokens, from 1 to 32."
    )
    width: int = setting(
        6,
        reload="restart",
        ge=1,
        le=16,
        doc="Number of candidate tokens at each depth, from 1 to 16; 1 makes a chain.",
    )
    min_confidence: float = setting(
        0.1,
        reload="hot",
        ge=0.0,
        lt=1.0,
        doc="Probability of the draft chain, from 0 to below 1, below which it is not extended.",
    )
