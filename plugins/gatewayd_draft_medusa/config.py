"""Settings of ``[drafter.medusa]``."""

from __future__ import annotations

from gatewayd_hooks.strategy import StrategyConfig, setting


class MedusaConfig(StrategyConfig):
    """Which heads, and how large their tree grows."""

    heads: str = setting(
        "",
        reload="restart",
        is_path=True,
        doc="Folder of heads trained for the model; empty for those that stand beside it.",
    )
    tree_size: int = setting(
        32, reload="restart", ge=1, le=256, doc="Most guesses of a sequence in a step."
    )
